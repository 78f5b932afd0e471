"""What replicas say about their caches (KV events), and what it means in our own block hashes.

Pure: events decodes a batch, sequence finds what was missed, ledger keeps the account. The sockets
are in tokenlane.control.kv_events.subscribers; what a worker makes of it is
tokenlane.routing.truth.
"""
