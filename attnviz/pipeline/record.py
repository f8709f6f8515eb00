"""Record the attention of any program that runs in a block, and verify every call of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Self

import torch
from torch import Tensor

from attnviz import agreement
from attnviz.capture.calls import read_computation
from attnviz.capture.capture import record_alone
from attnviz.capture.positions import StackCounter, place_windows
from attnviz.capture.recorder import Recorded
from attnviz.capture.search import ProgramSearch, call_of
from attnviz.errors import InputError, ModelError, positive_number, whole_number, whole_numbers
from attnviz.inputs import Arguments, parse_labels
from attnviz.inputs.image import grid_axes, image_axis, pixels_among, shown_pixels
from attnviz.models.checkpoint import sha256_of_state
from attnviz.pipeline import package_versions
from attnviz.results import (
    AttentionRecord,
    AttentionResult,
    Axis,
    GivenAttention,
    InputCheck,
    Provenance,
    Reference,
    digests_of,
)
from attnviz.results.arguments import checked
from attnviz.results.text import counted


@checked
def record(
    *,
    modules: str | Sequence[str] | None = None,
    calls: int | Sequence[int] | None = None,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    grid: Sequence[int] | None = None,
    mean: bool = False,
) -> Recording:
    """Record every softmax attention that runs in a block of code, in any program of PyTorch.

    The code may call any modules and functions, several times. Nothing of it is changed, and it
    computes the same numbers; but what `torch.compile` made runs uncompiled, in all threads. Only
    the thread of the block is recorded.

    Parameters
    ----------
    modules : str, sequence of str or None
        The modules to record, with all modules inside them, by their names in
        ``named_modules()``; ``*`` stands for any letters (``"*attn2"``). By default all.
    calls : int, sequence of int or None
        Which attentions of each module to record, from 0: the steps of a diffusion, for example.
        By default all.
    queries, keys : sequence of str, optional
        Labels of the rows, and of the columns, of all maps of their size.
    grid : sequence of int, optional
        The rows and columns of an image in patches or latents, whose positions are numbered by
        them, also where it is halved. By default as the module that reads an image cuts it.
    mean : bool, default False
        Keep the mean maps of each module over its calls, and not the calls. Each call is verified
        when it has run, so that the memory does not grow with their number.

    Returns
    -------
    Recording
        Used in a ``with`` statement. After the block, its `result` is an `AttentionResult`.

    Raises
    ------
    InputError
        The vectors of the attentions do not fit in memory.

    Examples
    --------
    >>> import attnviz, torch
    >>> layer = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True).eval()
    >>> with attnviz.record() as recording:
    ...     y = layer(torch.randn(1, 5, 16))
    >>> result = recording.result()
    >>> result.records[0]
    AttentionRecord(encoder layer 0, 2 heads, 5 queries × 5 keys, self_attn)
    >>> result.agreement.verdict
    'verified'
    """
    patterns = (modules,) if isinstance(modules, str) else modules
    wanted = None if calls is None else whole_numbers(calls, "call")
    given = {"queries": parse_labels(queries, "queries"), "keys": parse_labels(keys, "keys")}
    axes = {kind: Axis.of_labels(labels) for kind, labels in given.items() if labels is not None}
    if grid is not None:
        sides = [positive_number(side, "a side of grid") for side in grid]
        if len(sides) != 2:
            raise InputError(f"grid must be two numbers, its rows and columns, not {grid!r:.40}.")
        axes |= grid_axes((sides[0], sides[1]))
    return Recording(ProgramSearch(patterns, wanted), axes, mean=mean)


class Recording:
    """The attentions of a program, as they ran in a block; see `record`.

    Examples
    --------
    >>> import attnviz, torch
    >>> attention = torch.nn.MultiheadAttention(8, num_heads=2, batch_first=True).eval()
    >>> x, words = torch.ones(2, 3, 8), torch.ones(2, 4, 8)
    >>> with attnviz.record(keys=["a", "cat", "on", "top"]) as recording:
    ...     y, _ = attention(x, words, words)
    >>> recording
    Recording(MultiheadAttention, 1 attention, 2 inputs)
    >>> recording.result(1).records[0].key_axis.labels
    ('a', 'cat', 'on', 'top')
    """

    def __init__(self, search: ProgramSearch, axes: dict[str, Axis], *, mean: bool = False) -> None:
        self._search, self._given, self._block = search, axes, ExitStack()
        self._is_over = False
        self._calls: list[Recorded] = []
        self._means: dict[object, _Mean] = {}  # by input, module, size, and number in a call of it
        self._last: dict[str, tuple[int, int]] = {}  # the entry and number of each module's last
        search.take = self._add_to_mean if mean else self._calls.append

    def __repr__(self) -> str:
        attentions = counted(self.calls, "attention")
        return f"Recording({self.name}, {attentions}, {counted(self.inputs, 'input')})"

    def __enter__(self) -> Self:
        self._block.enter_context(self._search.recording())
        return self

    def __exit__(self, *exception: Any) -> None:
        self._is_over = True
        self._block.__exit__(*exception)

    @property
    def name(self) -> str:
        """The names of the outermost modules, as captions have them."""
        return " + ".join(self._search.inputs) or "a program"

    @property
    def calls(self) -> int:
        """How many attentions were recorded."""
        return len(self._calls) + sum(one.calls for one in self._means.values() if one.row == 0)

    @property
    def inputs(self) -> int:
        """How many inputs the largest batch has."""
        rows = (1 + one.row for one in self._means.values())
        return max([*(one.texts for one in self._calls), *rows], default=0)

    @checked
    @torch.no_grad()
    def result(self, row: int = 0) -> AttentionResult:
        """Return the attentions of one input of the batch, with the proof of every head.

        The weights are recomputed in float64 from the queries, keys and mask of each call. They are
        compared with the weights of the call, or, where it was fused, with those of torch's own
        unfused attention on the same vectors; and what they mix with the output of the call.

        Parameters
        ----------
        row : int, default 0
            The input, counted from 0.

        Returns
        -------
        AttentionResult
            Its records are in the order of execution. Their `path` names a module, and `call`
            counts its attentions.

        Raises
        ------
        InputError
            The block has not ended, or there is no such input.
        ModelError
            No attention ran, or none that can be read.
        """
        row, search = whole_number(row, "a row"), self._search
        if not self._is_over:
            raise InputError("The block has not ended. Ask for the result after it.")
        if not self.calls:
            none = "no softmax over products q·k ran", "none of its attentions was chosen"
            chooses = search.patterns is not None or search.wanted is not None
            path, reason = next(iter(search.unreadable), ("", none[chooses]))
            raise ModelError(
                f"There is no attention to show of {self.name}: {f'in {path}, ' if path else ''}"
                f"{reason}. Run a model inside the block, in its thread."
            )
        if not 0 <= row < self.inputs:
            raise InputError(f"row must be from 0 to {self.inputs - 1}, not {row}.")
        stacks, means = self._stacks(), [one for one in self._means.values() if one.row == row]
        records, proofs = [one.record for one in means], [p for one in means for p in one.proofs]
        first = means[0].first if means else None
        for call in sorted(self._calls, key=attrgetter("order")):
            record, reference = self._read(call, row, stacks)
            records.append(record)
            proofs += agreement.prove_all([record], [reference])
            first = first or record
        assert first is not None
        # Modules without weights get them from the program (torch.func.functional_call).
        are_known = not any(one.is_meta for one in search.model.state_dict().values())
        sha256 = sha256_of_state(search.model) if are_known else ""
        known: dict[str, Any] = {"weights_sha256": sha256, "versions": package_versions()}
        report = agreement.report(
            proofs,
            str(first.query.dtype).removeprefix("torch."),
            str(first.query.device),
            input=InputCheck(True),
            digests=digests_of(records),
            **known,
        )
        read = {name: Arguments(given).summary for name, given in search.inputs.items()}
        named = [shapes if len(read) == 1 else f"{name}: {shapes}" for name, shapes in read.items()]
        provenance = Provenance(
            model=self.name,
            text=None,
            pair=None,
            dtype=report.dtype,
            device=report.device,
            computation=read_computation(search.model),
            inputs=" + ".join(named) or None,
            **known,
        )
        picture = next((shown_pixels(x[row % len(x)]) for x in self._pixels.values()), None)
        counts = dict.fromkeys(counted(one.calls, "call") for one in means)
        notes = search.notes() + tuple(f"mean maps of {count} of a module" for count in counts)
        sizes = {size for record in records for size in record.size}
        kinds = [(kind.partition(" ")[0], len(axis) in sizes) for kind, axis in self._given.items()]
        unfit = dict.fromkeys(kind for kind, _ in kinds if (kind, True) not in kinds)
        notes += tuple(f"the labels of {kind} fit no map" for kind in unfit)
        return AttentionResult(tuple(records), report, provenance, picture, notes=notes)

    @torch.no_grad()
    def _add_to_mean(self, call: Recorded) -> None:
        """Prove a call that has just run, and add its maps to the means of its module."""
        entry, number = self._last.get(call.path, (0, 0))  # of several in one call of a module
        number = number + 1 if call.path and entry == call.entry else 0
        self._last[call.path] = call.entry, number
        for row in range(call.texts):
            record, reference = self._read(call, row, self._stacks())
            key = row, record.path, record.size, number
            if key not in self._means:
                others = [one.first for one in self._means.values() if one.row == row]
                layer = sum(one.stack == record.stack for one in others)
                self._means[key] = _Mean(row, replace(record, layer=layer))
            self._means[key].add(record, reference)

    def _read(
        self, call: Recorded, row: int, stacks: StackCounter
    ) -> tuple[AttentionRecord, Reference]:
        """Return the record of one input of a call, and what the call computed."""
        record, reference = record_alone(call_of(call, row), stacks)
        root, _, path = record.path.partition(".")
        inside = replace(record, path=path)
        if (pixels := self._pixels.get(root)) is not None:
            module = self._search.model.get_submodule(root)
            inside = place_windows(module, {"pixel_values": pixels}, inside)
        is_alone = len(self._search.inputs) == 1  # else the name of the outermost module is kept
        return inside if is_alone else replace(inside, path=record.path), reference

    def _stacks(self) -> StackCounter:
        """Return what places attentions, with the axes of the images as the modules cut them."""
        axes = {**self._given}
        for name, pixels in self._pixels.items():
            module = self._search.model.get_submodule(name)
            if (axis := image_axis(module, {"pixel_values": pixels})) is not None:
                axes[f"image of {name}"] = axis
        return StackCounter(axes, by_size=True)

    @property
    def _pixels(self) -> dict[str, Tensor]:
        """The images that the outermost modules read, by their names."""
        inputs = self._search.inputs.items()
        read = {name: pixels_among(given.values()) for name, given in inputs}
        return {name: pixels for name, pixels in read.items() if pixels is not None}


@dataclass(eq=False)
class _Mean:
    """The mean maps of one module over its calls, with the proof of each call."""

    row: int
    first: AttentionRecord
    total: Tensor | None = None  # of the weights (H, m, n), float64
    calls: int = 0
    proofs: list[agreement.Proof] = field(default_factory=list)

    def add(self, record: AttentionRecord, reference: Reference) -> None:
        """Prove a call, and add its weights."""
        record = replace(record, layer=self.first.layer, stack=self.first.stack)
        self.proofs += agreement.prove_all([record], [reference])
        weights = record.weights(dtype=torch.float64).cpu()
        self.total = weights if self.total is None else self.total.add_(weights)
        self.calls += 1

    @property
    def record(self) -> AttentionRecord:
        """The mean weights as an attention of which only these are known."""
        assert self.total is not None
        axes, mean = (self.first.query_axis, self.first.key_axis), self.total / self.calls
        record = GivenAttention.of(mean.float(), self.first.layer, self.first.stack, axes)
        return replace(record, path=self.first.path)
