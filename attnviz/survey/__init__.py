"""What each head does over a corpus, beside what it would do on shuffled tokens."""
