"""Benchmarks of the gateway.

`python -m bench` runs the laboratory, `python -m bench NAME` one experiment or study. Five folders,
each importing only those after it: `engine`, `studies`, `experiments`, `loads`, `tools`.
"""
