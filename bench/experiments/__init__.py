"""Measurements of the gateway, each a module that is run alone: `python -m bench NAME`.

Import `loads` and `tools`, and each other without a circle.
"""
