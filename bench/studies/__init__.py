"""The laboratory's studies: a published curve or claim, measured again beside our own figures.

Each is a module that is run alone: `python -m bench NAME`. They import `experiments`, `loads` and
`tools`, and each other without a circle.
"""
