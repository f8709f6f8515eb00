"""The interactive page, its widget and its server."""
