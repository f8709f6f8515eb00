"""Tiny random models of every architecture in the installed transformers, and a check of each."""
