"""The laboratory: one experiment a file, each runnable alone, all of them by `make bench`."""
