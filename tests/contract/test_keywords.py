"""Every keyword of every public function changes what is returned, or is refused.

The calls and the values are in `calls.py`.
"""

import inspect
import os
from dataclasses import replace

import numpy as np
import pytest

import attnviz
from contract.calls import CALLS, FIGURES, IDLE, With, names_in, outcome, outcome_once, read_only
from contract.test_options import in_turn


def arguments_of(call, keyword, context=None):
    """Return the arguments without and with a value of a keyword."""
    base, value = call.contexts[context] if context else call.base, call.values[keyword]
    if isinstance(value, With):
        base, value = base if context else {**base, **value.others}, value.value
    return base, {**base, keyword: value}


def is_ignored(call, keyword, context=None):
    """Return whether a call returns the same with a value of a keyword as without it."""
    before, after = arguments_of(call, keyword, context)
    return outcome_once(call, after) == outcome_once(call, before)


def missing_values(call):
    """Return the keywords of a function without a value in the table."""
    listed = {*call.values}
    return [name for name in call.keywords() if name not in listed]


WITHIN = [
    (name, keyword, context)
    for name, call in CALLS.items()
    for context, base in call.contexts.items()
    for keyword in call.values
    if keyword not in base
]


# What `plot.steps` selects like `steps` and `plot.attention_vector`, in a figure that takes long
SELECTED = {"head", "word"}
COMMANDS = ("ablate", "check", "compare", "example", "explain", "heads", "heatmap", "senses",
            "shift", "steps", "survey")  # fmt: skip
# The commands that call the function of their name with the options that are typed
CALLING = ("ablate", "compare", "explain", "explore", "senses", "shift", "survey")
WRITING = {"out", "force"}  # what a command does itself, too


def of_functions():
    """Return all keywords; those that `test_options.py` gives to a command are long."""
    typed = {case.values for case in in_turn() if not case.marks and case.values[0] in CALLING}
    for name, call in CALLS.items():
        for keyword in call.values:
            called = (name, keyword) in typed and keyword not in WRITING
            # `test_options.py` draws the same figures with the options of commands
            rests = name.removeprefix("plot.") in COMMANDS and keyword in FIGURES
            rests = rests or called or (name == "plot.steps" and keyword in SELECTED)
            yield pytest.param(name, keyword, marks=pytest.mark.long if rests else [])


def within():
    """Return keywords of other calls; of figures, each runs in one of them, and those of all."""
    for name, keyword, context in WITHIN:
        call = CALLS[name]
        others = [other for other, base in call.contexts.items() if keyword not in base]
        chosen = others[[*call.values].index(keyword) % len(others)]
        rests = context != chosen or (keyword in FIGURES and len(others) == 1)
        rests = rests or name == "plot.steps"  # tests/figures/test_steps.py
        marks = pytest.mark.long if rests and name.startswith("plot.") else []
        yield pytest.param(name, keyword, context, marks=marks)


def numbers():
    """Return the keywords whose value is a whole number, or a list of one."""
    for name, call in CALLS.items():
        for keyword, value in call.values.items():
            value = value.value if isinstance(value, With) else value
            number = value[0] if isinstance(value, list) else value
            if isinstance(number, int) and not isinstance(number, bool) and keyword != "width":
                rests = name in ("plot.steps", "plot.attention_vector")  # like `steps`
                yield pytest.param(name, keyword, number, marks=pytest.mark.long if rests else [])


def test_every_public_function_is_in_the_table():
    functions = {
        name for name in names_in("__init__.pyi") if inspect.isroutine(getattr(attnviz, name))
    }
    figures = {f"plot.{name}" for name in names_in("plot.pyi")}
    assert functions | figures == {name for name in CALLS if name.split(".")[0][0].islower()}


@pytest.mark.parametrize("name", CALLS)
def test_every_keyword_has_a_value(name):
    assert not missing_values(CALLS[name])


@pytest.mark.parametrize(("name", "keyword"), [*of_functions()])
def test_a_keyword_changes_the_result_or_is_refused(name, keyword):
    if (name, keyword) == ("plot.save", "force") and os.access(read_only(), os.W_OK):
        pytest.skip("this user may write to read-only files")
    assert not is_ignored(CALLS[name], keyword)


@pytest.mark.parametrize(("name", "keyword", "context"), [*within()])
def test_a_keyword_that_cannot_apply_is_refused(name, keyword, context):
    ignored = is_ignored(CALLS[name], keyword, context)
    if (name, keyword) not in IDLE:
        assert not ignored


@pytest.mark.parametrize(("name", "keyword", "number"), [*numbers()])
def test_a_number_of_numpy_is_a_number(name, keyword, number):
    call = CALLS[name]
    _, arguments = arguments_of(call, keyword)
    plain, numpy = (
        outcome_once(call, {**arguments, keyword: of(number)}) for of in (int, np.int64)
    )
    assert plain == numpy
    assert not plain.startswith("refused")


@pytest.mark.parametrize("name", CALLS)
def test_the_call_works_and_is_the_same_again(name):
    """A keyword that a function drops is seen: a call without it returns the same."""
    call = CALLS[name]
    first = outcome_once(call, call.base)
    assert not first.startswith("refused"), first
    assert outcome(call, call.base) == first


def test_a_dropped_keyword_is_found():
    """Planted: `attention_map` without `special`, and a keyword that is not in the table."""
    call = CALLS["attention_map"]

    def drops(result, *, layer, head, special="keep", **others):
        return attnviz.attention_map(result, layer=layer, head=head, **others)

    assert is_ignored(replace(call, function=drops), "special")
    assert not is_ignored(replace(call, function=drops), "words")

    def has_more(result, *, layer, head, words, special, rows, columns, notes, sharpness=1):
        pass

    assert missing_values(replace(call, function=has_more)) == ["sharpness"]
