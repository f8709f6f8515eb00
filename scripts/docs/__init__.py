"""The pages of the site that are computed: from docstrings, commands, scripts, and messages."""
