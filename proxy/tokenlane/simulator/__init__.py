"""A simulated fleet of vLLM replicas: real sockets, real token counts, simulated compute."""
