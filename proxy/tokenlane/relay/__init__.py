"""An answer on its way from a replica to the client: spliced, watched, never re-encoded.

Knows http and protocols; leaves to `gateway` which replica and what follows a failure.
"""
