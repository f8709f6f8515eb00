"""The drawing kit: style, layout, ticks, captions, saving."""
