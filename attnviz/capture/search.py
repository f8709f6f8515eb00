"""A search for every attention of a run: among the operators that torch executes.

Not every model fetches its attention from transformers' interface. Each softmax over products q·k
is one attention (tracing), so none is missed; and each call that is linear in its values is one too
(linear.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch import Tensor, nn

from attnviz.capture import calls
from attnviz.capture.linear import Call, Layout, LinearCalls, LinearMixing
from attnviz.capture.recorder import Recorded, Recorder, Recording
from attnviz.capture.tracing.arrange import NotExpressibleError, arrange
from attnviz.capture.tracing.provenance import Softmax
from attnviz.capture.tracing.tracer import OperatorTracer
from attnviz.errors import ModelError
from attnviz.runtime.compat import outside_dispatch_modes

_HEAD_COUNTS = (
    "num_attention_heads", "num_heads", "n_heads", "n_head", "nhead", "num_head", "heads", "h",
    "encoder_attention_heads", "decoder_attention_heads",
)  # fmt: skip


class Search(Recorder):
    """Collects every attention of a run.

    is_first : whether the matrices of linear attention are computed, or what they are compared
    with. known : which calls are linear; by default it is tested.
    """

    def __init__(
        self, model: nn.Module, texts: int, *, is_first: bool, known: LinearCalls | None = None
    ) -> None:
        constants = [*model.parameters(), *model.buffers()]
        self._tracer = OperatorTracer(constants, self._on_softmax, self._on_unreadable)
        super().__init__(model, texts, tracer=self._tracer)
        self._linear_calls, self._is_first = known or LinearCalls(constants, texts), is_first
        self._linear: list[LinearMixing] = []
        # The calls of submodules by each running module; None if its own code is of no interest.
        self._called: list[list[calls.SubmoduleCall] | None] = []
        self._is_replaying = False
        self.mode = self._watching()
        # Softmaxes whose weights enter no product with values, as far as the run has come.
        self._unmixed: list[tuple[str, Softmax]] = []
        # Softmaxes whose product with the values is still to come, and the number of their heads.
        self._pending: list[tuple[Recorded, Softmax, int | None]] = []
        self._lengths: set[int] = set()

    @contextmanager
    def _watching(self) -> Iterator[None]:
        def position() -> tuple[int, int]:
            return len(self._recorded), len(self._linear)

        with self._tracer, calls.watching_functions(self.model, position, self._on_function):
            yield

    def _on_function(
        self, call: calls.FunctionCall, result: Tensor, before: tuple[int, int]
    ) -> None:
        """Record a call that mixes values linearly, in place of those that it made itself."""
        attentions, mixtures = before
        is_batch = result.dim() > 2 and len(result) % self.texts == 0
        is_watched = bool(self.running) and not self._is_replaying
        if not is_watched or len(self._recorded) > attentions or not is_batch:
            return
        with self._replaying():
            layout = self._linear_calls.layout(call, result, self.lengths())
            if layout is not None:
                del self._linear[mixtures:]
                self._read_mixing(self.innermost_module(), call, layout, result)

    def _on_module(self, run: calls.ModuleRun) -> None:
        """Record what a module mixes linearly; not beside softmax, nor around a mixture."""
        # Not the softmaxes whose weights were multiplied by no values.
        unmixed = [recorded for recorded, softmax, _ in self._pending if not softmax.mixtures]
        attending = {one.path for one in self._recorded if one not in unmixed}
        path = self.paths[run.module]
        mixing = {one.path for one in self._linear} | attending
        if any(one == path or one.startswith(f"{path}.") for one in mixing):
            return
        if _block(path) in {_block(one) for one in attending}:
            return
        heads = self._count_heads() or 0
        with self._replaying():
            for call, layout in self._linear_calls.inline(run, heads, self.lengths()):
                self._read_mixing(run.module, call, layout, call.result)

    def _read_mixing(self, module: nn.Module, call: Call, layout: Layout, result: Tensor) -> None:
        path, is_first = self.paths[module], self._is_first
        mixing = self._linear_calls.read(path, module, call, layout, result, with_matrix=is_first)
        self._linear.append(mixing)

    @contextmanager
    def _replaying(self) -> Iterator[None]:
        """Let the model's code run again, which is no part of the run that is watched."""
        self._is_replaying = True
        try:
            with outside_dispatch_modes():
                yield
        finally:
            self._is_replaying = False

    def finish(self) -> None:
        """Arrange the attentions that are left; raise ModelError for an unreadable one."""
        self._arrange_pending(0)
        self.unreadable += [
            (path, "its weights enter no product with values")
            for path, softmax in self._unmixed
            if softmax.multiplied
        ]
        name = type(self.model).__name__
        if self.unreadable:
            path, reason = self.unreadable[0]
            most = max(len(self._recorded), len(self.unreadable))
            raise ModelError(
                f"{len(self.unreadable)} of the {most} attentions of {name} cannot be read: in "
                f"{path}, {reason}. Choose another model."
            )
        # What is in the place of attention: no rotation in it, no convolution beside it.
        attentions = {recorded.path for recorded in self._recorded}
        mixing = [one for one in self._linear if one.path not in attentions]
        blocks = {_block(path) for path in (*attentions, *(m.path for m in mixing if m.arguments))}
        self._linear = [one for one in mixing if one.arguments or _block(one.path) not in blocks]
        if not self._recorded and not self._linear:
            raise ModelError(
                f"{name} executes no softmax over products of queries and keys, and no linear "
                "attention. There is no attention to show: choose another model."
            )

    def take_recording(self) -> Recording:
        """Return all attentions, numbered by module, and release them, with notes."""
        # A softmax that the model computes and ignores is not worth a word.
        not_attention = [
            f"not attention: a softmax in {self._name(path)}, whose weights are multiplied by no "
            "values"
            for path, softmax in self._unmixed
            if softmax.used
        ]
        recording = super().take_recording()
        not_compared = [
            f"not compared: in {self._name(call.path)} the weights are also multiplied by values "
            "that differ from query to query"
            for call in recording.calls
            if not call.attention.compares_all
        ]
        notes = tuple(dict.fromkeys([*not_attention, *not_compared]))
        return Recording(recording.calls, self._linear_calls, notes, tuple(self._linear))

    def _name(self, path: str) -> str:
        return path or type(self.model).__name__

    def on_enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a module starts to run."""
        if self._is_replaying:
            return
        super().on_enter(module, args, kwargs)
        self._called.append([] if _has_own_code(module) else None)
        self._tracer.provenance.depth = len(self.running)

    def on_leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Arrange the attentions inside a module that has run."""
        if self._is_replaying:
            return
        _, _, kwargs = self.running[-1]
        called = self._called.pop()
        if called and (run := calls.ModuleRun.read(module, args, kwargs, called, output)):
            self._on_module(run)
        if self._called and (siblings := self._called[-1]) is not None:
            name = self.paths[module].rpartition(".")[2]
            taken = calls.tensor_taken(args, kwargs)
            siblings.append(calls.SubmoduleCall(name, module, taken, output))
        super().on_leave(module, args, output)
        self._tracer.provenance.depth = len(self.running)
        # What a module returns to its siblings must outlive it.
        self._arrange_pending(len(self.running) + 1)

    def _arrange_pending(self, depth: int) -> None:
        """Finish the attentions of modules deeper than `depth`, which have been left."""
        pending, self._pending = self._pending, []
        with outside_dispatch_modes():
            for recorded, softmax, heads in pending:
                if softmax.depth <= depth:
                    self._pending.append((recorded, softmax, heads))
                elif not softmax.mixtures:  # until the end of the run nothing shows what it is
                    self._recorded.remove(recorded)
                    self._unmixed.append((recorded.path, softmax))
                else:
                    try:
                        recorded.attention = arrange(softmax, self.texts, heads, self._lengths)
                    except NotExpressibleError as error:
                        self.unreadable.append((recorded.path, str(error)))
        self._tracer.forget(depth)

    def _on_softmax(self, softmax: Softmax) -> None:
        module = self.innermost_module()
        inputs = self.inputs_of(module)
        recorded = Recorded(self.paths[module], inputs, False, self._entries[module])
        self._recorded.append(recorded)
        self._lengths |= self.lengths()
        self._pending.append((recorded, softmax, self._count_heads()))

    def _on_unreadable(self, reason: str) -> None:
        self.unreadable.append((self.paths[self.innermost_module()], reason))

    def _count_heads(self) -> int | None:
        """Return the number of heads that the innermost module with such an attribute names."""
        for module, _, _ in reversed(self.running):
            for owner in (module, getattr(module, "config", None)):
                for name in _HEAD_COUNTS:
                    with suppress(Exception):  # a config may know it for each layer only
                        if isinstance(heads := getattr(owner, name, None), int):
                            return heads
        return None


def _has_own_code(module: nn.Module) -> bool:
    """Whether a module may mix tokens between its submodules: it is no list of layers."""
    is_container = any(isinstance(child, nn.ModuleList) for child in module.children())
    is_of_torch = type(module).__module__.partition(".")[0] == "torch"
    return not is_container and not is_of_torch


def _block(path: str) -> str:
    """Return the path of a module's block: "layers.3" of "layers.3.self_attn.k_conv"."""
    names = path.split(".")
    last = max((index for index, name in enumerate(names) if name.isdigit()), default=-1)
    return ".".join(names[: last + 1])
