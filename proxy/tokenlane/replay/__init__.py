"""Replay a trace: the product's own routing in front of simulated replicas in simulated time.

Imports routing and block hashes, no sockets and no event loop.
"""
