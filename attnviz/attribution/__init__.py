"""Why a number of a model's output is what it is: exact splits, methods, and interventions."""
