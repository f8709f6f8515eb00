"""Linear attention of a long text: pooled maps, from calls with the same value in many positions.

A column of a pooled map is what comes out where the values of one cell of tokens are 1 and all
others 0: as many columns at once as a head has features. So neither M nor a row of it is stored.
Which functions are linear in their values is learned from the first tokens of the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnviz.capture.attention_interface import AttentionCallArgs
from attnviz.capture.capture import OwnNumbers, to_linear_record, to_linear_reference
from attnviz.capture.function_calls import FunctionCall, watching_functions
from attnviz.capture.linear import LinearCalls, LinearMixing, notes_on_unshown, read_mixing
from attnviz.capture.recorder import record_runs
from attnviz.capture.stacks import StackCounter
from attnviz.capture.watch import ModuleWatcher, expect_same, minimal_run, model_lock, watch
from attnviz.errors import ModelError
from attnviz.results import Axis, LinearAttention, LinearReference
from attnviz.runtime.compat import outside_dispatch_modes, supports_fused_attention

_START = 64  # tokens, from which is learned what is linear


@dataclass(frozen=True, eq=False)
class LinearLayers:
    """The linear attention of a model, as its run on the first tokens of a text shows it.

    calls : which calls are linear in their values. modules : the class of each layer's module.
    heads : of all layers together. is_all : whether the model has no softmax attention. notes : on
    layers that are neither.
    """

    calls: LinearCalls
    modules: tuple[str, ...]
    heads: int
    is_all: bool
    notes: tuple[str, ...]


def linear_calls(model: nn.Module, inputs: Mapping[str, Tensor]) -> LinearLayers | None:
    """Return what is linear attention in a model; None if its first tokens show no attention."""
    start = {name: tensor[:, :_START] for name, tensor in inputs.items()}
    run = minimal_run(model, start)
    try:
        (recording,) = record_runs(model, 1, run)
    except ModelError:
        return None
    shown = {one.path for one in recording.calls} | {one.path for one in recording.linear}
    return LinearLayers(
        recording.linear_calls,
        modules=tuple(mixing.module for mixing in recording.linear),
        heads=sum(mixing.values.shape[1] for mixing in recording.linear),
        is_all=not (recording.calls or supports_fused_attention(model)),
        notes=notes_on_unshown(model, run, shown),
    )


def capture_pooled(
    model: nn.Module, inputs: Mapping[str, Tensor], axis: Axis, known: LinearCalls, cell: int
) -> tuple[tuple[LinearAttention, ...], tuple[LinearReference, ...]]:
    """Run the untouched `model` twice on one text, and return the pooled maps of every layer.

    The records are from the first run, the references from the second.

    axis : the tokens. known : those of `linear_calls`. cell : how many tokens are pooled.
    """
    run = minimal_run(model, inputs)

    def mixtures(number: int) -> list[LinearMixing]:
        def watcher(model: nn.Module) -> _PooledRun:
            return _PooledRun(model, known, cell, number)

        return watch(model, run, watcher, seed=number).mixtures

    with model_lock:
        first, second = mixtures(0), mixtures(1)
    expect_same(model, *([f"{one.path} {one.function}" for one in run] for run in (second, first)))
    starts = range(0, len(axis), cell)
    cells = Axis.plain(
        [axis.labels[start] for start in starts],
        special=[all(axis.special[start : start + cell]) for start in starts],
    )
    stacks, own = StackCounter({"text": cells}), OwnNumbers(model)
    records = tuple(
        replace(to_linear_record(mixing, 0, stacks), text=axis, cell=cell) for mixing in first
    )
    references = tuple(to_linear_reference(mixing, 0) for mixing in second)
    return own.copy(records), own.copy(references)


class _PooledRun(ModuleWatcher):
    """Reads the pooled maps of one run, or what they are compared with."""

    def __init__(self, model: nn.Module, known: LinearCalls, cell: int, number: int) -> None:
        super().__init__(model, texts=1)
        self._known, self._cell, self._number = known, cell, number
        self.mixtures: list[LinearMixing] = []
        self.mode = watching_functions(model, lambda: len(self.mixtures), self._on_function)

    def on_call(self, args: AttentionCallArgs) -> tuple[Tensor, Tensor | None]:
        """Raise ModelError: the first tokens had no softmax attention."""
        raise ModelError(
            f"{self.paths[args.module]} attends by a softmax in a long text only. Give a shorter "
            'text with mode="full", or choose another model.'
        )

    def _on_function(self, call: FunctionCall, result: Tensor, before: int) -> None:
        """Read a call that mixes values linearly, in place of those that it made itself."""
        if not self.running or result.dim() < 3:
            return
        with outside_dispatch_modes():
            layout = self._known.layout(call, result, self.lengths())
            if layout is None:
                return
            module = self.innermost_module()
            if not torch.equal(call.again(), result):
                raise ModelError(
                    f"{call.name} in {self.paths[module]} computes something else when it is "
                    "called again. Choose another model."
                )
            del self.mixtures[before:]
            mixing = read_mixing(
                self.paths[module],
                type(module).__name__,
                call,
                layout,
                result,
                {},
                with_matrix=self._number == 0,
                cell=self._cell,
            )
            self.mixtures.append(mixing)
