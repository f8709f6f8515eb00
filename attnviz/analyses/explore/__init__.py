"""What every head of a model does: statistics, examples and what it writes."""
