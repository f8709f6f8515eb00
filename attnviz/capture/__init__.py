"""Capture: from a model and its inputs to the inputs and outputs of every attention."""
