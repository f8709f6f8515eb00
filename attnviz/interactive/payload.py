"""Collect what a page shows of one result, or of two that are compared, as types of JSON.

Each head is shown by its weights, by an overview (a pooled map), or by both. The weights travel as
a map, or as the queries and keys that the map follows from.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Context
from difflib import SequenceMatcher
from functools import cached_property
from itertools import accumulate, starmap, takewhile
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from attnviz.analyses.maps import compute
from attnviz.errors import InputError, ModelError
from attnviz.figures.cells import BELOW_EVEN
from attnviz.figures.claims import LOGARITHMIC_FROM, is_right_to_left, of_map
from attnviz.heads import head_families
from attnviz.io import data_uri
from attnviz.results import AttentionRecord, AttentionResult, Axis, GivenAttention, MaskRule
from attnviz.results.agreement_report import LINEAR
from attnviz.results.attention_result import NextTokens, Provenance, StreamedAttention
from attnviz.results.axis import find_words, number_sentences, token_groups
from attnviz.results.projection import has_output, recompute
from attnviz.results.text import literal, source

_LEVELS = (2**16 - 1, 2**12 - 1, 1440, 1023)  # of the codes of maps; the first that fits is used
_COLOR_LEVELS = 2**8 - 1  # of numbers that are mainly seen as colors
_OVERVIEW_LEVELS = 2**10 - 1
_OVERVIEW_SIDE = 64  # cells of a side of an overview, at most
_OVERVIEW_CELLS = 2_000_000  # of the overviews of all heads, at most
_HEAD_BYTES = 40  # of JSON about a head, at most, beside its codes and its rule
_CODES_BYTES = 28  # of JSON around codes and their format, at most
_ERROR = Context(prec=3, rounding=ROUND_CEILING)  # of a head: no smaller than it is
_NOTES_BYTES = 600  # of the notes, at most
_BLOCK_CELLS = 2**22  # weights in memory at once while an error is measured
_SAMPLED_BLOCKS = 8  # blocks of rows in which the error of a long text is measured

Attention = AttentionRecord | StreamedAttention
HeadKey = tuple[int, int]  # the index of the attention, and the head
Blocks = dict[str, int]  # the texts of codes, with their numbers
Json = dict[str, Any]
Kind = Literal["root", "linear", "signed"]
Overviews = Sequence[Json | None]  # of each attention
Encoding = Mapping[str, int]  # what travels of a head ("map", "query" …), in how many levels each
_VECTORS: Encoding = {"query": _LEVELS[0], "key": _LEVELS[0]}


def compact_json(data: Any) -> str:
    """Return JSON that cannot close the script element around it: every `<` is escaped."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def make_payload(
    results: Sequence[AttentionResult], start: Json, limit: int, explained: Json | None = None
) -> Json:
    """Return the data of a page as types of JSON: its "payload", and the "blocks" of its numbers.

    start : what is shown first. limit : the bytes of the data, at most. explained : explanations of
    generated tokens, or of an answer. InputError: it is too small to show every head.
    """
    attentions = [[*map(_without_padding, result.attentions)] for result in results]
    blocks: Blocks = {}
    overviews = [_overviews(blocks, of_result) for of_result in attentions]
    heads = _rank_heads(results[0], attentions, overviews[0])
    aligned = align_stacks(*attentions) if len(attentions) == 2 else {}
    found = [
        [_findings(result, attention) for attention in of_result]
        for result, of_result in zip(results, attentions, strict=True)
    ]

    def fill(encodings: Mapping[HeadKey, Encoding], outputs: Sequence[Mapping[int, Codes]]) -> Json:
        exact = [_encode(heads, number, encodings, blocks) for number in range(len(results))]
        names = name_results(results)
        parts = zip(names, results, attentions, overviews, found, exact, outputs, strict=True)
        shown = [{"name": name, **_describe_result(blocks, *part)} for name, *part in parts]
        errors = [head["error"] for of_result in exact for head in of_result.values()]
        sampled = any(
            heads[key][0].sampled for key, how in encodings.items() if how.keys() == _VECTORS.keys()
        )
        first_shown = (
            stack["name"]
            for stack in shown[0]["stacks"]
            if stack["name"].split()[0] == start["stack"]
            and start["layer"] in [layer["layer"] for layer in stack["layers"]]
        )
        payload: Json = {
            "results": shown,
            "start": {**start, "stack": next(first_shown, start["stack"])},
            "notes": _notes(attentions[0], overviews[0], encodings, errors, sampled),
            "scale": {"logarithmicFrom": LOGARITHMIC_FROM, "belowEven": BELOW_EVEN},
            **({"aligned": aligned} if aligned else {}),
            **(explained or {}),
        }
        return {"payload": payload, "blocks": list(blocks)}

    nothing: list[dict[int, Codes]] = [{} for _ in results]
    smallest = fill({key: {} for key in heads}, nothing)
    room = limit - len(compact_json(smallest)) - _NOTES_BYTES
    encodings = dict(zip(heads, choose_encodings([*heads.values()], room), strict=True))
    invisible = any(
        overviews[0][index] is None and not how for (index, _), how in encodings.items()
    )
    if room < 0 or invisible:
        raise InputError(
            f"The page is too small to show every head of {results[0].provenance.model}: beside "
            f"its script it has {max(0, limit) / 1e6:.2f} MB. Give it a larger size (size=, "
            "--size)."
        )
    if all("query" in encodings[key] for key, (one, *_) in heads.items() if not one.record.signed):
        values = {"value": _COLOR_LEVELS}
        more = {key: {**how, **values} if "query" in how else how for key, how in encodings.items()}
        if (left := room - sum(_sizes(heads.values(), more.values()))) >= 0:
            outputs = [dict(_outputs(of_result)) for of_result in attentions]
            if sum(codes.size for known in outputs for codes in known.values()) <= left:
                return fill(more, outputs)
    return fill(encodings, nothing)


def _outputs(attentions: Sequence[Attention]) -> Iterator[tuple[int, Codes]]:
    for index, record in enumerate(map(_record_of, attentions)):
        if record is not None and not record.signed and has_output(record):
            yield index, Codes.of(recompute(record)["output"][0].cpu(), _COLOR_LEVELS, "linear")


def _record_of(attention: Attention) -> AttentionRecord | None:
    return attention.record if isinstance(attention, StreamedAttention) else attention


def choose_encodings(heads: Sequence[Sequence[Head]], room: int) -> list[Encoding]:
    """Return encodings of all heads that fit.

    Fine maps with queries and keys of every head, if they fit. Otherwise the smaller of both
    for each head, with queries and keys beside the maps of the first heads that leave room; and if
    that does not fit either, only for the first heads.

    heads : the same head in each result; the most important first. room : bytes for all of them.
    """
    vectors: list[Encoding] = [
        _VECTORS if all(head.record.query.numel() for head in twins) else {} for twins in heads
    ]
    are_smaller = (
        twins[0].vectors_are_smaller and not any(head.rule["added"] for head in twins)
        for twins in heads
    )
    smaller = [known if is_so else {} for known, is_so in zip(vectors, are_smaller, strict=True)]
    candidates: list[list[Encoding]] = [
        [{"map": levels, **known} for known in vectors] for levels in _LEVELS[:2]
    ]
    # If no precision fits all heads, the first heads are stored in the second.
    candidates += [[known or {"map": x} for known in smaller] for x in (*_LEVELS, _LEVELS[1])]
    for chosen in candidates:
        if (count := _count_fitting(heads, chosen, room)) == len(heads):
            break
    left = room - sum(_sizes(heads[:count], chosen[:count]))
    extra = _count_fitting(heads[:count], vectors[:count], left)
    for n, known in enumerate(vectors[:extra]):
        chosen[n] = {**chosen[n], **known}
    return [*chosen[:count], *[{}] * (len(heads) - count)]


def _count_fitting(
    heads: Sequence[Sequence[Head]], encodings: Sequence[Encoding], room: int
) -> int:
    """Return how many of the first heads fit; no head beyond them is encoded."""
    return sum(1 for _ in takewhile(room.__ge__, accumulate(_sizes(heads, encodings))))


def _sizes(heads: Iterable[Sequence[Head]], encodings: Iterable[Encoding]) -> Iterator[int]:
    """Yield the bytes that each head adds to the page, at most; equal codes count once."""
    known = set()
    for twins, encoding in zip(heads, encodings, strict=True):
        size = 0
        for head in twins:
            size += _HEAD_BYTES + (len(compact_json(head.rule)) if "query" in encoding else 0)
            for codes in starmap(head.codes, encoding.items()):
                size += codes.size - (len(codes.text) if codes.text in known else 0)
                known.add(codes.text)
        yield size


def _encode(
    heads: Mapping[HeadKey, Sequence[Head]],
    number: int,
    encodings: Mapping[HeadKey, Encoding],
    blocks: Blocks,
) -> dict[HeadKey, Json]:
    """Add the heads of one result to the blocks, and return the place and the error of each."""
    exact: dict[HeadKey, Json] = {}
    for key, encoding in sorted(encodings.items()):
        head = heads[key][number]
        if encoding:
            if levels := encoding.get("map"):
                error = float((head.codes("map", levels).values - head.weights).abs().max())
            else:
                error = head.error_of_vectors
            exact[key] = {"error": float(_ERROR.create_decimal(error))}
            for name, levels in encoding.items():
                exact[key][name] = head.codes(name, levels).add_to(blocks)
            if "query" in encoding:
                exact[key]["rule"] = head.rule
    return exact


def _without_padding(attention: Attention) -> Attention:
    axes = attention.query_axis, attention.key_axis
    if isinstance(attention, StreamedAttention) or not any(any(axis.padding) for axis in axes):
        return attention
    padding = [torch.tensor(axis.padding, device="cpu") for axis in axes]
    return attention.at(*((~padded).nonzero()[:, 0] for padded in padding))


def _rank_heads(
    result: AttentionResult, attentions: Sequence[Sequence[Attention]], overviews: Overviews
) -> dict[HeadKey, list[Head]]:
    """Return the heads with records in every result, first those without an overview, by rank."""
    stack = result.stack().stacks[0]
    ranks = {(stack, s.layer, s.head): n for n, s in enumerate(compute.rank_heads(result).scores)}
    heads: dict[HeadKey, list[Head]] = {}
    for index, twins in enumerate(zip(*attentions, strict=True)):
        known = [record for one in twins if (record := _record_of(one)) is not None]
        if len(known) == len(twins):
            for number in twins[0].kept:
                heads[index, number] = [Head(record, number) for record in known]

    def order(key: HeadKey) -> tuple[bool, int]:
        record = heads[key][0].record
        rank = ranks.get((record.stack, record.layer, key[1]), len(ranks))
        return overviews[key[0]] is not None, rank

    return {key: heads[key] for key in sorted(heads, key=order)}


def _overviews(blocks: Blocks, attentions: Sequence[Attention]) -> list[Json | None]:
    """Return the pooled maps of a long text; None where the page can show whole maps at once."""
    count = sum(len(attention.kept) for attention in attentions)
    side = min(_OVERVIEW_SIDE, math.isqrt(_OVERVIEW_CELLS // count))
    overviews: list[Json | None] = []
    for attention in attentions:
        longest = max(len(attention.query_axis), len(attention.key_axis))
        if isinstance(attention, StreamedAttention):
            maps, groups, _ = compute.pooled(attention, [], side)
            cell = groups.side.cell
        elif longest > side:
            cell = -(-longest // side)
            maps = compute.pool(attention.weights().cpu(), cell)
        else:
            overviews.append(None)
            continue
        kind: Kind = "signed" if attention.signed else "root"
        codes = Codes.of(maps, _OVERVIEW_LEVELS, kind).add_to(blocks)
        rows, columns = maps.shape[1:]
        overviews.append({"cell": cell, "rows": rows, "columns": columns, "maps": codes})
    return overviews


def shape(attention: Attention) -> tuple[str, int, tuple[int, ...], int | None, int, int]:
    """Return what two attentions must share so that their weights can be compared.

    The numbers of queries and keys are without padding; 0 for short texts, whose words are aligned.
    """
    cell = attention.summary.cell if isinstance(attention, StreamedAttention) else None
    m, n = (axis.padding.count(False) for axis in (attention.query_axis, attention.key_axis))
    size = (0, 0) if _is_short(attention) else (m, n)
    return attention.stack, attention.layer, attention.kept, cell, *size


def _describe_result(
    blocks: Blocks,
    result: AttentionResult,
    attentions: Sequence[Attention],
    overviews: Overviews,
    found: Sequence[list[Json]],
    exact: Mapping[HeadKey, Json],
    outputs: Mapping[int, Codes],
) -> Json:
    sides = ((attention.query_axis, attention.key_axis) for attention in attentions)
    axes = list(dict.fromkeys(axis for pair in sides for axis in pair))
    groups: dict[tuple[str, Axis, Axis], list[Json]] = {}
    for index, attention in enumerate(attentions):
        layer = {
            "layer": attention.layer,
            "heads": attention.kept,
            "pooled": overviews[index],
            "exact": [exact.get((index, head)) for head in attention.kept],
        }
        if found[index]:
            layer["found"] = found[index]
        if index in outputs:
            layer["output"] = outputs[index].add_to(blocks)
        place = attention.stack, attention.query_axis, attention.key_axis
        groups.setdefault(place, []).append(layer)
    stacks = []
    names = [name for name, *_ in groups]
    for (name, query_axis, key_axis), layers in groups.items():
        title = "Cross-attention" if name == "cross" else name.capitalize()
        if names.count(name) > 1:  # as in Swin, whose layers relate different positions
            members = [str(layer["layer"]) for layer in layers]
            title += f", layer{'s' if members[1:] else ''} {', '.join(members)}"
            name += f" {members[0]}"
        stacks.append(
            {
                "name": name,
                "title": title,
                "signed": name.split()[0] == LINEAR,
                "queries": axes.index(query_axis),
                "keys": axes.index(key_axis),
                "layers": layers,
            }
        )
    agreement, computation = result.checked_agreement, result.provenance.computation
    picture = None if result.image is None else Image.fromarray(result.image.cpu().numpy())
    sound: Json | None = None
    if (waveform := result.waveform) is not None:  # its outline in percent of the largest sample
        percent = 100 * waveform.extremes / waveform.extremes.abs().max().clamp(min=1e-9)
        low, high = percent.round().int().T.tolist()
        sound = {"seconds": waveform.seconds, "low": low, "high": high}
    notes = list(result.notes)
    if computation is not None and computation.changes:
        notes.append(f"model as loaded: {computation.summary}")
    return {
        "model": result.provenance.model_name,
        "source": source(result.provenance),
        "verdict": agreement.verdict,
        "summary": agreement.summary(),
        "image": picture and data_uri(picture, "jpeg", side=384, quality=85),
        "waveform": sound,
        "notes": [f"{note[0].upper()}{note[1:]}." for note in notes],
        "axes": [_describe_axis(axis, result) for axis in axes],
        "stacks": stacks,
    }


def _findings(result: AttentionResult, attention: Attention) -> list[Json]:
    """Return what the map of each head shows, as its figure says; nothing of a very long text."""
    if not _is_short(attention, 8 * _OVERVIEW_SIDE):
        return []
    of_stack, layer = result.stack(attention.stack), attention.layer
    maps = compute.head_maps(of_stack, layer=layer)
    first = compute.attention_map(of_stack, layer=layer, head=attention.kept[0])
    drawn = (
        replace(first, weights=weights, heads=(head,))
        for weights, head in zip(maps.weights[0], attention.kept, strict=True)
    )
    return [
        {"title": said and said.title, "cell": said and said.cell}
        | ({"family": rule[0].family, "share": round(rule[1], 3)} if rule else {})
        for said, rule in zip(map(of_map, drawn), head_families(maps), strict=True)
    ]


def _describe_axis(axis: Axis, result: AttentionResult) -> Json:
    unread = [axis.unknown_label([n]) for n in range(len(axis))]
    words = {n: read for n, read in zip(axis.words, unread, strict=True) if read}
    return {
        "labels": [read or label for read, label in zip(unread, axis.labels, strict=True)],
        "words": axis.words,
        "wordLabels": [words.get(n, label) for n, label in enumerate(axis.word_labels)],
        "special": [index for index, special in enumerate(axis.special) if special],
        **({"unknown": [n for n, read in enumerate(unread) if read]} if any(unread) else {}),
        "word": compute.choose_word(axis),
        "second": axis.segments.index(1) if 1 in axis.segments else None,
        "generated": _first_generated(axis, result.provenance),
        **({"sentences": starts} if (starts := _sentences(axis, result.provenance)) else {}),
        "patches": axis.patches,
        "frames": _seconds_of_a_frame(axis),
        "next": _next_tokens(result.next_tokens, axis),
    }


def _sentences(axis: Axis, provenance: Provenance) -> list[int]:
    """Return where the sentences of a text begin that is written out in the view of a head."""
    groups, generated = token_groups(axis), _first_generated(axis, provenance)
    first = [positions[0] for positions in groups.positions]
    if axis.patches or axis.seconds or not 2 < len(first) <= 250:
        return []
    second = None if generated is None else first.index(generated)
    numbers = number_sentences(groups.labels, groups.special, second)
    starts = [first[numbers.index(number)] for number in range(max(numbers) + 1)]
    return starts if len(starts) > 2 and not is_right_to_left("".join(groups.labels)) else []


def _seconds_of_a_frame(axis: Axis) -> float | None:
    """Return how long a frame of a sound is; None unless all positions are frames."""
    starts = [second for second in axis.seconds or () if second is not None]
    if len(starts) < len(axis):
        return None
    return (starts[-1] - starts[0]) / max(1, len(starts) - 1) or 1.0


def _next_tokens(known: NextTokens | None, axis: Axis) -> list[list[tuple[str, float]]] | None:
    """Return the most probable tokens after each position of an axis; None where none are known."""
    if known is None:
        return None
    shown = [position for position, padding in enumerate(known.axis.padding) if not padding]
    if axis != known.axis.at(shown):
        return None
    values = [[float(f"{p:.3g}") for p in row] for row in known.probabilities.tolist()]
    return [[*zip(known.labels[n], values[n], strict=True)] for n in shown]


def _first_generated(axis: Axis, provenance: Provenance) -> int | None:
    """Return the first position that the model generated; None without one, or if unknown."""
    if provenance.generated is None or provenance.text is None:
        return None
    prompt = [provenance.text[start:end] for start, end in find_words(provenance.text)]
    if not prompt or list(axis.word_labels[: len(prompt)]) != prompt:
        return None  # a decoder without a prompt, or pieces without places
    last = max(position for position, word in enumerate(axis.words) if word == len(prompt) - 1)
    later = (position for position in range(last + 1, len(axis)) if not axis.special[position])
    return next(later, None)


def align_stacks(
    first: Sequence[Attention], second: Sequence[Attention]
) -> dict[str, list[list[tuple[int, int]]]]:
    """Return the words that two texts share, of each stack where they are not in the same place."""
    aligned: dict[str, list[list[tuple[int, int]]]] = {}
    for one, other in zip(first, second, strict=True):
        sides = [(one.query_axis, other.query_axis), (one.key_axis, other.key_axis)]
        if one.stack in aligned or not (_is_short(one) and _is_short(other)):
            continue
        alignment = [align(a, b) for a, b in sides]
        in_place = [[(start, start) for start in _words(axis)[0]] for axis, _ in sides]
        if alignment == in_place and all(a.words == b.words for a, b in sides):
            continue
        aligned[one.stack] = alignment
        for (axis, _), pairs in zip(sides, alignment, strict=True):
            if all(axis.special[position] for position, _ in pairs):
                raise InputError(
                    "The two texts differ in length and share no word, so no weights can be "
                    "compared. Choose texts that share words."
                )
    return aligned


def _is_short(attention: Attention, most: int = _OVERVIEW_SIDE) -> bool:
    """Whether the page has the whole maps of a text of at most some tokens, and knows its words."""
    axes = attention.query_axis, attention.key_axis
    return isinstance(attention, AttentionRecord) and all(
        axis.word_labels and len(axis) <= most for axis in axes
    )


def align(first: Axis, second: Axis) -> list[tuple[int, int]]:
    """Return the first positions of words in both texts; as many replaced words count as same."""
    (starts, words), (other_starts, other_words) = _words(first), _words(second)
    pairs: list[tuple[int, int]] = []
    for kind, a, b, c, d in SequenceMatcher(None, words, other_words, False).get_opcodes():
        has_special = any(special for special, _ in words[a:b] + other_words[c:d])
        if kind == "equal" or (kind == "replace" and b - a == d - c and not has_special):
            pairs += zip(starts[a:b], other_starts[c:d], strict=True)
    return pairs


def _words(axis: Axis) -> tuple[list[int], list[tuple[bool, str]]]:
    """Return where each word begins, and whether it is a special token, with its text."""
    groups = token_groups(axis)
    labels = [label.casefold() for label in groups.labels]
    return [p[0] for p in groups.positions], [*zip(groups.special, labels, strict=True)]


def name_results(results: Sequence[AttentionResult]) -> list[str]:
    """Return a name for each result: its input, else its model, else a number."""
    provenances = [result.provenance for result in results]
    inputs = [" ".join((p.text or p.image or p.audio or "").split()) for p in provenances]
    for candidates in (inputs, [p.model for p in provenances]):
        names = [literal(name, 40) for name in candidates]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def _notes(
    attentions: Sequence[Attention],
    overviews: Overviews,
    encodings: Mapping[HeadKey, Encoding],
    errors: Sequence[float],
    sampled: bool,
) -> list[str]:
    """Return which weights the page holds, and how exactly; `sampled`: errors of some rows."""
    notes = []
    heads = sum(len(attention.kept) for attention in attentions)
    exact = sum(map(bool, encodings.values()))
    vectors = sum("query" in encoding for encoding in encodings.values())
    given = any(isinstance(attention, GivenAttention) for attention in attentions)
    cells = sorted({overview["cell"] for overview in overviews if overview is not None} - {1})
    if cells:
        sizes = " or ".join(f"{cell} × {cell}" for cell in cells)
        notes.append(
            f"In overviews a cell joins {sizes} weights, columns summed and rows averaged."
        )
    if exact:
        which = "Weights" if exact == heads else f"Exact weights of {exact} of {heads} heads"
        where = ", measured in some of their rows" if sampled else ""
        worst = Context(prec=2, rounding=ROUND_CEILING).create_decimal(max(errors))
        source_of_weights = "given" if given else "recomputed from the model"
        notes.append(f"{which} are within {float(worst):.1e} of those {source_of_weights}{where}.")
    if pooled_only := len(encodings) - exact:
        notes.append(
            f"The page holds only pooled maps of {pooled_only} heads; view(result, size=…) allows "
            "it more megabytes."
        )
    if without_record := heads - len(encodings):
        notes.append(
            f"The model run stored only pooled maps of {without_record} heads; "
            "attend(…, exact=[layer]) stores all of a layer."
        )
    if linear := sum(one.heads for one in attentions if one.signed):
        notes.append(
            "Linear attention has no softmax: weights are signed, rows sum to anything, no steps."
        )
    if vectors < exact - linear and not given:
        notes.append(
            f"The page holds queries and keys of {vectors or 'none'} of {heads - linear} heads, "
            "for the steps; view(result, size=…) allows more."
        )
    return notes


@dataclass(frozen=True, eq=False)
class Head:
    """One head of an attention without padding, and its encodings."""

    record: AttentionRecord
    head: int
    _made: dict[tuple[str, int], Codes] = field(default_factory=dict)

    @cached_property
    def weights(self) -> Tensor:
        """The whole map, (m, n), float64."""
        return self.record.weights(self.head, dtype=torch.float64).cpu()

    def codes(self, name: str, levels: int = _LEVELS[0]) -> Codes:
        """Return the quantized "map", "query" (m, d), "key" (n, d) or "value" (n, d_v); made once.

        The steps of vectors are finer than those of float16 for large numbers, which dominate a
        score: 1/32,767 of the largest.
        """
        if (name, levels) not in self._made:
            kind: Kind = "signed" if self.record.signed else "root"
            numbers = self.weights
            if name != "map":
                kind, vectors = "linear", getattr(self.record, name)
                numbers = vectors[self.head * len(vectors) // self.record.heads].cpu()
            self._made[name, levels] = Codes.of(numbers, levels, kind)
        return self._made[name, levels]

    @property
    def vectors_are_smaller(self) -> bool:
        """Whether queries and keys need fewer bytes than the map, by a rough estimate."""
        (m, n), d = self.record.size, self.record.query.shape[-1]
        return 1.5 * (m + n) * d < m * n

    @cached_property
    def rule(self) -> Json:
        """What determines the map beside queries and keys, as types of JSON.

        "added" says that the model adds a table to the scores that this rule cannot express: a
        position bias, or a mask without a pattern.
        """
        record, (m, n) = self.record, self.record.size
        visible = record.visible or MaskRule(offset=n - m)
        tables = (record.bias, record.capped_bias)
        added = any(table is not None and bool(table.any()) for table in tables)
        if (mask := record.mask) is not None:
            pattern = MaskRule.of(mask[self.head if len(mask) > 1 else 0].cpu())
            visible, added = pattern or visible, added or pattern is None
        if record.sinks is None:  # models give even weights to a row without keys, the rule zeros
            added = added or bool(visible.empty(m, n, record.query.device).any())
        return {
            "scale": record.scale,
            "softCap": record.soft_cap,
            "sink": None if record.sinks is None else record.sinks[self.head].tolist(),
            "before": visible.before,
            "after": visible.after,
            "offset": visible.offset,
            "hidden": [] if visible.keys is None else (~visible.keys).nonzero().flatten().tolist(),
            "added": added,
        }

    @cached_property
    def error_of_vectors(self) -> float:
        """The largest error of weights from quantized Q and K; of a long text, in some rows."""
        record, (m, n) = self.record, self.record.size
        device = record.query.device
        quantized = replace(  # each head as this one, without a copy
            record,
            query=self.codes("query").values.to(device).expand(record.heads, -1, -1),
            key=self.codes("key").values.to(device).expand(record.key_heads, -1, -1),
        )
        block = max(1, _BLOCK_CELLS // n)
        starts = range(0, m, block)
        error = 0.0
        for start in starts[:: -(-len(starts) // _SAMPLED_BLOCKS) if self.sampled else 1]:
            rows = slice(start, min(m, start + block))
            weights = record.weights(self.head, rows, torch.float64)
            difference = quantized.weights(self.head, rows, torch.float64) - weights
            error = max(error, float(difference.abs().max()))
        return error

    @property
    def sampled(self) -> bool:
        """Whether `error_of_vectors` is measured in some rows only."""
        return math.prod(self.record.size) > _BLOCK_CELLS * _SAMPLED_BLOCKS


@dataclass(frozen=True, eq=False)
class Codes:
    """Numbers quantized to integers from 0 to `levels`.

    "root": a number is scale · (code / levels)². "linear" and "signed": it is
    scale · (code - (levels + 1) / 2). In "root" and "signed" it is 0 only where it was 0.
    """

    codes: Tensor  # int64, any shape
    kind: Kind
    levels: int  # at most 65,535
    scale: Tensor  # one for all numbers, or one for each first index

    @classmethod
    def of(cls, numbers: Tensor, levels: int, kind: Kind) -> Codes:
        """Quantize a map (m, n), vectors (n, d), or maps (H, m, n) with a scale for each.

        Steps of "root" are even on the scale of square roots: the error of a weight w is at most
        √(w · top) / levels + top / levels², where top is the largest weight. Others have even
        steps.
        """
        if not numbers.isfinite().all():
            raise ModelError(
                "The page cannot show weights, queries or keys that are nan or infinite, and the "
                "model computes some. Choose another --dtype (dtype=), or draw a heatmap."
            )
        wide, zero = numbers.double(), (levels + 1) // 2
        top = wide.abs().amax((-2, -1))
        if kind == "root":
            top = torch.where(top > 0, top, 1.0)
            codes = (wide / top[..., None, None]).sqrt().mul(levels).round().long()
            return cls(codes.clamp(min=1) * (wide > 0), kind, levels, top)
        scale = top.clamp(min=1e-30) / (zero - 1)
        codes = wide / scale[..., None, None]
        if kind == "signed":
            codes = torch.where(codes.abs() < 1, codes.sign(), codes)
        return cls(codes.round().long() + zero, kind, levels, scale)

    @property
    def values(self) -> Tensor:
        """The numbers that the codes stand for, float64."""
        codes = self.codes.double()
        scale = self.scale[:, None, None] if self.scale.dim() else self.scale
        if self.kind != "root":
            return (codes - (self.levels + 1) // 2) * scale
        return scale * (codes / self.levels) ** 2

    @cached_property
    def text(self) -> str:
        """The codes in base64, deflated: all low bytes, then all high bytes where there are any.

        Maps are written column by column, as the weights to one key are alike.
        """
        codes = self.codes if self.kind == "linear" else self.codes.mT.contiguous()
        planes = [codes & 255] + ([codes >> 8] if self.levels > 255 else [])
        data = b"".join(plane.to(torch.uint8).numpy().tobytes() for plane in planes)
        return base64.b64encode(zlib.compress(data, 9, -zlib.MAX_WBITS)).decode("ascii")

    @cached_property
    def format(self) -> Json:
        """What a reader needs in order to decode the text."""
        return {
            "shape": list(self.codes.shape),
            "kind": self.kind,
            "levels": self.levels,
            "scale": self.scale.tolist(),
        }

    @property
    def size(self) -> int:
        """The bytes that a page needs for the codes, at most."""
        return len(self.text) + len(compact_json(self.format)) + _CODES_BYTES

    def add_to(self, blocks: Blocks) -> Json:
        """Add the text, if it is not there, and return its place and how it is decoded."""
        return {"block": blocks.setdefault(self.text, len(blocks)), **self.format}
