"""Inputs of a model: text, images and audio, as tensors with an axis for each."""
