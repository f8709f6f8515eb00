"""How `scripts/fetch_models.py` converts the model of each package, and checks the result."""
