"""What a model's output loses without a head, or a set of heads."""
