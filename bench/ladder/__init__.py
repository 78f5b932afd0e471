"""The tokenization ladder in process; see `bench.ladder.__main__`."""
