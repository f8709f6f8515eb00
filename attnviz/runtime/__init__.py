"""Progress, memory, and how exceptions and logs of other libraries are handled."""
