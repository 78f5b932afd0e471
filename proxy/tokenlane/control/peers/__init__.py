"""Other gateways in front of the same replicas: what each has in flight, shared through a store.

The supervisor alone talks to the store. A request neither waits for it nor notices that it is gone.
"""
