"""Where a request goes: filter -> cost -> choice, with the reason.

Everything here is pure: no sockets, no clocks (`now` is an argument), no event loop.
Read in this order: blocks, index, decision, cost, policies/, candidates, router; lease and
retry stand on their own.
"""
