"""Why a model predicted a token or a class: which words raised it, beside the measured effect."""
