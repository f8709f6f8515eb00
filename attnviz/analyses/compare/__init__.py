"""Checkpoints, head by head."""
