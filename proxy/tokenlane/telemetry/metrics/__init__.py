"""Metric families, the shared-memory segment a worker writes them to, and `/metrics`."""
