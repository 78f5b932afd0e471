"""The access log, written by a thread of its own, and the log of events."""
