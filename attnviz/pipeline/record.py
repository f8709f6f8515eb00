"""Record the attention of any program that runs in a block, and verify every call of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from attnviz import agreement
from attnviz.capture.capture import record_alone
from attnviz.capture.computation import read_computation
from attnviz.capture.positions import StackCounter, place_windows
from attnviz.capture.search import ProgramSearch
from attnviz.errors import InputError, ModelError, positive_number, whole_number, whole_numbers
from attnviz.inputs import Arguments, parse_labels
from attnviz.inputs.image import grid_axes, image_axis, pixels_among, shown_pixels
from attnviz.models.checkpoint import sha256_of_state
from attnviz.pipeline import package_versions
from attnviz.results import AttentionRecord, AttentionResult, Axis, InputCheck, Provenance
from attnviz.results.arguments import checked
from attnviz.results.text import counted
from attnviz.runtime.libraries import silence_logs


@checked
def record(
    *,
    modules: str | Sequence[str] | None = None,
    calls: int | Sequence[int] | None = None,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    grid: Sequence[int] | None = None,
) -> Recording:
    """Record every softmax attention that runs in a block of code, in any program of PyTorch.

    The code may call any modules and functions, several times. Nothing of it is changed, and it
    computes the same numbers; but what `torch.compile` made runs uncompiled. Only the thread of the
    block is recorded.

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
    ...     y = layer(torch.ones(1, 5, 16))
    >>> result = recording.result()
    >>> result.records[0]
    AttentionRecord(encoder layer 0, 2 heads, 5 queries × 5 keys, self_attn)
    >>> result.agreement.verdict
    'verified'
    """
    patterns = (modules,) if isinstance(modules, str) else modules
    search = ProgramSearch(patterns, None if calls is None else whole_numbers(calls, "call"))
    given = {"queries": parse_labels(queries, "queries"), "keys": parse_labels(keys, "keys")}
    axes = {kind: Axis.of_labels(labels) for kind, labels in given.items() if labels is not None}
    if grid is not None:
        sides = [positive_number(side, "a side of grid") for side in grid]
        if len(sides) != 2:
            raise InputError(f"grid must be two numbers, its rows and columns, not {grid!r:.40}.")
        axes |= grid_axes((sides[0], sides[1]))
    return Recording(search, axes)


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

    def __init__(self, search: ProgramSearch, axes: dict[str, Axis]) -> None:
        self._search, self._given, self._block = search, axes, ExitStack()
        self._is_over = False

    def __repr__(self) -> str:
        attentions = counted(len(self._search.found), "attention")
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
    def inputs(self) -> int:
        """How many inputs the largest batch has."""
        return max((one.texts for one in self._search.found), default=0)

    @checked
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
            raise InputError("The program still runs. Ask for the result after the block.")
        if not search.found:
            path, reason = next(iter(search.unreadable), ("", "no softmax over products q·k ran"))
            raise ModelError(
                f"There is no attention to show of {self.name}: {f'in {path}, ' if path else ''}"
                f"{reason}. Run a model inside the block, in its thread."
            )
        if not 0 <= row < self.inputs:
            raise InputError(f"row must be from 0 to {self.inputs - 1}, not {row}.")
        records: list[AttentionRecord] = []
        proofs: list[agreement.Proof] = []
        stacks = StackCounter({**self._given, **self._of_images}, by_size=True)
        with torch.no_grad(), silence_logs():
            for call in search.calls_of(row):
                one, reference = record_alone(call, stacks)
                records.append(self._placed(one))
                proofs += agreement.prove_all(records[-1:], [reference])
        sha256, versions = sha256_of_state(search.model), package_versions()
        known: dict[str, Any] = {"weights_sha256": sha256, "versions": versions}
        report = agreement.verify(records, (), proofs=proofs, input=InputCheck(True), **known)
        provenance = Provenance(
            model=self.name,
            text=None,
            pair=None,
            dtype=report.dtype,
            device=report.device,
            computation=read_computation(search.model),
            inputs=self._summary,
            **known,
        )
        picture = next((shown_pixels(x[row % len(x)]) for x in self._pixels.values()), None)
        return AttentionResult(tuple(records), report, provenance, picture, notes=search.notes())

    @cached_property
    def _pixels(self) -> dict[str, Tensor]:
        """The images that the outermost modules read, by their names."""
        read = {name: pixels_among(args) for name, args in self._search.inputs.items()}
        return {name: pixels for name, pixels in read.items() if pixels is not None}

    @property
    def _of_images(self) -> dict[str, Axis]:
        """The axis of each of these images, as its module cuts it."""
        roots = dict(self._search.model.named_children())
        axes = {
            f"image of {name}": image_axis(roots[name], {"pixel_values": pixels})
            for name, pixels in self._pixels.items()
        }
        return {name: axis for name, axis in axes.items() if axis is not None}

    @property
    def _summary(self) -> str:
        """The arguments of the outermost modules, with their shapes."""
        return " + ".join(
            f"{name}: {Arguments({str(n): value for n, value in enumerate(args)}).summary}"
            for name, args in self._search.inputs.items()
        )

    def _placed(self, record: AttentionRecord) -> AttentionRecord:
        """Return a record with its windows labeled, and no prefix where there is one module."""
        root, _, path = record.path.partition(".")
        if root in self._pixels:
            inputs, model = {"pixel_values": self._pixels[root]}, self._search.model
            placed = place_windows(model.get_submodule(root), inputs, replace(record, path=path))
            record = replace(placed, path=record.path)
        return replace(record, path=path) if len(self._search.inputs) == 1 else record
