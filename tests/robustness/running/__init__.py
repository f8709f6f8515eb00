"""Run the cases of the catalogue, and check each run."""
