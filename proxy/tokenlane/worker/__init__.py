"""The data process: one event loop that serves requests, composed and run here.

Puts gateway, HTTP server, tokens and instruments together; decides nothing about a request.
"""
