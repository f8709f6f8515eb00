"""Models of other libraries than transformers, and what their attention is compared with."""
