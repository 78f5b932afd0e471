"""The verbs of the command line: of each its flags, and what it does; its exit code comes back.

Invariants:
- Importing a verb is cheap: it imports what it needs when it runs. A health check every few seconds
  must not load tokenizers and aiohttp.
"""
