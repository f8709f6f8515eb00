"""Does our attention agree with the model's: the command `verify`."""
