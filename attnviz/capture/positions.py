"""Where an attention stands in its model, and which token, patch or frame a row of its map is.

The path of a module gives its stack; the number of positions gives the input. Nothing in the
weights of a map shows whether its labels stand at the right rows. So the content of some positions
is changed, and the keys of the attentions tell which row moved.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import EllipsisType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from attnviz.capture import watch
from attnviz.capture.attention_interface import AttentionCallArgs
from attnviz.inputs import Batch
from attnviz.inputs.image import Grid, find_grid, patch_label, pixels_among
from attnviz.models.pretrained import forward_parameters
from attnviz.results import AttentionRecord, Axis
from attnviz.results.agreement_report import LINEAR, UNITS
from attnviz.runtime.libraries import copy_to, copy_to_cpu

Call: TypeAlias = tuple[str, int]  # the path of a module, and the number of its attention
Region: TypeAlias = tuple[slice | EllipsisType, ...]  # the part of an input that a position is
_AT_ONCE = 2**14  # positions of one run of the whole model
_CODED = 400  # positions of the coded rows of a text, at most, that go on to the last layer
_TEXTS = 20  # of a batch with more texts none of these go on
_OF_MEDIA = 2**15  # positions of all runs of an image or a sound
# The names of modules that read an input of their own kind, or relate two sequences.
_TOWERS = {
    "vision": ("vision", "visual", "image"),
    "audio": ("audio", "speech", "sound"),
    "text": ("text",),
}
_CROSS = ("cross", "encoder_attn", "encdec", "enc_dec", "multihead_attn")
# The kind of input that the queries of a stack most likely are.
_READS = {
    "vision": "image", "audio": "audio", "text": "text", "decoder": "target", "cross": "target",
}  # fmt: skip
_GIVEN = "queries", "keys"  # labels that the user gives
_MERGES = 6  # of patches, two by two, from stage to stage of a model with windows


class StackCounter:
    """Numbers the layers of each stack of a model, in the order of execution.

    by_size : whether keys of another number are another sequence, unless there is one query.
    """

    def __init__(
        self, axes: Mapping[str, Axis], kinds: Collection[str] = (), *, by_size: bool = False
    ) -> None:
        self._axes, self._read, self._by_size = axes, {*axes, *kinds}, by_size
        self._layers: Counter[str] = Counter()
        self._of_path: dict[str, str] = {}  # the stack of the last attention of a module

    def place(
        self, path: str, queries: int, keys: int, *, cross: bool, causal: bool, linear: bool = False
    ) -> dict[str, Any]:
        """Return the stack, layer and axes of the next attention, as fields of its record.

        queries, keys : how many. cross : whether its keys are of another sequence. causal : whether
        no query reads a later key. linear : whether it has no softmax, and its layers count alone.
        """
        cross |= self._by_size and queries not in (1, keys)
        place = self._stack(path.lower(), cross, causal)
        if self._by_size and queries == 1:  # maybe of a text that goes on
            place = self._of_path.get(path, place)
        self._of_path[path] = place
        stack = LINEAR if linear else place
        layer = self._layers[stack]
        self._layers[stack] += 1
        kinds, is_other = self._kinds(place), place == "cross" or queries != keys
        is_two_sided = is_other or self._axes.keys() >= {*_GIVEN}
        rows, columns = (
            [kind for kind in kinds if kind != other or not is_two_sided] for other in _GIVEN[::-1]
        )
        query_axis = self._axis(queries, rows)
        if is_other:
            # A decoder reads a text first; a text, or queries that are learned, an image or sound.
            reads_text = query_axis is self._axes.get("target")
            columns.sort(key=lambda kind: (kind == "text") != reads_text)
            is_known = any(self._axes[kind] is query_axis for kind in kinds)
            unsure = self._read - (self._axes.keys() if is_known else {"text", "target"})
            if place == "cross" and unsure:  # maybe of an image or a sound
                columns = [kind for kind in columns if kind != "text"]
            columns.sort(key=lambda kind: self._axes[kind] is query_axis)
        key_axis = self._axis(keys, columns)
        return {"stack": stack, "layer": layer, "query_axis": query_axis, "key_axis": key_axis}

    def _stack(self, path: str, cross: bool, causal: bool) -> str:
        names = path.split(".")
        if cross or any(name in path for name in _CROSS):
            return "cross"
        for tower, prefixes in _TOWERS.items():
            if any(name.startswith(prefixes) for name in names):
                return tower
        if "decoder" in names or (causal and "target" not in self._axes):
            return "decoder"
        return "encoder"

    def _kinds(self, place: str) -> list[str]:
        """Return the kinds of input that a stack may read, the likeliest first."""
        own = _READS.get(place)
        if own is None and len({*map(len, self._axes.values())}) < len(self._axes):
            # Its name does not tell a text from an image or a sound of the same length.
            media = {len(one) for kind, one in self._axes.items() if kind in ("image", "audio")}
            return [kind for kind, one in self._axes.items() if len(one) not in media]
        is_alone = place in ("vision", "audio") and own in self._read
        kinds = [kind for kind in self._axes if not is_alone or kind in (own, *_GIVEN)]
        return sorted(kinds, key=lambda kind: kind != own)

    def _axis(self, length: int, kinds: Iterable[str]) -> Axis:
        """Return the first axis of this length, or numbers."""
        matching = [kind for kind in kinds if len(self._axes[kind]) == length]
        return self._axes[matching[0]] if matching else Axis.numbered(length)


def place_windows(
    module: nn.Module, inputs: dict[str, Tensor], record: AttentionRecord
) -> AttentionRecord:
    """Return the record with its patches labeled window by window, if its module has windows.

    Such a model cuts its grid of patches into windows, shifts them by half a window in every other
    layer, and merges patches two by two from stage to stage. Its positions go through one window
    after the other.
    """
    window = _window(module, record.path)
    if window is None or pixels_among(inputs.values()) is None:
        return record
    if (grid := find_grid(module, inputs)) is None:
        return record
    for merges in range(_MERGES):
        rows, columns = (-(-side // 2**merges) for side in grid)
        axis = _window_axis((rows, columns), *window)
        if len(axis) == len(record.query_axis) == len(record.key_axis):
            return replace(record, query_axis=axis, key_axis=axis)
    queries, keys = (Axis.numbered(len(axis)) for axis in (record.query_axis, record.key_axis))
    return replace(record, query_axis=queries, key_axis=keys)


def _window(module: nn.Module, path: str) -> tuple[int, int] | None:
    """Return the size and the shift of the windows of an attention, or None where it has none."""
    size, names = None, path.split(".")
    for depth in range(len(names), max(0, len(names) - 3), -1):
        submodule = module.get_submodule(".".join(names[:depth]))
        both = (getattr(submodule, name, None) for name in ("window_size", "shift_size"))
        window, shift = (one[0] if isinstance(one, list | tuple) else one for one in both)
        if isinstance(window, int) and window > 0 and size is None:
            size = window
        if isinstance(shift, int):
            return None if size is None else (size, shift)
    return None if size is None else (size, 0)


def _window_axis(grid: Grid, size: int, shift: int) -> Axis:
    """Return the axis of a grid in windows; the grid is padded to whole windows."""
    if min(grid) <= size:  # one window spans the smaller side; nothing is left to roll
        size, shift = min(grid), 0
    rows, columns = (-(-side // size) * size for side in grid)
    cells = torch.arange(rows * columns, device="cpu").reshape(rows, columns)
    rolled = cells.roll((-shift, -shift), dims=(0, 1))
    windows = rolled.reshape(rows // size, size, columns // size, size).transpose(1, 2).flatten()
    positions = [divmod(cell, columns) for cell in windows.tolist()]
    patches = [(r, c) if r < grid[0] and c < grid[1] else None for r, c in positions]
    return Axis.plain(
        ["[PAD]" if patch is None else patch_label(patch) for patch in patches],
        special=[patch is None for patch in patches],
        patches=patches,
    )


# --- by experiment: other content moves the key of a position


class UnknownPlacesError(Exception):
    """What a position stands for cannot be changed; the message says why."""


@dataclass(frozen=True, eq=False)
class MovedKeys:
    """How far the keys of an input moved when some of its T positions were changed in R runs."""

    changed: Tensor  # the positions that each run changed, (R, T)
    distances: dict[Call, Tensor]  # (R, n), relative to the norm of the longest key
    keys: dict[Call, Tensor]  # of the unchanged run, (G, n, d_k)
    reach: int = 0  # how many keys on either side of a position are computed from a part of it
    coded: bool = False  # whether each position is changed in several runs, else one in each run


def change_by_code(
    model: nn.Module, batch: Batch, kind: str, records: Sequence[AttentionRecord]
) -> list[MovedKeys]:
    """Change all positions of each of N inputs by a code, and return how far the keys moved.

    Each position is changed in half of R runs, in a half of its own, which names it: R is 6 for 20
    positions, and 12 for 900. The runs are rows of a single batch. Attention mixes positions, so
    each goes on with that of the unchanged row, up to the last attention; of a long input, only to
    the first. Raises UnknownPlacesError as `change_one_by_one`.
    """
    wanted = _attentions_to(kind, batch, records)
    axes = enumerate(batch.axes[kind])
    chosen = [Changed(kind, n, _code(axis.special), coded=True) for n, axis in axes]
    followed = wanted if _is_short(batch, chosen) else wanted[:1]
    return _moved(model, batch, chosen, followed)


def _is_short(batch: Batch, chosen: Sequence[Changed]) -> bool:
    """Whether the rows of inputs with changed positions go on to the last attention."""
    length = max((len(axes[0]) for axes in batch.axes.values()), default=0)
    positions = sum(1 + len(one.rows) for one in chosen) * length
    return len({one.number for one in chosen}) <= _TEXTS and positions <= _CODED * len(chosen)


def rows_of(batch: Batch, kinds: Collection[str]) -> Rows | None:
    """Return N inputs twice and, of short ones, all positions changed by a code; else None."""
    length = max((len(axes[0]) for axes in batch.axes.values()), default=0)
    texts = range(len(next(iter(batch.axes.values()), ())))
    known = [kind for kind in kinds if kind in batch.axes]
    every = [(kind, n, batch.axes[kind][n]) for kind in known for n in texts]
    coded = [Changed(kind, n, _code(axis.special), coded=True) for kind, n, axis in every]
    for chosen in (coded if _is_short(batch, coded) else [], []):
        if (2 * len(texts) + sum(len(one.rows) for one in chosen)) * length <= _AT_ONCE:
            with suppress(UnknownPlacesError):
                return changed_batch(batch, texts, chosen, copies=2)
    return None


def change_in_rows(
    batch: Batch,
    rows: Rows | None,
    kind: str,
    records: Sequence[AttentionRecord],
    keys: Mapping[Call, Tensor] | None,
) -> list[MovedKeys]:
    """Return how far the keys of each input moved in rows that were recorded beside it.

    None of them if no position of this kind was changed. keys : of all rows of each attention.
    """
    chosen = [] if rows is None else [one for one in rows.chosen if one.kind == kind]
    if rows is None or not chosen or not keys:
        return []
    wanted = _attentions_to(kind, batch, records)
    alike: dict[object, list[Call]] = {}
    for call in wanted:
        alike.setdefault((keys[call].shape, keys[call].device), []).append(call)
    rows_of_kind = [one.kind == kind for one in rows.chosen for _ in one.rows]
    distances = dict.fromkeys(wanted, torch.empty(0))
    for same in alike.values():
        stacked = torch.stack([keys[call] for call in same])
        distances |= zip(same, _distances(stacked, rows.source).cpu()[:, rows_of_kind], strict=True)
    return _of_each(batch, chosen, distances, {})


@lru_cache(64)
def _code(special: tuple[bool, ...]) -> Tensor:
    """Return which positions to change in each of R runs, (R, T); special ones in none."""
    ordinary = (~torch.tensor(special, device="cpu")).nonzero().flatten()
    runs = next(R for R in itertools.count(1) if math.comb(R, R // 2 or 1) >= len(ordinary))
    halves = itertools.islice(itertools.combinations(range(runs), runs // 2 or 1), len(ordinary))
    code = torch.zeros(runs, len(special), dtype=torch.bool, device="cpu")
    for position, half in zip(ordinary.tolist(), halves, strict=True):
        code[list(half), position] = True
    return code


def change_one_by_one(
    model: nn.Module,
    batch: Batch,
    kind: str,
    records: Sequence[AttentionRecord],
    count: int | None = None,
) -> list[MovedKeys]:
    """Change positions of each of N inputs, each in a run of its own; return how far keys moved.

    `count` of them: the runs are rows of a single batch, up to the first attention to these
    positions. By default all tokens: the whole model runs, in batches of up to 16,384 positions. Of
    an image or a sound, as many patches or frames are changed as make 32,768 positions of all runs.

    kind : of the input. records : of the first of the N inputs. Raises UnknownPlacesError where the
    positions cannot be changed, or the attention interface does not show their keys.
    """
    wanted = _attentions_to(kind, batch, records)
    if count is not None:
        axes = enumerate(batch.axes[kind])
        chosen = [Changed(kind, n, _some_of(axis, count)) for n, axis in axes]
        return _moved(model, batch, chosen, wanted[:1])
    moved: list[MovedKeys] = []
    length = max(len(axes[0]) for axes in batch.axes.values())
    for number, axis in enumerate(batch.axes[kind]):
        most = len(axis) if UNITS[kind] == "tokens" else max(1, _OF_MEDIA // length)
        rows = torch.split(_some_of(axis, most), max(1, _AT_ONCE // length - 1))
        parts = [_moved(model, batch, [Changed(kind, number, part)], wanted)[0] for part in rows]
        distances = {c: torch.cat([p.distances[c] for p in parts]) for c in parts[0].distances}
        changed = torch.cat([part.changed for part in parts])
        moved.append(replace(parts[0], changed=changed, distances=distances))
    return moved


def _attentions_to(kind: str, batch: Batch, records: Sequence[AttentionRecord]) -> list[Call]:
    """Return the attentions whose keys are the positions of a kind, in the order of execution."""
    units = UNITS[kind]
    if kind not in batch.axes:
        raise UnknownPlacesError(f"it is not known how the model divides its {kind}")
    if any(record.signed for record in records):
        raise UnknownPlacesError("linear attention mixes its tokens before other layers read them")
    axis, is_divided = batch.axes[kind][0], "target" in batch.axes
    known = [
        record
        for record in records
        if record.key_axis == axis
        and not (is_divided and (record.stack == "decoder") != (kind == "target"))
    ]
    if not known:
        raise UnknownPlacesError(f"no attention has one key for each of its {units}")
    if not known[0].through_interface:
        raise UnknownPlacesError(
            f"transformers' attention interface does not show the keys of its {units}"
        )
    return [(record.path, record.call) for record in known]


def _some_of(axis: Axis, count: int) -> Tensor:
    """Return ordinary positions, one for each of P runs, (P, T); the same each time."""
    ordinary = (~torch.tensor(axis.special, device="cpu")).nonzero().flatten()
    generator = torch.Generator("cpu").manual_seed(len(axis))
    order = torch.randperm(len(ordinary), generator=generator, device="cpu")
    some = ordinary[order[:count].sort().values]
    return torch.nn.functional.one_hot(some, len(axis)).bool()


def _moved(
    model: nn.Module, batch: Batch, chosen: Sequence[Changed], wanted: Sequence[Call]
) -> list[MovedKeys]:
    """Run inputs as they are and with some positions changed in each of R rows, as one batch."""
    rows = changed_batch(batch, [one.number for one in chosen], chosen)
    inputs = rows.inputs
    if chosen[0].kind == "target" and "encoder_outputs" in forward_parameters(model):
        inputs["encoder_outputs"] = _encoded(model, batch.inputs, rows.numbers)
    run, watcher_of = watch.minimal_run(model, inputs), partial(_Keys, wanted=wanted, rows=rows)
    watcher = watch.watch(model, run, watcher_of)
    return _of_each(batch, chosen, watcher.distances, watcher.keys)


def _of_each(
    batch: Batch,
    chosen: Sequence[Changed],
    distances: Mapping[Call, Tensor],
    keys: Mapping[Call, Tensor],
) -> list[MovedKeys]:
    """Return how far the keys of each input moved; the `distances` (R, n) are of all rows."""
    moved, starts = [], itertools.accumulate((len(one.rows) for one in chosen), initial=0)
    for n, (one, start) in enumerate(zip(chosen, starts, strict=False)):
        rows = slice(start, start + len(one.rows))
        reach = batch.steps.reach if one.kind == "audio" and batch.steps is not None else 0
        own = {call: of_all[rows] for call, of_all in distances.items()}
        unchanged = {call: of_all[n] for call, of_all in keys.items()}
        moved.append(MovedKeys(one.rows, own, unchanged, reach, one.coded))
    return moved


@torch.no_grad()
def _encoded(model: Any, inputs: Mapping[str, Tensor], source: Tensor) -> BaseModelOutput:
    """Return what the encoder makes of N inputs, for a decoder that reads some more than once."""
    states: list[Tensor] = []

    def end(module: nn.Module, args: Any, output: Any) -> None:
        states.append(output[0])
        raise watch.EndRunError

    with watch.restoring(model), watch.model_errors(model), suppress(watch.EndRunError):
        model.get_encoder().register_forward_hook(end)
        model(**inputs)
    return BaseModelOutput(last_hidden_state=states[0][source.to(states[0].device)])


def _distances(keys: Tensor, source: Tensor) -> Tensor:
    """Return how far the keys of R rows are from those of the rows that they change, (…, R, n).

    keys : (…, rows, G, n, d_k), the R rows last. source : (R,), which row each changes.
    """
    source = copy_to(keys.device, source)
    before = keys[..., : keys.shape[-4] - len(source), :, :, :].double()
    longest = before.norm(dim=(-3, -1)).amax(-1).clamp(min=1e-30)
    moved = keys[..., -len(source) :, :, :, :] - before.index_select(-4, source)
    distances: Tensor = moved.norm(dim=(-3, -1)) / longest.index_select(-1, source)[..., None]
    return distances


class _Keys(watch.AttentionWatcher):
    """Takes how far the keys of some attentions moved, and ends the run after the last of them.

    By a code, the last R rows go on with the attention of those that they change.
    """

    def __init__(self, model: nn.Module, wanted: Sequence[Call], rows: Rows) -> None:
        super().__init__(model)
        self.distances: dict[Call, Tensor] = {}
        self.keys: dict[Call, Tensor] = {}
        self._wanted, self._source, self._coded = wanted, rows.source, rows.chosen[0].coded
        self._unchanged = slice(0, len(rows.numbers) - len(rows.source))
        self._calls: Counter[str] = Counter()

    def finish(self) -> None:
        (self.distances,) = copy_to_cpu([self.distances])

    def on_call(self, args: AttentionCallArgs) -> Any:
        path = self.paths[args.module]
        call = path, self._calls[path]
        self._calls[path] += 1
        if call in self._wanted:
            self.distances[call] = _distances(args.key, self._source)
            self.keys[call] = args.key[self._unchanged].clone()
        if len(self.distances) == len(self._wanted):
            raise watch.EndRunError
        if not self._coded:
            return args.call()
        output = args.of_rows(self._unchanged).call()[0]  # the model fails if it cut the rows
        return torch.cat([output, output[copy_to(output.device, self._source)]]), None


@dataclass(frozen=True, eq=False)
class Changed:
    """Rows in which positions of an input are changed."""

    kind: str  # of the input
    number: int  # of the input in the batch
    rows: Tensor  # which of its T positions to change in each of R rows, (R, T)
    coded: bool = False  # whether each position is changed in several rows, else one in each


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs as they are, once or twice, and below them rows in which positions are changed."""

    inputs: dict[str, Any]
    chosen: Sequence[Changed]
    numbers: Tensor  # of the input in each row
    source: Tensor  # the row that each of the last R rows changes, (R,)


def changed_batch(
    batch: Batch, numbers: Sequence[int], chosen: Sequence[Changed], copies: int = 1
) -> Rows:
    """Return some inputs of a batch as they are, and then with some of their positions changed.

    numbers : of the inputs. The other content of a position is another token, patch or frame of the
    same input. Raises UnknownPlacesError where nothing says where in a tensor a position lies.
    """
    count = len(next(iter(batch.axes.values()), ()))
    tensors = {n: x for n, x in batch.inputs.items() if isinstance(x, Tensor)}
    if any(not tensor.dim() or len(tensor) != count for tensor in tensors.values()):
        raise UnknownPlacesError("its inputs are not tensors with one row for each input")
    whole = [*numbers] * copies
    of_rows = torch.tensor([*whole, *(c.number for c in chosen for _ in c.rows)], device="cpu")
    source = torch.tensor([whole.index(n) for n in of_rows[len(whole) :].tolist()], device="cpu")
    inputs, index = {**batch.inputs}, of_rows
    for name, value in tensors.items():
        index = copy_to(value.device, index)
        inputs[name] = value[index]
    start = len(whole)
    for kind in dict.fromkeys(one.kind for one in chosen):
        argument = _argument(batch, kind)
        # A device is waited for once, and not for each position.
        device, originals = inputs[argument].device, batch.inputs[argument].cpu()
        changed = originals[of_rows]
        for one in (one for one in chosen if one.kind == kind):
            original = originals[one.number]
            regions = _regions(batch, kind, batch.axes[kind][one.number], original)
            own = changed[start : start + len(one.rows)]
            for position in one.rows.any(0).nonzero().flatten().tolist():
                other = _other(original, regions, position)
                own[one.rows[:, position], *regions[position]] = other
            start += len(one.rows)
        inputs[argument] = copy_to(device, changed)
    return Rows(inputs, chosen, of_rows, source)


def _argument(batch: Batch, kind: str) -> str:
    axes = batch.axes[kind]
    if kind == "audio":
        assert batch.steps is not None  # its axis follows from them
        return batch.steps.argument
    if kind == "image":
        if batch.inputs["pixel_values"].dim() != 4:
            raise UnknownPlacesError("its processor divides the image into patches itself")
        return "pixel_values"
    if any(axis.patches or axis.seconds for axis in axes):
        raise UnknownPlacesError("an image or a sound fills places in its text")
    argument = {"text": "input_ids", "target": "decoder_input_ids"}[kind]
    if argument not in batch.inputs or batch.inputs[argument].shape[-1] != len(axes[0]):
        raise UnknownPlacesError("its ids are not one for each token")
    return argument


def _regions(batch: Batch, kind: str, axis: Axis, values: Tensor) -> dict[int, Region]:
    """Return the part of an input that each position is, without special ones for media."""
    if kind == "image":
        patches = {n: p for n, p in enumerate(axis.patches or ()) if p and not axis.special[n]}
        rows, columns = (1 + max(p[side] for p in patches.values()) for side in (0, 1))
        height, width = values.shape[-2:]
        return {
            n: (slice(None), _part(p[0], rows, height), _part(p[1], columns, width))
            for n, p in patches.items()
        }
    if kind == "audio":
        steps, seconds = batch.steps, axis.seconds or ()
        assert steps is not None  # the axis follows from them
        starts = [round((second or 0.0) / steps.seconds) - steps.before for second in seconds]
        before = (slice(None),) * (steps.dim - 1)
        ordinary = (n for n, special in enumerate(axis.special) if not special)
        return {n: (*before, slice(max(0, starts[n]), starts[n] + steps.size)) for n in ordinary}
    return {n: (..., slice(n, n + 1)) for n in range(len(axis))}


def _part(number: int, count: int, length: int) -> slice:
    return slice(number * length // count, (number + 1) * length // count)


def _other(values: Tensor, regions: dict[int, Region], position: int) -> Tensor:
    """Return the content of the position of the same input that differs most."""
    own = values[regions[position]]
    if not values.is_floating_point():
        other = values[values != own]
        return other[:1] if len(other) else own + torch.where(own > 0, -1, 1)
    others = [part for region in regions.values() if (part := values[region]).shape == own.shape]
    distances = torch.stack([(other - own).float().norm() for other in others])
    farthest = others[int(distances.argmax())]
    return farthest if distances.max() > 0 else own + 1
