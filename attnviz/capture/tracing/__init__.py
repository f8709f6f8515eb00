"""Attention found among the operators that a run executes, with no knowledge of the model."""
