"""The tokenization ladder in process: `python -m bench ladder`, see `__main__`."""
