"""Every function of attnviz.plot refuses an argument of another type, in one line."""

import inspect
import re
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest

import attnviz
from attnviz import plot

DRAWING = [name for name in plot.__all__ if name not in ("add_caption", "save", "style")]
OBJECTS = ["text", 3, None, np.eye(3), SimpleNamespace(weights=1), plt.Figure]
# Other arguments are in tests/contract/test_guards.py.
WRONG = {
    "patch": [3, (1.5, 2)],
    "rows": [(0, 3), "0:3"],
    "columns": [3],
    "overview": ["no", 1],
    "heads": [(0, 1), "all", 3, [(0,)]],
    "ax": ["axes", 3],
    "vmin": ["low"],
    "vmax": [True],
    "norm": ["log"],
    "cmap": [3, "blu"],
    "annot": ["no"],
    "cbar_ax": [3],
    "notes": [3],
    "agreement": ["verified"],
    "texts": [3],
    "figure": ["fig.png", 3],
    "measured": ["no", 1],
    "figsize": [4, ("a", 1), ()],
}
# Results that take long: instances without numbers, which no wrong argument lets a figure read.
BLANK = {
    "senses": attnviz.SensesResult,
    "explain": attnviz.ExplainResult,
    "ablate": attnviz.AblationResult,
    "survey": attnviz.SurveyResult,
    "compare": attnviz.CompareResult,
    "check": attnviz.CheckResult,
}
ARGUMENTS = [
    (name, argument, value)
    for name in plot.__all__
    for argument, parameter in inspect.signature(getattr(plot, name)).parameters.items()
    if argument not in ("result", "worked") and parameter.kind is not parameter.VAR_KEYWORD
    for value in WRONG.get(argument, ())
    if value is not None or parameter.default is not None
    if (name, argument) not in [(other, "caption") for other in BLANK]  # read after the result
]


@pytest.fixture(scope="module")
def results(train):
    """What each function draws."""
    text = train.provenance.text
    moved = attnviz.shift("station", text)
    return {
        **dict.fromkeys(("heatmap", "heads", "steps", "attention_vector"), train),
        "example": "cat",
        "shift": moved,
        "text": moved,
        "style": None,
        "add_caption": plt.Figure(),
        "save": plt.Figure(),
        **{name: kind.__new__(kind) for name, kind in BLANK.items()},
    }


def use(name, *first, **keywords):
    """Call a function; enter the block that it may return."""
    returned = getattr(plot, name)(*first, **keywords)
    if name == "style":
        with returned:
            pass


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    assert message[-1] in ".?"
    return message


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", DRAWING)
def test_what_is_no_result_is_refused(name, value):
    with pytest.raises(attnviz.InputError) as error:
        getattr(plot, name)(value)
    if name == "text":
        assert "Give AttentionMap or ShiftResult or ExplainResult." in one_line(error)
    elif name != "example" or not isinstance(value, str):
        made = "attend" if name in ("heatmap", "heads", "steps", "attention_vector") else name
        assert f"Make one: {'attnviz.' * (made == name)}{made}(" in one_line(error)


@pytest.mark.parametrize("name", DRAWING)
def test_another_result_is_refused(name, train):
    other = (
        attnviz.rank_heads(train)
        if "attention" in str(inspect.signature(getattr(plot, name))).lower()
        else train
    )
    with pytest.raises(attnviz.InputError, match=f"{type(other).__name__} is not a result of"):
        getattr(plot, name)(other)


@pytest.mark.parametrize(("name", "argument", "value"), ARGUMENTS)
def test_an_argument_of_another_type_is_refused(name, argument, value, results, tmp_path):
    keywords = {argument: value}
    if name == "save" and argument != "path":
        keywords["path"] = tmp_path / "x.png"
    if name == "add_caption" and argument != "text":
        keywords["text"] = "a caption"
    is_first = argument == "figure" and name in ("add_caption", "save")
    first = () if name == "style" or is_first else (results[name],)
    with pytest.raises(attnviz.InputError) as error:
        use(name, *first, **keywords)
    message = one_line(error)
    assert argument in message.lower() or repr(value) in message


def test_numbers_of_numpy_are_numbers(train):
    plot.heatmap(train, layer=np.int64(1), head=np.int8(2), width=np.float32(89), cbar=np.True_)


def test_an_unknown_argument_of_a_heatmap_is_refused(train):
    with pytest.raises(attnviz.InputError, match="notes is no argument of heatmap"):
        plot.heatmap(train, layer=0, head=0, notes=3)
    with pytest.raises(attnviz.InputError, match="Did you mean annot"):
        plot.heatmap(train, layer=0, head=0, anot=True)
    plot.heatmap(train, layer=0, head=0, rasterized=True, linewidths=2, lw=1, snap=True)


@pytest.mark.parametrize("name", ["fig", "figure"])
def test_the_advice_for_a_figure_works_as_it_is_written(name, train):
    with pytest.raises(attnviz.InputError) as error:
        plot.heatmap(train, layer=0, head=0, **{name: plt.figure()})
    (code,) = re.findall(r"ax=(figure\.\w+\(\))", one_line(error))
    ax = eval(code, {"figure": plt.figure()})
    assert plot.heatmap(train, layer=0, head=0, ax=ax) is ax


@pytest.mark.parametrize(
    "wrong", ["anot", "axes", "ary", "figs", "figre", "kwarg", "selfs", "layr"]
)
def test_an_argument_that_is_suggested_is_not_refused(wrong, train):
    drawn = attnviz.attention_map(train, layer=0, head=0)
    with pytest.raises(attnviz.InputError, match=f"{wrong} is no argument") as error:
        plot.heatmap(drawn, **{wrong: None})
    _, _, names = one_line(error).partition("Did you mean ")
    for name in names.removesuffix("?").split(" or ") if names else ():
        assert "no argument" not in refusal(drawn, name)


def refusal(drawn, name):
    try:
        plot.heatmap(drawn, **{name: None})
    except (attnviz.InputError, TypeError) as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [("widht", "Did you mean width"), ("figsize", "Give the width in mm"), ("cmap", "One color")],
)
def test_an_unknown_argument_of_any_figure_is_named(wrong, hint, train):
    for name in set(plot.__all__) - {"heatmap"}:
        with pytest.raises(TypeError) as error:
            getattr(plot, name)(train, **{wrong: 3})
        is_figure = "width" in inspect.signature(getattr(plot, name)).parameters
        assert f"{name}() has no argument {wrong!r}." in one_line(error)
        assert not is_figure or hint in one_line(error)


def test_notes_of_a_map_are_texts(train):
    with pytest.raises(attnviz.InputError, match="notes must be a list of strings, not 3"):
        attnviz.attention_map(train, layer=0, head=0, notes=3)
