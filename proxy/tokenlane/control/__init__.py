"""The supervisor process: settings, workers, probes, replicas, and the admin port.

Never on the data path; aiohttp is at home here. May import every room but `cli`.
"""
