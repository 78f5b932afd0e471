"""Benchmarks: what the gateway costs, beside a plain aiohttp proxy in the same run."""
