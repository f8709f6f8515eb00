"""Progress, memory, and the messages of other libraries."""
