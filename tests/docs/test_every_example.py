"""Every public name has an example, which runs with the doctests."""

import doctest
import inspect
import operator
import sys

import pytest

import attnviz

NAMES = [*attnviz.__all__, *(f"plot.{name}" for name in attnviz.plot.__all__)]


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example(name):
    thing = inspect.unwrap(operator.attrgetter(name)(attnviz))
    module = thing if inspect.ismodule(thing) else sys.modules[thing.__module__]
    own = "" if module is thing else f".{thing.__qualname__}"
    (found,) = (
        test for test in doctest.DocTestFinder().find(module) if test.name == module.__name__ + own
    )
    assert found.examples
    assert "attnviz." in "".join(example.source for example in found.examples)
