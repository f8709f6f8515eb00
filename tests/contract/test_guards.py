"""Every guard stands at every entry: bad values of each kind of argument, at every function.

A parameter has a kind by its name; a parameter without a kind fails. The calls are in `calls.py`.
"""

import os
from pathlib import Path

import pytest
import transformers

import attnviz
from contract.calls import CALLS, CORPUS, With, made, state

LAYER = (99, -99, True, "one", 1.5)  # of an index that a model has
COUNT = (0, -1, True, 1.5, "two")
FLAG = ("no", 1, None)
SIZE = (0, -3, True, "wide", float("nan"))
WORDS = ("", " ", 3, "a\ud800b")
FILE = ("", 3, "no/such/folder/x.npz", "folder", "fifo.npz")
BAD = {
    "index": LAYER,
    "count": COUNT,
    "length": (*COUNT, 10**9),
    "place": ("", " ", 99, -1, True, 1.5, "a\ud800b"),
    "folder": ("", 3, "no\0name"),
    "flag": FLAG,
    "size": SIZE,
    "words": WORDS,
    "file": FILE,
    "number": (True, "low", -1, float("nan")),
    "title": (3, "a\ud800b"),
    "choice": ("no such choice", 3),
}
KINDS = {
    "index": {"layer", "head", "layers", "exact", "calls"},
    "count": {"cells"},
    "length": {"generate"},
    "folder": {"out"},
    "flag": {
        "matrix", "words", "cbar", "truncate", "skip_bad", "force", "verify_causally", "measure",
        "raw", "keep_sink", "sample", "mean",
    },
    "size": {"width", "size"},
    "words": {
        "text", "texts", "pair", "target", "query", "key", "word", "against", "knock_out", "patch",
        "reference", "sentences", "toward", "similar_to", "groups",
    },
    "file": {"path", "file"},
    "number": {"seed", "top", "sampling_rate", "scale"},
    "title": {"title", "column", "stack", "font", "decoder"},
    "choice": {
        "special", "mode", "positions", "how", "effect", "number", "show", "caption", "engine",
        "methods", "probe", "name", "state", "theme", "special_tokens", "context",
    },
}  # fmt: skip
# Parameters that mean something else in some functions.
NAMED = {
    ("attend", "heads"): "index",
    ("plot.heatmap", "patch"): None,
    ("from_weights", "model"): "title",
    ("plot.add_caption", "text"): "title",
    ("plot.style", "texts"): None,
    ("steps", "word"): "place",
    ("plot.steps", "word"): "place",
    ("plot.attention_vector", "word"): "place",
    ("plot.text", "query"): "place",
    # Methods of results have no such guard yet.
    ("AgreementReport.largest_difference", "stage"): None,
    ("AgreementReport.summary", "short"): None,
    ("AttentionMap.to_frame", "wide"): None,
    ("AttentionResult.stack", "name"): "choice",
}
# What has no kind: objects, whose guards are tests of their own.
OBJECTS = {
    "result", "model", "models", "weights", "tokens", "keys", "rows", "columns", "overview",
    "heads", "ax", "vmin", "vmax", "norm", "cmap", "annot", "measured", "cbar_ax", "agreement",
    "figure",
    "worked", "compare", "explain", "image", "audio", "notes", "names", "tokenizer", "processor",
    "inputs", "queries", "modules", "grid", "target_tokenizer", "device", "dtype", "device_map",
    "offload_folder", "name_or_path_or_model", "figsize", "kind",
}  # fmt: skip


def kind_of(name, parameter):
    """Return the kind of a parameter, by its name; None for an object."""
    if (name, parameter) in NAMED:
        return NAMED[name, parameter]
    found = [kind for kind, names in KINDS.items() if parameter in names]
    return found[0] if found else None


ENTRIES = [
    (name, parameter, kind)
    for name, call in CALLS.items()
    for parameter in call.values
    if (kind := kind_of(name, parameter)) is not None
]
CASES = [
    (name, parameter, value)
    for name, parameter, kind in ENTRIES
    for value in BAD[kind]
    if not (value is None and CALLS[name].base.get(parameter, 0) is None)
]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """A folder with a pipe that nobody writes to, in which relative names lie."""
    with pytest.MonkeyPatch.context() as patch:
        here = tmp_path_factory.mktemp("here")
        patch.chdir(here)
        (here / "folder").mkdir()
        os.mkfifo(here / "fifo.npz")
        yield here


def arguments(name, parameter, value):
    """Return the arguments of a call with a value, in the list or mapping that it belongs to."""
    call, given = CALLS[name], CALLS[name].values[parameter]
    base = {**call.base, **(given.others if isinstance(given, With) else {})}
    inside = {
        "texts": lambda: [*CORPUS, value],
        "sentences": lambda: {"a": ["a bank", value], "b": ["the bank", "no bank"]},
        "toward": lambda: {"a": "a bank", "b": ["the bank", value]},
    }
    is_list = parameter in inside and kind_of(name, parameter) == "words"
    return {**base, parameter: inside[parameter]() if is_list else value}


def refusal(name, parameter, value):
    """Return the message of the error that a value gives; None if it is accepted."""
    given = {key: made(one) for key, one in arguments(name, parameter, value).items()}
    try:
        state(CALLS[name].function(**given))
    except attnviz.AttnvizError as error:
        return str(error)
    return None


def test_every_parameter_has_a_kind():
    known = OBJECTS.union(*KINDS.values())
    unknown = {
        (name, parameter)
        for name, call in CALLS.items()
        for parameter in call.values
        if parameter not in known and (name, parameter) not in NAMED
    }
    assert not unknown


def rotated():
    """Return the cases; of a figure, one bad width runs, another for each function."""
    place = {name: number for number, name in enumerate(CALLS)}
    for name, parameter, value in CASES:
        rests = parameter == "width" and value is not SIZE[place[name] % len(SIZE)]
        yield pytest.param(name, parameter, value, marks=pytest.mark.long if rests else [])


@pytest.mark.parametrize(("name", "parameter", "value"), [*rotated()])
def test_a_bad_value_is_refused_in_one_line(name, parameter, value):
    message = refusal(name, parameter, value)
    assert message is not None
    assert "\n" not in message
    assert message.isprintable()
    assert message[-1] in ".?"


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if "texts" in call.values])
def test_the_bad_text_of_several_is_named(name):
    if name == "plot.style":
        return
    message = refusal(name, "texts", 3)
    assert "ext 3" in message
    assert "ext 3 " in refusal(name, "texts", "")


@pytest.mark.parametrize("out", ["no\0name", "locked/survey"])
def test_the_place_of_the_output_is_checked_before_the_model(out, monkeypatch):
    def fails(*_, **__):
        raise AssertionError("the model was loaded first")

    Path("locked").write_text("a file, no folder")
    monkeypatch.setattr("attnviz.pipeline.attend.load_checkpoint", fails)
    with pytest.raises(attnviz.AttnvizError):
        attnviz.survey(CORPUS, out=out)


def test_a_missing_guard_is_found(monkeypatch):
    """Planted: `attention_map` whose layer is not checked."""
    call = CALLS["attention_map"]

    def unguarded(result, *, layer, head, **others):
        layer = layer if layer in (0, 1) else 0
        return attnviz.attention_map(result, layer=layer, head=head, **others)

    monkeypatch.setitem(CALLS, "attention_map", type(call)(unguarded, call.base, call.values))
    assert [refusal("attention_map", "layer", value) for value in LAYER[:2]] == [None, None]
    assert refusal("attention_map", "head", 99)


@pytest.mark.parametrize("name", ["ablate", "explain", "shift"])
def test_a_model_that_needs_more_than_a_text_is_refused_in_one_line(name, tokenizer):
    settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    boxes = transformers.BrosModel(transformers.BrosConfig(**settings, intermediate_size=16)).eval()
    model = attnviz.load(boxes, tokenizer=tokenizer)
    words = {"shift": ("train",)}.get(name, ())
    with pytest.raises(attnviz.ModelError, match="You have to specify bbox"):
        getattr(attnviz, name)(*words, "the train left", model=model)
