"""One attention map, and the maps of all heads."""
