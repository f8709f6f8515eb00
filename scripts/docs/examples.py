"""Runs the examples of docstrings, and saves what they draw."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import operator
import re
import sys
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image

import attnviz
from attnviz.interactive import View
from attnviz.models import NAMED, NamedModel

NAMES = (*attnviz.__all__, *(f"plot.{name}" for name in attnviz.plot.__all__))


def docstring(name: str) -> str:
    """Return the docstring of a public name."""
    return inspect.getdoc(operator.attrgetter(name)(attnviz)) or ""


def models() -> set[NamedModel]:
    """Return the models that the examples load by their short names."""
    named = re.findall(r'model="([\w.-]+)"', "".join(map(docstring, NAMES)))
    return {NAMED[name] for name in named}


def run(name: str, folder: Path) -> Path | None:
    """Run the examples of a name; return its last figure as PNG, or its page as HTML."""
    examples = doctest.DocTestParser().get_examples(docstring(name))
    thing = inspect.unwrap(operator.attrgetter(name)(attnviz))
    globals_ = dict(vars(sys.modules[thing.__module__]))  # as doctest runs them
    own = set(globals_)
    plt.close("all")
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        for example in examples:
            try:
                exec(compile(example.source, name, "exec"), globals_)
            except attnviz.AttnvizError:
                if example.exc_msg is None:
                    raise
    made = [value for key, value in globals_.items() if key not in own]
    pages = [value for value in made if isinstance(value, View)]
    if pages:
        file = folder / f"{name}.html"
        pages[-1].save(file)
        return file
    figures = [getattr(value, "figure", None) for value in made]
    if not any(isinstance(figure, plt.Figure) for figure in figures):
        plt.close("all")
        return None
    file = folder / f"{name}.png"
    attnviz.plot.save([figure for figure in figures if isinstance(figure, plt.Figure)][-1], file)
    plt.close("all")
    return file


def shrink(source: Path, target: Path, width: int) -> None:
    """Save a picture at most this wide, in few bytes."""
    with Image.open(source) as picture:
        picture = picture.convert("RGB")
        if picture.width > width:
            picture = picture.resize((width, round(picture.height * width / picture.width)))
        target.parent.mkdir(parents=True, exist_ok=True)
        picture.save(target, quality=88, method=4)
