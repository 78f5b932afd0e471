"""Where a request goes and why: filter, cost, choice. Pure: time and load are arguments.

Takes block hashes and makes none. Knows no request bodies, no HTTP and no tokenizer.
"""
