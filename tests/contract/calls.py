"""Every public function with a call that works, and a value other than the default of each keyword.

A keyword without a value fails `test_keywords.py`. `With(value, …)` names the other arguments of a
call in which the keyword applies. `IDLE` lists where a keyword may change nothing, and why: it is
for every input, and acts on some.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from families import tiny
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from media import chirp, picture, seeing
from transformers import BertForTokenClassification

import attnviz
from attnviz import plot
from attnviz.results.base import digests

TEXT, OTHER = "the unloved bank left", "a dog saw the bank"
SENSES = {"river": ["a bank left", "the bank saw"], "money": ["we saw a bank", "no bank left"]}
CORPUS = [TEXT, OTHER]


@dataclass(frozen=True)
class With:
    """A value of a keyword, and other arguments of the call that it is for."""

    value: Any
    others: dict[str, Any]

    def __init__(self, value: Any, **others: Any) -> None:
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "others", others)


@dataclass(frozen=True)
class Call:
    """A public function, the arguments of a call that works, and values of its keywords.

    values : beside those of `COMMON`, and the other value of each flag.
    contexts : other calls with structurally different arguments. In each of them every keyword
    changes what is returned, or is refused.
    """

    function: Callable[..., Any]
    base: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    contexts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parameters = inspect.signature(self.function).parameters
        flags = {name: not one.default for name, one in parameters.items() if is_flag(one)}
        known = {**COMMON, **flags, **self.values}
        named = {name: known[name] for name in self.keywords() if name in known}
        object.__setattr__(self, "values", {**named, **self.values})

    def keywords(self) -> list[str]:
        """Return the names of all parameters with which a call may differ."""
        return [
            name
            for name, parameter in inspect.signature(self.function).parameters.items()
            if name != "self" and parameter.kind is not parameter.VAR_KEYWORD
        ]


def is_flag(parameter: inspect.Parameter) -> bool:
    return isinstance(parameter.default, bool)


def names_in(stub: str) -> list[str]:
    """Return the functions that a stub of the package lists."""
    tree = ast.parse(Path(attnviz.__file__).with_name(stub).read_text("utf-8"))
    return [
        imported.name
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for imported in statement.names
    ]


def of_two_layers(family: str, seed: int = 0) -> Any:
    """Return a tiny model without its third layer."""
    module = tiny(family, seed=seed)
    layers = module.bert.encoder.layer if family == "bert" else module.transformer.h
    del layers[2:]
    module.config.num_hidden_layers = 2
    return module


def short():
    """Return a model that reads six tokens."""
    module = of_two_layers("bert")
    module.config.max_position_embeddings = 6
    return attnviz.load(module, tokenizer=it.tokenizer)


def saved():
    """Return the file of a map."""
    path = Path(mkdtemp()) / "result.safetensors"
    attnviz.save_result(it.map, path)
    return path


def written(name, text):
    """Return a file with a text."""
    path = Path(mkdtemp()) / name
    path.write_text(text)
    return path


CORPUS_FILE = "text,title\nthe bank left,a dog\nthe river bank,we saw a bank\n"
# Models and results that the calls share, each made once
THINGS: dict[str, Callable[[], Any]] = {
    "tokenizer": lambda: attnviz.load().tokenizer,
    "bert": lambda: attnviz.load(of_two_layers("bert"), tokenizer=it.tokenizer),
    "gpt": lambda: attnviz.load(of_two_layers("gpt2"), tokenizer=it.tokenizer),
    "bart": lambda: attnviz.load(tiny("bart"), tokenizer=it.tokenizer),
    "labels": lambda: attnviz.load(
        BertForTokenClassification(it.bert.module.config), tokenizer=it.tokenizer
    ),
    "vit": lambda: seeing("vit", it.tokenizer),
    "ear": lambda: seeing("wav2vec2", it.tokenizer),
    "image": lambda: np.asarray(picture()),
    "result": lambda: it.bert.attend(TEXT),
    "causal": lambda: it.gpt.attend(TEXT),
    "other": lambda: it.bert.attend(OTHER),
    "seen": lambda: it.vit.attend(image=it.image),
    "map": lambda: attnviz.attention_map(it.result, layer=0, head=1),
    "maps": lambda: attnviz.head_maps(it.result),
    "stages": lambda: attnviz.steps(it.result, layer=1, head=1),
    "explained": lambda: attnviz.explain_generation("the bank", generate=1, model=it.gpt),
    "surveyed": lambda: attnviz.survey(CORPUS, model=it.bert),
    "explored": lambda: attnviz.explore(CORPUS, model=it.bert),
    "bart_result": lambda: it.bart.attend(TEXT, target="a dog"),
    "senses": lambda: attnviz.senses("bank", SENSES, model=it.bert),
    "shift": lambda: attnviz.shift("bank", TEXT, model=it.bert),
    "explain": lambda: attnviz.explain("the bank", model=it.gpt),
    "ablation": lambda: attnviz.ablate(TEXT, word="bank", model=it.bert),
    "check": lambda: attnviz.check(it.result.weights(), it.result),
    "compared": lambda: attnviz.compare(CORPUS, models=[it.bert, it.sharper]),
    "sharper": lambda: attnviz.load(of_two_layers("bert", seed=1), tokenizer=it.tokenizer),
    "short": short,
    "saved": saved,
    "table": lambda: written("corpus.csv", CORPUS_FILE),
    "attentions": lambda: torch.nn.ModuleDict(
        {name: torch.nn.MultiheadAttention(8, 2, batch_first=True) for name in ("first", "second")}
    ),
    "example": lambda: written("own.json", '{"Q": [[1]], "K": [[1], [2]], "V": [[1], [2]]}'),
}


class Things:
    @cache  # noqa: B019  one instance
    def __getattr__(self, name: str) -> Any:
        if name not in THINGS:
            raise AttributeError(name)
        return THINGS[name]()


it = Things()


class Later:
    """A value that is made when a call needs it, such as axes to draw into."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class Of:
    """The shared things by name, made later."""

    def __getattr__(self, name: str) -> Later:
        return Later(lambda: getattr(it, name))


of = Of()


def method(name):
    """Return a method of a result, which is made later."""
    return lambda **keywords: getattr(it.result, name)(**keywords)


def new_axes():
    return Figure().add_subplot()


def recorded(*, modules=None, calls=None, queries=None, keys=None, grid=None, mean=False):
    """Return what `attnviz.record` records of a program that calls two attentions, one twice."""
    labels = {"queries": queries, "keys": keys, "grid": grid}
    with attnviz.record(modules=modules, calls=calls, mean=mean, **labels) as recording:
        x = it.attentions["first"](*[torch.ones(1, 4, 8)] * 3)[0]
        x = it.attentions["second"](*[x] * 3)[0]
        it.attentions["second"](*[x] * 3)
    return recording.result()


AXES = Later(new_axes)
FOLDER = Later(lambda: Path(mkdtemp()) / "survey")
FILE = Later(lambda: Path(mkdtemp()) / "new.npz")
FIGURES = {"width": 150, "caption": "full"}
# By the name of the parameter, in every function where no other value stands
COMMON = {
    **FIGURES, "figure": Later(lambda: Figure(figsize=(4, 3))), "result": of.other, "text": OTHER,
    "model": of.gpt, "layer": 1, "head": 1, "word": "left", "methods": "rollout",
    "rows": slice(0, 2), "columns": slice(0, 2), "special": "remove", "title": "a title",
}  # fmt: skip
INPUTS = {
    "image": With(of.image, text=None, model=of.vit),
    "audio": With(chirp(0.3), text=None, model=of.ear),
    "sampling_rate": With(8000, audio=chirp(0.3), text=None, model=of.ear),
    "pair": "a dog",
    "target": With("a dog", model=of.bart),
    "model": of.gpt,
    "truncate": With(True, model=of.short),
    "special_tokens": With("split", text="the [MASK] left"),
    "generate": With(2, model=of.gpt),
    "mode": "streamed",
    "positions": With("all", text=None, audio=chirp(0.1), sampling_rate=16000, model=of.ear),
}
CORPORA = {
    "texts": [OTHER, "a dog"],
    "column": With("title", texts=of.table),
    "truncate": With(True, model=of.short),
    "skip_bad": With(True, texts=[TEXT, 3]),
    "seed": 7,
}
MODEL = of.bert
RESULT = of.result

CALLS: dict[str, Call] = {
    "load": Call(
        attnviz.load,
        {
            "name_or_path_or_model": Later(lambda: tiny("bert")),
            "tokenizer": of.tokenizer,
        },
        {
            "name_or_path_or_model": Later(lambda: tiny("gpt2")),
            "tokenizer": None,
            "processor": With(
                Later(lambda: it.vit.checkpoint.processors.image),
                name_or_path_or_model=Later(lambda: it.vit.module),
            ),
            "device": "meta",
            "dtype": "float64",
            "device_map": "auto",
            "offload_folder": Later(mkdtemp),
            "special_tokens": "split",
            "target_tokenizer": of.tokenizer,
        },
    ),
    "attend": Call(
        attnviz.attend,
        {"text": TEXT, "model": MODEL},
        {
            **INPUTS,
            "inputs": With(
                Later(lambda: dict(it.tokenizer(OTHER, return_tensors="pt"))), text=None
            ),
            "queries": ["a"],
            "keys": ["a"],
            "layers": [1],
            "heads": With([1], mode="streamed"),
            "cells": 2,
            "top": 2,
            "exact": With([1], mode="streamed"),
        },
        {
            "several": {"text": [TEXT, OTHER], "model": MODEL},
            "streamed": {"text": TEXT, "mode": "streamed", "model": MODEL},
            "image": {"image": of.image, "model": of.vit},
            "generated": {"text": TEXT, "generate": 1, "model": of.gpt},
        },
    ),
    "record": Call(
        recorded,
        {},
        {
            "modules": "second",
            "calls": [0],
            "queries": ["a", "b", "c", "d"],
            "keys": ["a", "b", "c", "d"],
            "grid": (2, 2),
        },
    ),
    "verify": Call(attnviz.verify, {"text": TEXT, "model": MODEL}, INPUTS),
    "from_weights": Call(
        attnviz.from_weights,
        {"weights": np.eye(2), "tokens": ["a", "b"]},
        {
            "weights": np.full((2, 2), 0.5),
            "tokens": ["c", "b"],
            "keys": ["c", "d"],
            "model": "mine",
        },
    ),
    "check": Call(
        attnviz.check,
        {"weights": Later(lambda: it.result.weights()), "text": TEXT, "model": MODEL},
        {
            "weights": Later(lambda: it.result.weights().flip(1)),
            "stack": "decoder",
        },
        {"result": {"weights": Later(lambda: it.result.weights()), "text": RESULT}},
    ),
    "attention_map": Call(
        attnviz.attention_map,
        {"result": RESULT, "layer": 0, "head": 1},
        {
            "head": 0,
            "notes": ["a note"],
        },
    ),
    "head_maps": Call(attnviz.head_maps, {"result": RESULT}, {"special": "hide"}),
    "find_heads": Call(
        attnviz.find_heads,
        {"result": of.other, "query": "dog", "key": "bank"},
        {"result": RESULT, "query": "saw", "key": "saw"},
    ),
    "rank_heads": Call(attnviz.rank_heads, {"result": RESULT}),
    "steps": Call(
        attnviz.steps,
        {"result": RESULT, "layer": 0, "head": 0, "word": "bank"},
        {"model": With(of.gpt, result=TEXT)},
    ),
    "senses": Call(
        attnviz.senses,
        {"word": "bank", "sentences": SENSES, "model": MODEL},
        {"sentences": {"river": SENSES["money"], "money": SENSES["river"]}},
    ),
    "shift": Call(
        attnviz.shift,
        {"word": "bank", "text": TEXT, "model": MODEL},
        {
            "toward": {"a": "a dog", "b": "the river"},
            "reference": "mask",
        },
    ),
    "explain": Call(
        attnviz.explain,
        {"text": "the bank", "model": of.gpt},
        {
            "text": "a dog",
            "target": "left",
            "against": "left",
            "word": With("bank", model=of.labels),
            "similar_to": "a dog",
            "groups": With(["the dog"], text="the dog sees the bank"),
            "number": With("logit", target="left"),
            "reference": "a dog",
            "generate": 2,
            "decoder": With("a dog", model=of.bart),
            "model": With(MODEL, text="the [MASK] bank"),
        },
        {"two choices": {"text": "the bank", "against": "dog", "model": of.gpt}},
    ),
    "explain_generation": Call(
        attnviz.explain_generation,
        {"text": "the bank", "generate": 1, "model": of.gpt},
        {"text": "a dog", "generate": 2, "model": MODEL},
    ),
    "ablate": Call(
        attnviz.ablate,
        {"texts": TEXT, "word": "bank", "heads": [(0, 1)], "model": of.gpt},
        {
            "texts": OTHER,
            "target": With("left", word=None),
            "against": With("left", word=None),
            "heads": [(1, 1)],
            "how": "zero",
            "knock_out": "the",
            "patch": "the unloved dog left",
            "effect": "direct",
            "model": MODEL,
        },
        {"encoder": {"texts": TEXT, "word": "bank", "heads": [(0, 1)], "model": MODEL}},
    ),
    "survey": Call(
        attnviz.survey,
        {"texts": CORPUS, "model": MODEL},
        {
            **CORPORA,
            "probe": "previous",
            "out": FOLDER,
            "engine": "ray?",
            "stack": "linear",
        },
        {"images": {"texts": Later(lambda: [it.image, it.image]), "model": of.vit}},
    ),
    "explore": Call(attnviz.explore, {"texts": CORPUS, "model": MODEL}, CORPORA),
    "compare": Call(
        attnviz.compare,
        {
            "texts": CORPUS,
            "models": Later(lambda: [it.bert, it.sharper]),
        },
        {
            **CORPORA,
            "models": Later(lambda: [it.sharper, it.bert]),
            "truncate": With(True, models=Later(lambda: [it.short, it.sharper])),
            "seed": With(7, texts=[f"the bank {letter}" for letter in "abcdefghijklmnop"]),
        },
    ),
    "example": Call(attnviz.example, {"name": "cat"}, {"name": "likes", "file": of.example}),
    "view": Call(
        attnviz.view,
        {"result": RESULT},
        {
            "compare": Later(lambda: it.sharper.attend(TEXT)),
            "layer": 0,
            "show": "token",
            "explain": With(
                of.explained,
                result=Later(lambda: it.gpt.attend("the bank", generate=2)),
            ),
            "size": 1e-6,
            "model": With(of.gpt, result=TEXT),
        },
        {"explored": {"result": of.explored}},
    ),
    "save_result": Call(
        attnviz.save_result,
        {"result": of.map, "path": FILE},
        {
            "result": of.maps,
            "path": of.saved,
            "force": With(True, path=of.saved),
        },
    ),
    "load_result": Call(
        attnviz.load_result,
        {"path": of.saved},
        {"path": of.example, "kind": attnviz.SensesResult},
    ),
    "architectures": Call(attnviz.architectures, {}, {"names": "bert", "state": "agrees"}),
    "doctor": Call(attnviz.doctor, {}),
    "plot.heatmap": Call(
        plot.heatmap,
        {"result": RESULT},
        {
            "patch": (0, 0),
            "overview": With(True, layer=1, head=1),
            "ax": AXES,
            "vmin": 0.1,
            "vmax": 3.5,
            "norm": Later(lambda: Normalize(0, 0.3)),
            "cmap": "magma",
            "annot": False,
            "cbar_ax": AXES,
            "figsize": (4, 3),
        },
        {
            "map": {"result": of.map},
            "axes": {"result": RESULT, "layer": 0, "head": 0, "ax": AXES},
            "image": {"result": of.seen, "layer": 0, "head": 0},
        },
    ),
    "plot.heads": Call(
        plot.heads,
        {"result": RESULT},
        {"special": "hide"},
        {"maps": {"result": of.maps}},
    ),
    "plot.steps": Call(
        plot.steps,
        {"result": RESULT, "layer": 0, "head": 0, "word": "bank"},
        contexts={"stages": {"result": of.stages}},
    ),
    "plot.attention_vector": Call(
        plot.attention_vector,
        {"result": RESULT, "layer": 0, "head": 0, "word": "bank"},
        contexts={"stages": {"result": of.stages}},
    ),
    "plot.example": Call(plot.example, {"worked": "cat"}, {"worked": "likes"}),
    **{
        f"plot.{name}": Call(getattr(plot, name), {"result": getattr(of, made)}, {"result": RESULT})
        for name, made in {
            "ablate": "ablation", "check": "check", "compare": "compared", "explain": "explain",
            "senses": "senses", "shift": "shift", "survey": "surveyed",
        }.items()
    },
    "plot.text": Call(
        plot.text,
        {"result": of.map},
        {"result": of.shift, "query": "bank", "measured": True},
        {
            "shift": {"result": of.shift},
            "explain": {"result": of.explain, "measured": False},
        },
    ),
    "plot.add_caption": Call(
        plot.add_caption,
        {"figure": Later(Figure), "text": "a caption"},
        {
            "figure": Later(lambda: Figure(figsize=(3, 3))),
            "text": "another",
            "agreement": Later(lambda: it.result.agreement),
        },
    ),
    "plot.save": Call(
        plot.save,
        {"figure": Later(Figure), "path": Later(lambda: Path(mkdtemp()) / "new.png")},
        {
            "figure": Later(lambda: Figure(figsize=(3, 3))),
            "path": Later(lambda: Path(mkdtemp()) / "new.svg"),
            "force": With(True, path=Later(lambda: read_only())),
        },
    ),
    "plot.style": Call(
        plot.style,
        {},
        {
            "texts": ["漢字"],
            "font": "DejaVu Serif",
            "theme": "dark",
            "context": "talk",
            "scale": 2,
        },
    ),
    "AgreementReport.largest_difference": Call(
        lambda stage="weights": it.result.agreement.largest_difference(stage),
        {},
        {"stage": "query"},
    ),
    "AgreementReport.summary": Call(
        lambda short=False: it.result.agreement.summary(short=short), {}, {"short": True}
    ),
    "AttentionResult.stack": Call(
        lambda name=None: it.bart_result.stack(name), {}, {"name": "encoder"}
    ),
    "AttentionResult.weights": Call(
        lambda layer=None, head=None: it.result.weights(layer, head), {}, {"layer": 1, "head": 1}
    ),
    "AttentionResult.to_frame": Call(
        method("to_frame"), {}, {"layer": 1, "head": 1, "words": False}
    ),
    "AttentionMap.to_frame": Call(
        lambda wide=False: it.map.to_frame(wide=wide), {}, {"wide": True}
    ),
}  # fmt: skip

IDLE = {
    ("attend", "positions"): "of a text and an image all are checked by default",
    ("attend", "truncate"): "only texts that are too long are cut",
    ("attend", "special_tokens"): "only texts with the spelling of a special token have one",
    ("attend", "mode"): "auto chooses by the length of the text",
    ("ablate", "keep_sink"): "a text of an encoder has no sink that could be kept",
    ("survey", "skip_bad"): "only texts that cannot be read are left out",
    ("survey", "truncate"): "only texts that are too long are cut",
    ("plot.heatmap", "words"): "only texts have words of several tokens",
    ("plot.heatmap", "annot"): "cells without room have no numbers by default",
}


def read_only() -> Path:
    path = Path(mkdtemp()) / "old.png"
    path.touch(0o444)
    return path


def made(value: Any) -> Any:
    """Return a value, made now if it is made later."""
    return value.make() if isinstance(value, Later) else value


def outcome(call: Call, arguments: dict[str, Any]) -> str:
    """Return a digest of what a call returns and writes, or its error."""
    arguments = {name: made(value) for name, value in arguments.items()}
    try:
        returned = call.function(**arguments)
        written = next((arguments[name] for name in ("path", "out") if name in arguments), None)
        return f"{digests([{'state': state(returned)}])[0]} {state(written)}"
    except (attnviz.AttnvizError, TypeError, UserWarning) as error:
        return f"refused: {error}"


_FOUND: dict[tuple[Callable[..., Any], str], str] = {}


def outcome_once(call: Call, arguments: dict[str, Any]) -> str:
    """Return the outcome of a call, made once."""
    key = call.function, str(arguments)
    if key not in _FOUND:
        _FOUND[key] = outcome(call, arguments)
    return _FOUND[key]


def state(value: Any) -> Any:
    """Return what can be seen of a value, in types that have a digest."""
    if isinstance(value, list | tuple):
        return [state(item) for item in value]
    if isinstance(value, Figure):
        value.set_dpi(40)
        canvas = FigureCanvasAgg(value)
        canvas.draw()
        return [str(value.get_size_inches()), bytes(canvas.buffer_rgba()).hex()]
    if hasattr(value, "get_figure"):
        return state(value.get_figure(root=True))
    if isinstance(value, attnviz.Model):
        point = value.checkpoint
        parts = [type(part).__name__ for part in vars(point.processors).values()]
        return [repr(value), type(value.tokenizer).__name__, *parts, str(point.special_tokens)]
    if isinstance(value, attnviz.View):
        return value.data()
    if hasattr(value, "to_json"):  # a table
        return value.to_json()
    if isinstance(value, Path):
        files = sorted(value.rglob("*")) if value.is_dir() else [value]
        return [(file.suffix, file.stat().st_size) for file in files if file.is_file()]
    if hasattr(value, "__enter__"):
        import matplotlib as mpl

        with value:
            return repr(dict(mpl.rcParams))
    return value
