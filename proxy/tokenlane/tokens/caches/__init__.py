"""What of a prompt is known already: whole requests, openings, prefixes, segments, shapes.

Bounded in entries and bytes. Pure but for locks.
"""
