"""In which layers a model separates the senses of a word."""
