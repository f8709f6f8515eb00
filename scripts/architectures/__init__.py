"""Build a tiny random model of every architecture in the installed transformers and check it."""
