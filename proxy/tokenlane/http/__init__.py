"""HTTP/1.1 on both sides: framing, heads, bodies, connections, pools. Runs alone.

Knows nothing of models, prompts or routing: what an error looks like is handed to the server.
"""
