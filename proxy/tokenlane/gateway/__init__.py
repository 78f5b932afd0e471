"""The life of a request, from its head to its record. `request.py` is that life, top to bottom.

The other modules are its steps. May import all that is below: relay, admission, tokens, http,
routing, protocols. Knows no supervisor.
"""
