"""Attention from its formula: torch only, no model in sight."""
