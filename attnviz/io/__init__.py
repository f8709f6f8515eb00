"""Files: atomic writing, saved results, exported data."""
