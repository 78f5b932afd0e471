"""What the gateway says about itself: metrics, stalls, access log, traces, the load board.

Written from the data path without locks or formatting; read beside it.
"""
