"""Exact maps of any length on a CPU: loops of our own, which numba compiles where it is there."""

from attnviz.streaming.cpu.launch import go_over, serves

__all__ = [
    "go_over",
    "serves",
]
