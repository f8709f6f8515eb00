"""The drawing kit: style and sizes, pages with captions, cells with their labels."""
