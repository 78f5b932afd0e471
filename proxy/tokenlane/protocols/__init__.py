"""What requests and answers mean: routes, bodies, fields, dialects, error shapes. Pure.

Knows how OpenAI, Anthropic and vLLM write things; knows no connection and no replica.
"""
