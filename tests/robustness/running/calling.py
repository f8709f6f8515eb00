"""A run through the public functions: those of a command line, or an expression.

It ends like a command, so that the same is checked of both: an error of attnviz as one line with
its exit code; anything else that is raised with a traceback.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

import attnviz
from attnviz.app import app

_COMMANDS: Any = typer.main.get_command(app)
_DATA = (".json", ".npz", ".safetensors", ".parquet")


def call(arguments: Sequence[str], called: str) -> int:
    """Evaluate the expression, or do what the arguments ask for; return the exit code."""
    warnings.showwarning = show_warning
    try:
        found = evaluate(called) if called else do(arguments)
    except attnviz.AttnvizError as error:
        say(str(error))
        return error.exit_code
    if found is False:
        say(f"Expected True of {called}, got False.")
        return 1
    agreement = getattr(found, "agreement", found)
    return 0 if getattr(agreement, "verdict", "verified") == "verified" else 5


def say(message: str) -> None:
    """Print a message of attnviz as it is: it must be one line that can be printed."""
    print(f"attnviz: {message}", file=sys.stderr)


def show_warning(
    message: Warning | str, category: type[Warning], filename: str, *more: Any
) -> None:
    """Print what attnviz warns of; that of a library as Python does, and no case allows for it."""
    if issubclass(category, attnviz.AttnvizWarning):
        say(str(message))
    else:
        print(warnings.formatwarning(message, category, filename, *more[:1]), file=sys.stderr)


def evaluate(called: str) -> Any:
    """Return what an expression gives, in which the usual modules are known."""
    import numpy as np
    import torch
    import transformers

    known = {
        "attnviz": attnviz, "np": np, "torch": torch, "transformers": transformers,
        "formula": importlib.import_module("attnviz.formula.attention"),
    }  # fmt: skip
    return eval(called, {**known, "Path": Path})


def do(arguments: Sequence[str]) -> Any:
    """Do through public functions what is typed; return what carries the verdict."""
    with _COMMANDS.make_context("attnviz", list(arguments)) as context:
        name, command, rest = _COMMANDS.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        given = command.make_context(name, rest, parent=context).params
    if name != "example" and given.get("file"):
        given["text"] = given["file"].read_text("utf-8-sig")
    commands = (heatmap, heads, steps, view, verify, senses, shift, example, models)
    return {each.__name__: each for each in commands}[name](given)


def _load(given: dict[str, Any]) -> attnviz.Model:
    return attnviz.load(given["model"], device=given["device"].value, dtype=given["dtype"])


def _read(given: dict[str, Any], **kept: Any) -> attnviz.AttentionResult:
    what = {
        name: given[name]
        for name in ("text", "image", "audio", "pair", "target", "generate", "truncate")
    }
    return attnviz.attend(model=_load(given), **what, **kept)


def _write(given: dict[str, Any], default: str | None, drawn: Any, figure: Any) -> None:
    path = given["output"] or (None if given["json"] or default is None else Path(default))
    if path is not None and path.suffix.lower() in _DATA:
        attnviz.save_result(drawn(), path, force=given["force"])
    elif path is not None:
        attnviz.plot.save(figure(), path, force=given["force"])


def heatmap(given: dict[str, Any]) -> Any:
    """Draw one head."""
    layer, asked = given["layer"], given["head"] or None
    layers = None if layer is None else [layer]
    whole = _read(given, mode=given["mode"].value, layers=layers, heads=asked)
    result = whole.stack(given["stack"])
    if given["find"]:
        query, _, key = given["find"].partition(":")
        attnviz.find_heads(result, query=query.strip(), key=key.strip())
    how: dict[str, Any] = {"words": given["words"], "special": given["special"].value}
    how |= {"rows": _slice(given["rows"]), "columns": _slice(given["cols"])}

    def drawn() -> attnviz.AttentionMap:
        best = attnviz.rank_heads(result).scores[0]
        one = {"layer": best.layer if layer is None else layer, "head": asked or best.head}
        return attnviz.attention_map(result, **one, **how)

    def figure() -> Any:
        over = {"patch": _patch(given["patch"]), "matrix": given["matrix"], "width": given["width"]}
        return attnviz.plot.heatmap(result, layer=layer, head=asked, **over, **how).figure

    _write(given, "heatmap.png", drawn, figure)
    return result


def _slice(typed: str | None) -> slice | None:
    if typed is None:
        return None
    return slice(*(int(at) if at else None for at in typed.split(":")))


def _patch(typed: str | None) -> Any:
    row, comma, column = (typed or "").partition(",")
    return (int(row), int(column)) if comma and row.isdecimal() else typed


def heads(given: dict[str, Any]) -> Any:
    """Draw all heads."""
    layer = given["layer"]
    kept = {"mode": given["mode"].value, "layers": None if layer is None else [layer]}
    result = _read(given, **kept).stack(given["stack"])
    how = {"layer": layer, "words": given["words"], "special": given["special"].value}
    _write(given, "heads.png", lambda: attnviz.head_maps(result, **how),
           lambda: attnviz.plot.heads(result, width=given["width"], **how))  # fmt: skip
    return result


def steps(given: dict[str, Any]) -> Any:
    """Take one head apart."""
    result = _read(given, mode="full").stack(given["stack"])
    which = {name: given[name] for name in ("layer", "head", "word")}
    taken = attnviz.steps(result, **which)
    _write(
        given, "steps.png", lambda: taken, lambda: attnviz.plot.steps(taken, width=given["width"])
    )
    return result


def view(given: dict[str, Any]) -> Any:
    """Write a page to explore."""
    result = _read(given, mode=given["mode"].value)
    other = given["compare"]
    compared = None if other is None else _read({**given, "text": other})
    names = ("layer", "head", "words", "size")
    how = {name: given[name] for name in names}
    attnviz.view(result, compare=compared, show=given["show"].value, **how).save(
        given["output"], force=given["force"]
    )
    return result


def verify(given: dict[str, Any]) -> Any:
    """Compare every stage."""
    known = inspect.signature(attnviz.verify).parameters
    what = {name: given[name] for name in known if name in given and name not in ("model", "mode")}
    return attnviz.verify(**what, model=_load(given), mode=given["mode"].value)


def senses(given: dict[str, Any]) -> Any:
    """Tell the senses of a word apart."""
    result = attnviz.senses(
        given["word"], _by_name(given["sense"]), model=_load(given), raw=given["raw"]
    )
    _write(given, "senses.png", lambda: result,
           lambda: attnviz.plot.senses(result, width=given["width"]))  # fmt: skip
    return result


def shift(given: dict[str, Any]) -> Any:
    """Split what moved a word."""
    names = ("reference", "verify_causally")
    how = {name: given[name] for name in names}
    toward = _by_name(given["toward"])
    result = attnviz.shift(given["word"], given["text"], toward=toward, model=_load(given), **how)
    _write(given, "shift.png", lambda: result,
           lambda: attnviz.plot.shift(result, width=given["width"]))  # fmt: skip
    return result


def _by_name(typed: Sequence[str] | None) -> dict[str, list[str]] | None:
    """Return texts by name, of NAME=TEXT and NAME=FILE."""
    found: dict[str, list[str]] = {}
    for one in typed or ():
        name, _, text = one.partition("=")
        if os.path.isfile(text):  # noqa: PTH113
            found.setdefault(name, []).extend(Path(text).read_text("utf-8").splitlines())
        else:
            found.setdefault(name, []).append(text)
    return found or None


def example(given: dict[str, Any]) -> Any:
    """Replay a worked example."""
    worked = attnviz.example(given["name"], file=given["file"])
    _write(given, None, lambda: worked, lambda: attnviz.plot.example(worked, width=given["width"]))
    return None


def models(given: dict[str, Any]) -> Any:
    """List architectures."""
    return attnviz.architectures(given["names"] or (), state=given["state"])
