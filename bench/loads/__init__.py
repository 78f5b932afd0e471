"""What is sent to a gateway, and when: prompts, request bodies, traces, arrival times, generators.

Imports `tools`.
"""
