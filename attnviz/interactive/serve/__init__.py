"""The server of the interactive page."""
