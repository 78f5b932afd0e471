"""A simulated fleet of vLLM replicas: real sockets, real token counts, simulated compute.

Uses http, tokens and protocols as any server would; knows nothing of the gateway.
"""
