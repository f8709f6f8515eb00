"""Run the public functions: the equivalent of a command line, or an expression.

A run ends like a command, so that both are checked in the same way: an attnviz error is printed as
one line with its exit code; any other exception is printed with a traceback.
"""

from __future__ import annotations

import importlib
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
    """Evaluate the expression, or perform the command of the arguments; return the exit code."""
    warnings.showwarning = show_warning
    try:
        result = evaluate(called) if called else perform(arguments)
    except attnviz.AttnvizError as error:
        print_message(str(error))
        return error.exit_code
    if result is False:
        print_message(f"{called} is False, not True.")
        return 1
    agreement = getattr(result, "agreement", result)
    return 0 if getattr(agreement, "verdict", "verified") == "verified" else 5


def _width(options: dict[str, Any]) -> float:
    """Return the width of a figure that is no heatmap of one head."""
    return options["width"] or 183


def print_message(message: str) -> None:
    """Print a message of attnviz unchanged: it must be a single printable line."""
    print(f"attnviz: {message}", file=sys.stderr)


def show_warning(
    message: Warning | str, category: type[Warning], filename: str, *rest: Any
) -> None:
    """Print an attnviz warning; print others as Python does, which no case allows."""
    if issubclass(category, attnviz.AttnvizWarning):
        print_message(str(message))
    else:
        print(warnings.formatwarning(message, category, filename, *rest[:1]), file=sys.stderr)


def evaluate(called: str) -> Any:
    """Evaluate an expression with the usual modules as names."""
    import numpy as np
    import torch
    import transformers

    names = {
        "attnviz": attnviz, "np": np, "torch": torch, "transformers": transformers,
        "formula": importlib.import_module("attnviz.formula.attention"),
    }  # fmt: skip
    return eval(called, {**names, "Path": Path})


def perform(arguments: Sequence[str]) -> Any:
    """Perform a command line with public functions; return the result with the verdict."""
    with _COMMANDS.make_context("attnviz", list(arguments)) as context:
        name, command, rest = _COMMANDS.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        options = command.make_context(name, rest, parent=context).params
    if name != "example" and options.get("file"):
        options["text"] = options["file"].read_text("utf-8-sig")
    commands = (heatmap, heads, steps, view, verify, senses, shift, example, models)
    return {function.__name__: function for function in commands}[name](options)


def _load(options: dict[str, Any]) -> attnviz.Model:
    return attnviz.load(options["model"], device=options["device"], dtype=options["dtype"])


def _read(options: dict[str, Any], **extra: Any) -> attnviz.AttentionResult:
    inputs = {
        name: options[name]
        for name in ("text", "image", "audio", "pair", "target", "generate", "truncate")
    }
    return attnviz.attend(model=_load(options), **inputs, **extra)


def _write(options: dict[str, Any], default: str | None, make_result: Any, draw: Any) -> None:
    path = options["output"] or (None if options["json"] or default is None else Path(default))
    if path is not None and path.suffix.lower() in _DATA:
        attnviz.save_result(make_result(), path, force=options["force"])
    elif path is not None:
        attnviz.plot.save(draw(), path, force=options["force"])


def heatmap(options: dict[str, Any]) -> Any:
    """Draw one head."""
    layer, selected = options["layer"] or None, options["head"] or None
    stored = {"layers": layer, "heads": selected} if options["mode"] == "streamed" else {}
    attention = _read(options, mode=options["mode"], **stored)
    result = attention.stack(options["stack"])
    if options["find"]:
        query, _, key = options["find"].partition(":")
        attnviz.find_heads(result, query=query.strip(), key=key.strip())
    choices: dict[str, Any] = {"words": options["words"], "special": options["special"]}
    choices |= {"rows": _slice(options["rows"]), "columns": _slice(options["columns"])}

    def make_map() -> attnviz.AttentionMap:
        best = attnviz.rank_heads(result).scores[0]
        head = {"layer": best.layer if layer is None else layer, "head": selected or best.head}
        return attnviz.attention_map(result, **head, **choices)

    def draw() -> Any:
        display = {
            "patch": _patch(options["patch"]),
            "matrix": options["matrix"],
            "width": options["width"],
        }
        return attnviz.plot.heatmap(result, layer=layer, head=selected, **display, **choices).figure

    _write(options, "heatmap.png", make_map, draw)
    return result


def _slice(typed: str | None) -> slice | None:
    if typed is None:
        return None
    return slice(*(int(end) if end else None for end in typed.split(":")))


def _patch(typed: str | None) -> Any:
    row, comma, column = (typed or "").partition(",")
    return (int(row), int(column)) if comma and row.isdecimal() else typed


def heads(options: dict[str, Any]) -> Any:
    """Draw all heads."""
    layer = options["layer"]
    extra = {"mode": options["mode"], "layers": None if layer is None else [layer]}
    result = _read(options, **extra).stack(options["stack"])
    choices = {"layer": layer, "words": options["words"], "special": options["special"]}
    _write(options, "heads.png", lambda: attnviz.head_maps(result, **choices),
           lambda: attnviz.plot.heads(result, width=_width(options), **choices))  # fmt: skip
    return result


def steps(options: dict[str, Any]) -> Any:
    """Show the stages of one head."""
    result = _read(options, mode="full").stack(options["stack"])
    selection = {name: options[name] for name in ("layer", "head", "word")}
    head_steps = attnviz.steps(result, **selection)
    _write(
        options,
        "steps.png",
        lambda: head_steps,
        lambda: attnviz.plot.steps(head_steps, width=_width(options)),
    )
    return result


def view(options: dict[str, Any]) -> Any:
    """Write an interactive page."""
    result = _read(options, mode=options["mode"])
    other = options["compare"]
    comparison = None if other is None else _read({**options, "text": other})
    names = ("layer", "head", "words", "size")
    choices = {name: options[name] for name in names}
    attnviz.view(result, compare=comparison, show=options["show"], **choices).save(
        options["output"] or "view.html", force=options["force"]
    )
    return result


def verify(options: dict[str, Any]) -> Any:
    """Compare every stage."""
    names = ("text", "image", "audio", "pair", "target", "generate", "truncate", "positions")
    inputs = {name: options[name] for name in names if options[name] is not None}
    return attnviz.verify(**inputs, model=_load(options), mode=options["mode"])


def senses(options: dict[str, Any]) -> Any:
    """Separate the senses of a word."""
    result = attnviz.senses(
        options["word"], _by_name(options["sentences"]), model=_load(options), raw=options["raw"]
    )
    _write(options, "senses.png", lambda: result,
           lambda: attnviz.plot.senses(result, width=_width(options)))  # fmt: skip
    return result


def shift(options: dict[str, Any]) -> Any:
    """Decompose the shift of a word."""
    names = ("reference", "verify_causally")
    choices = {name: options[name] for name in names}
    toward = _by_name(options["toward"])
    result = attnviz.shift(
        options["word"], options["text"], toward=toward, model=_load(options), **choices
    )
    _write(options, "shift.png", lambda: result,
           lambda: attnviz.plot.shift(result, width=_width(options)))  # fmt: skip
    return result


def _by_name(typed: Sequence[str] | None) -> dict[str, list[str]] | None:
    """Return texts by name, from NAME=TEXT and NAME=FILE."""
    texts: dict[str, list[str]] = {}
    for entry in typed or ():
        name, _, text = entry.partition("=")
        if os.path.isfile(text):  # noqa: PTH113
            texts.setdefault(name, []).extend(Path(text).read_text("utf-8").splitlines())
        else:
            texts.setdefault(name, []).append(text)
    return texts or None


def example(options: dict[str, Any]) -> Any:
    """Replay a worked example."""
    worked = attnviz.example(options["name"], file=options["file"])
    _write(
        options,
        None,
        lambda: worked,
        lambda: attnviz.plot.example(worked, width=_width(options)),
    )
    return None


def models(options: dict[str, Any]) -> Any:
    """List architectures."""
    return attnviz.architectures(options["names"] or (), state=options["state"])
