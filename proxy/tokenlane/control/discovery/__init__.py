"""Where replicas are found besides the settings: a file, DNS, the Kubernetes API.

Invariants:
- A source says what it knows (URLs), or that it does not know (None), and that changes nothing.
- No source stops the gateway: what goes wrong is a line in the log, once, and tried again.
"""
