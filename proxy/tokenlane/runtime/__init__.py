"""What the process asks of Linux: CPU scheduling, memory, ports, file times, systemd.

Knows nothing of the product; any room may use it.
"""
