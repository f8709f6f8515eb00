"""What moved a word's vector: layers, heads and source words."""
