"""Two checkpoints, head by head."""
