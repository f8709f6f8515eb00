"""Statistics of every head over a corpus, with intervals."""
