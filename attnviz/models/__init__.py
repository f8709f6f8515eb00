"""Loading pretrained models and their processors."""
