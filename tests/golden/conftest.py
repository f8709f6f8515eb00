"""What the goldens share: the widths of texts in figures, and the runs of one model."""

from one_ruler import one_ruler  # noqa: F401
