"""A worked example from a book or a lecture, replayed."""
