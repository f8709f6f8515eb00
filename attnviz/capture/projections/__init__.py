"""How an attention module makes Q, K and V: proposed from what it holds, proven by its numbers."""
