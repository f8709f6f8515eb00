"""What `bench.py` measures, one file per command; what they share is in `measuring`."""
