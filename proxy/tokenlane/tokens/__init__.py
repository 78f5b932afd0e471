"""From a request to its prompt's ids and block hashes, exactly as vLLM makes them, off the loop.

`service` climbs the ladder; `ladder` is its rule; `job` is the work. Knows nothing of connections,
replicas or routing.
"""
