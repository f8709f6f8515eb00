"""One head, stage by stage."""
