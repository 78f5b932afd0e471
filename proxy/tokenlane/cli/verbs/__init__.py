"""The verbs of the command line: each has its flags, and a function that returns the exit code.

Invariants:
- Importing a verb is cheap: it imports what it needs when it runs. A health check every few seconds
  must not load tokenizers and aiohttp.
"""
