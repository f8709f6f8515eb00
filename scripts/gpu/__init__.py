"""Check attnviz on a machine with a GPU."""
