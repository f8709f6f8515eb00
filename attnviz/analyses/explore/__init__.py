"""What every head of a model does: statistics, examples, what it looks for and what it writes."""
