"""Golden outputs from before the restructuring; every later version must reproduce them."""
