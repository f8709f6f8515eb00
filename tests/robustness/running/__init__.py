"""How the cases of the catalogue are run, and what is checked of every one of them."""
