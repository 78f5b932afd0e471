"""The command line: the table of verbs, their flags, and what each prints.

Top of the house: may import every room. Nothing imports it but `python -m tokenlane`.
"""
