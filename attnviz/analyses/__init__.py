"""What attnviz computes and draws from captured attention: one folder for each analysis."""
