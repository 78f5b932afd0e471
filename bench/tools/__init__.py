"""What benches are made of: processes under test, stand-in replicas, statistics, plots, reports.

Imports nothing else of bench.
"""
