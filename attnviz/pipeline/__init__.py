"""Load a model, encode the input, capture its attention, verify it."""
