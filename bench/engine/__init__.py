"""The laboratory on a real engine: published figures of vLLM, measured again beside our own.

Each is a module that is run alone: `python -m bench NAME`. They import the other folders.
"""
