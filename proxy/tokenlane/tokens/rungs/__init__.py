"""The rungs that do the work: on the loop where it is short, in threads, in processes."""
