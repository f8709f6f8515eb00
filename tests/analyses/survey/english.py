"""Thousands of English sentences that ship with Python: the language reference."""

import re
from pydoc_data.topics import topics


def sentences(count):
    """Return this number of distinct sentences with at least four words, shuffled across topics."""
    whole = "\n\n".join(topics[name] for name in sorted(topics))
    paragraphs = [" ".join(block.split()) for block in re.split(r"\n\s*\n", whole)]
    found = [
        each
        for paragraph in paragraphs
        for each in re.split(r"(?<=[a-z)\"][.?!]) (?=[A-Z])", paragraph)
        if re.fullmatch(r"[A-Z][^|{}\\]+[.?!:]", each) and each.count(" ") > 3
    ]
    different = sorted(dict.fromkeys(found), key=lambda each: each[::-1])
    assert len(different) >= count
    return different[:count]
