"""Planted faults, and runs without one: attnviz beside three common rules, on the same numbers."""
