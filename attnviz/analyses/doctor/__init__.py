"""What of attnviz works on this machine, what is missing, and how to install it."""
