"""What is captured once for all faults that are planted in it."""

import pytest
from families import TEXTS, tiny

import attnviz
from attnviz.capture import capture
from attnviz.inputs import encode


@pytest.fixture(scope="module")
def captured(tokenizer):
    """Return what was captured of the first texts (by default all), by family and dtype."""
    found = {}

    def of(family, dtype, count=None):
        key = family, dtype, count
        if key not in found:
            if family == "minilm":  # the real one
                model = attnviz.load(dtype=dtype)
            else:
                model = attnviz.load(tiny(family, dtype), tokenizer=tokenizer)
            batch = encode(model.checkpoint, TEXTS[:count])
            found[key] = capture(model.module, batch.inputs, batch.axes)
        return found[key]

    return of
