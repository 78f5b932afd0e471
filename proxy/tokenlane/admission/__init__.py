"""Who may come in (auth), who is served now and who waits (policy, queue).

`auth`, `policy` and `parents` are pure; `queue` waits on the loop.
"""
