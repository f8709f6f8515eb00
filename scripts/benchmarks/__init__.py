"""The benchmarks of `bench.py`, one file per command; shared code is in `measuring`."""
