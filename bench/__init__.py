"""Benchmarks of the gateway.

`python -m bench` runs the laboratory, `python -m bench NAME` one experiment or study. Four folders,
each importing only those after it: `studies`, `experiments`, `loads`, `tools`.
"""
