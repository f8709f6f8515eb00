"""Another tool's weights beside those of attnviz: whether they agree, and where they part."""
