"""Replaying a trace: the product's own routing, in front of simulated replicas, in simulated time.

Read in this order: trace, cache, fleet, run, bounds, baselines, report.
"""
