"""What attnviz gave before it was restructured, kept so that every later step can be held to it."""
