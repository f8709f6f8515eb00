"""What a page says of its results: their layers, heads and positions, in words and in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Context
from typing import Any

from attnviz.analyses.maps.heads import choose_word
from attnviz.interactive.budget import NOTHING, Choice
from attnviz.results import (
    AttentionRecord,
    AttentionResult,
    Axis,
    StreamedAttention,
)
from attnviz.results.words import literal, source

_TITLES = {"cross": "Cross-attention"}
Attention = AttentionRecord | StreamedAttention
Place = tuple[int, int]  # which attention, and which head


def kept(each: Attention) -> tuple[int, ...]:
    """Return the numbers of the heads that there are."""
    return each.kept if isinstance(each, StreamedAttention) else tuple(range(each.heads))


def shape(each: Attention) -> tuple[str, int, tuple[int, ...], int | None, int, int]:
    """Return what two attentions have in common whose weights are compared, padding left out.

    Their stack, layer and heads, how many tokens a cell joins (None where maps are whole), and how
    many queries and keys there are.
    """
    cell = each.summary.cell if isinstance(each, StreamedAttention) else None
    m, n = (axis.padding.count(False) for axis in (each.query_axis, each.key_axis))
    return each.stack, each.layer, kept(each), cell, m, n


def show_result(
    result: AttentionResult,
    attentions: Sequence[Attention],
    overviews: Sequence[dict[str, Any] | None],
    exact: Mapping[Place, dict[str, Any]],
) -> dict[str, Any]:
    """Return what a page shows of one result.

    overviews : the pooled map of each attention, or None. exact : what travels of each head.
    """
    axes: list[Axis] = []
    stacks: list[dict[str, Any]] = []
    kinds: dict[tuple[str, Axis, Axis], list[int]] = {}
    for at, each in enumerate(attentions):
        kinds.setdefault((each.stack, each.query_axis, each.key_axis), []).append(at)
    for (name, rows, columns), places in kinds.items():
        for axis in (rows, columns):
            if axis not in axes:
                axes.append(axis)
        stacks.append(
            {
                "name": name,
                "title": _TITLES.get(name, name.capitalize()),
                "queries": axes.index(rows),
                "keys": axes.index(columns),
                "layers": [_layer(attentions[at], at, overviews[at], exact) for at in places],
            }
        )
    return {
        "source": source(result.provenance),
        "verdict": result.agreement.verdict,
        "summary": result.agreement.summary(),
        "notes": _cutting(result),
        "axes": [_axis(axis) for axis in axes],
        "stacks": _told_apart(stacks),
    }


def _layer(
    each: Attention,
    at: int,
    overview: dict[str, Any] | None,
    exact: Mapping[Place, dict[str, Any]],
) -> dict[str, Any]:
    return {
        "layer": each.layer,
        "heads": kept(each),
        "pooled": overview,
        "exact": [exact.get((at, head)) for head in kept(each)],
    }


def _told_apart(stacks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Name the layers where those of one stack relate different positions, as in Swin."""
    names = [stack["name"] for stack in stacks]
    for stack in stacks:
        if names.count(stack["name"]) > 1:
            layers = [str(each["layer"]) for each in stack["layers"]]
            stack["title"] += f", layer{'s' if layers[1:] else ''} {', '.join(layers)}"
            stack["name"] += f" {layers[0]}"
    return stacks


def name_stack(stack: str, layer: int, stacks: Sequence[dict[str, Any]]) -> str:
    """Return what the stack of a layer is called among those that are told apart."""
    for each in stacks:
        layers = [found["layer"] for found in each["layers"]]
        if layer in layers and each["name"] in (stack, f"{stack} {layers[0]}"):
            return str(each["name"])
    return stack


def _axis(axis: Axis) -> dict[str, Any]:
    return {
        "labels": axis.labels,
        "words": axis.words,
        "wordLabels": axis.word_labels,
        "special": [at for at, special in enumerate(axis.special) if special],
        "word": choose_word(axis),
        "second": axis.segments.index(1) if 1 in axis.segments else None,
    }


def _cutting(result: AttentionResult) -> list[str]:
    cut = result.provenance.cut_from
    return [] if cut is None else [f"The text was cut from {cut} tokens to what the model reads."]


def name_results(results: Sequence[AttentionResult]) -> list[str]:
    """Return what each result is called: by what was read, else by its model, else by number."""
    told = [each.provenance for each in results]
    read = [" ".join((each.text or each.image or each.audio or "").split()) for each in told]
    for names in (read, [each.model for each in told]):
        shown = [literal(name, 40) for name in names]
        if len(set(shown)) == len(shown):
            return shown
    return [f"{name} ({number})" for number, name in enumerate(shown, 1)]


def make_notes(
    attentions: Sequence[Attention],
    overviews: Sequence[dict[str, Any] | None],
    chosen: Mapping[Place, Choice],
    worst: float,
    sampled: bool,
) -> list[str]:
    """Say what of the weights the page holds, and how exactly; `sampled`: as some rows tell."""
    count = sum(len(kept(each)) for each in attentions)
    maps = sum(each != NOTHING for each in chosen.values())
    vectors = sum(each.vectors for each in chosen.values())
    said = []
    cells = sorted({each["cell"] for each in overviews if each is not None} - {1})
    if cells:
        sizes = " or ".join(f"{cell} × {cell}" for cell in cells)
        said.append(f"In overviews a cell joins {sizes} weights, columns summed and rows averaged.")
    if maps:
        which = "Weights" if maps == count else f"Exact weights of {maps} of {count} heads"
        where = ", as some of their rows tell" if sampled else ""
        said.append(
            f"{which} are within {_upwards(worst)} of those recomputed from the model{where}."
        )
    if left := len(chosen) - maps:
        said.append(
            f"Of {left} heads only pooled maps travel with this page; view(result, size=…) allows "
            "it more megabytes."
        )
    if unkept := count - len(chosen):
        said.append(
            f"Of {unkept} heads only pooled maps were kept as the model ran; "
            "attend(…, exact=[layer]) keeps all of a layer."
        )
    if vectors < maps:
        said.append(
            f"Queries and keys of {vectors or 'none'} of {count} heads travel with it, for the "
            "steps; view(result, size=…) allows more."
        )
    return said


def _upwards(error: float) -> str:
    """Return an error in two digits, rounded to what it does not exceed."""
    return f"{float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(error)):.1e}"
