"""One run of a model, watched: what every attention saw, and what the model made of it.

Two ways lead to the same `AttentionCall`. Most of transformers' models fetch the function that
computes their attention from `AttentionInterface`; while a run is recorded the function handed out
is wrapped, so that its arguments are seen. All other attentions are found among the operators that
torch executes (operators). Either way the model's own code computes, ours only looks on, and
nothing in the model is replaced. Each softmax over products q·k is one attention, so none
is missed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.capture.attention_call import Attention, AttentionCall
from attnviz.capture.attention_interface import from_arguments, looking_on
from attnviz.capture.projections import (
    Arrived,
    Holder,
    arrived,
    find_output,
)
from attnviz.capture.run_model import room_to_run, running
from attnviz.capture.tracing import (
    NotExpressibleError,
    OperatorWatch,
    Softmax,
    arrange,
)
from attnviz.errors import ModelError
from attnviz.models.parameters import devices

_HEADS = (
    "num_attention_heads", "num_heads", "n_heads", "n_head", "nhead", "num_head", "heads", "h",
    "encoder_attention_heads", "decoder_attention_heads",
)  # fmt: skip
_COMPARED = 12  # maps in float64 that comparing one attention takes (measured on BERT)


@torch.no_grad()
def record(
    model: nn.Module, run: Callable[[], object], holders: Mapping[str, Holder], texts: int
) -> list[AttentionCall]:
    """Return the attentions that the model executes in a run, in the order of execution.

    Parameters
    ----------
    run : runs the model on a batch of so many texts.

    Raises
    ------
    ModelError : the model executed no attention, or one that could not be read.
    """
    recorder = _Recorder(model, texts, holders)
    with looking_on(recorder.look), recorder.watch, running(model):
        run()
    recorder.leave(0)
    calls = recorder.finish()
    recorder.forget()
    return calls


@dataclass(frozen=True, eq=False)
class _Entered:
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(eq=False)
class _Seen:
    """An attention that was executed; its tensors may still be to come."""

    path: str
    arrived: Arrived
    through_interface: bool
    attention: Attention | None = None


@dataclass(frozen=True, eq=False)
class _Pending:
    """A softmax whose values are still to come."""

    softmax: Softmax
    seen: _Seen
    depth: int
    heads: int | None


class _Recorder:
    """Collects every attention of a run, in the order of execution."""

    def __init__(self, model: nn.Module, texts: int, holders: Mapping[str, Holder]) -> None:
        fixed = [*model.parameters(), *model.buffers()]
        self.watch = OperatorWatch(fixed, self._on_softmax, self._on_unread)
        self._thread = threading.get_ident()
        self._seen: list[_Seen] = []
        self._unread: list[tuple[str, str]] = []
        self._pending: list[_Pending] = []
        self._inside: list[_Entered] = []
        self._model = model
        self._texts = texts
        self._room_is_seen = False
        self._paths = {module: path for path, module in model.named_modules()}
        self._holders = holders
        self._outputs = {path: find_output(model, path) for path in self._paths.values()}
        self._left: dict[nn.Module, list[tuple[Any, Any]]] = {
            module: [] for module in self._outputs.values() if module is not None
        }
        for module in model.modules():
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
            module.register_forward_hook(self._leave, always_call=True)

    def look(
        self,
        function: Callable[..., Any],
        eager: Callable[..., Any],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        **arguments: Any,
    ) -> Any:
        """Have the model's own attention function compute, and keep what it was called with."""
        if not self._can_read(module, query, attention_mask, arguments):
            return function(module, query, key, value, attention_mask, **arguments)
        with self.watch.only_noting() as softmaxes:
            result = function(module, query, key, value, attention_mask, **arguments)
        path = self._paths[module]
        if len(softmaxes) != 1:
            count = len(softmaxes) or "no"
            self._unread.append((path, f"its attention function computes {count} softmax"))
            return result
        self._seen.append(
            _Seen(
                path,
                self._arrived(module),
                through_interface=True,
                attention=from_arguments(
                    query, key, value, attention_mask, arguments, softmaxes[0], result[0]
                ),
            )
        )
        return result

    def leave(self, depth: int) -> None:
        """Bring to an end what happened in modules deeper than `depth`."""
        done = [each for each in self._pending if each.depth > depth]
        self._pending = [each for each in self._pending if each.depth <= depth]
        with self.watch.only_noting():
            for each in done:
                if not each.softmax.used:  # computed and never looked at: no attention
                    self._seen.remove(each.seen)
                    continue
                try:
                    each.seen.attention = arrange(each.softmax, self._texts, each.heads)
                except NotExpressibleError as error:
                    self._unread.append((each.seen.path, str(error)))
        self.watch.forget(depth)

    def finish(self) -> list[AttentionCall]:
        """Return all attentions, numbered by module, or raise for what could not be read."""
        name = type(self._model).__name__
        if self._unread:
            path, reason = self._unread[0]
            most = max(len(self._seen), len(self._unread))
            raise ModelError(
                f"Expected to read each of the {most} attentions that {name} executes, "
                f"but {len(self._unread)} cannot be: in {path}, {reason}. Nothing is drawn that "
                "was not recorded."
            )
        if not self._seen:
            raise ModelError(
                f"Expected a model with attention, but {name} executes no softmax over products of "
                "queries and keys. There is no attention to show."
            )
        counts: Counter[str] = Counter()
        calls, home = [], devices(self._model)[0]
        for seen in self._seen:
            assert seen.attention is not None
            number = counts[seen.path]
            counts[seen.path] += 1
            call = AttentionCall(
                seen.path,
                number,
                seen.attention,
                seen.arrived,
                self._holders.get(seen.path),
                seen.through_interface,
                *self._output(seen.path, number, seen.attention),
            )
            calls.append(call.to(home))
        return calls

    def forget(self) -> None:
        """Let go of what was seen: the recorder and its watch hold each other for a while."""
        self._seen.clear()
        self._left.clear()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            self._unread.append((self._paths[module], "it runs in another thread"))
            return
        self._inside.append(_Entered(module, args, kwargs))
        self.watch.memory.depth = len(self._inside)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._inside.pop()
        self.watch.memory.depth = len(self._inside)
        if module in self._left:
            self._left[module].append((args[0] if args else None, output))
        # What a module leaves to its siblings must outlive it.
        self.leave(len(self._inside) + 1)
        if not self._room_is_seen and self._seen and self._seen[0].attention is not None:
            self._expect_room(self._seen[0].attention)

    def _expect_room(self, first: Attention) -> None:
        """Refuse maps that cannot all be kept, once the first of them tells their size."""
        self._room_is_seen = True
        size = first.scores.nbytes + first.weights.nbytes
        every = size * max(1, len(self._holders))
        compared = _COMPARED * torch.float64.itemsize * first.weights[0].numel()
        # Those of two runs at once, and later those of one while they are compared.
        room_to_run(self._model).expect(max(2 * every, every + compared) - size)

    def _on_softmax(self, softmax: Softmax) -> None:
        module = self._at_work()
        seen = _Seen(self._paths[module], self._arrived(module), through_interface=False)
        self._seen.append(seen)
        self._pending.append(_Pending(softmax, seen, len(self._inside), self._heads()))

    def _on_unread(self, reason: str) -> None:
        self._unread.append((self._paths[self._at_work()], reason))

    def _at_work(self) -> nn.Module:
        """Return the innermost module that holds any parameters: not a softmax by itself."""
        return next(
            (
                each.module
                for each in reversed(self._inside)
                if any(True for _ in each.module.parameters())
            ),
            self._inside[0].module,
        )

    def _can_read(
        self, module: nn.Module, query: Tensor, mask: Tensor | None, arguments: Mapping[str, Any]
    ) -> bool:
        """Whether the arguments say all: if not, the operators tell."""
        return (
            module in self._paths  # else another model, running in another thread
            and len(query) == self._texts
            and query.dim() == 4
            and (mask is None or mask.is_floating_point())
            and arguments.get("indices") is None
        )

    def _arrived(self, module: nn.Module) -> Arrived:
        entered = next((each for each in reversed(self._inside) if each.module is module), None)
        if entered is None:
            return Arrived()
        return arrived(module, entered.args, entered.kwargs, self._texts)

    def _heads(self) -> int | None:
        """Return how many heads the innermost module that counts its heads has."""
        for each in reversed(self._inside):
            for holder in (each.module, getattr(each.module, "config", None)):
                for name in _HEADS:
                    if isinstance(heads := getattr(holder, name, None), int):
                        return heads
        return None

    def _output(
        self, path: str, number: int, attention: Attention
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return what W^O was given, cut into heads, and what it made of it."""
        module = self._outputs[path]
        left = self._left.get(module, []) if module is not None else []
        if number >= len(left) or attention.head_output is None:
            return None, None
        given, output = left[number]
        heads = attention.head_output.transpose(1, 2)
        if not isinstance(given, Tensor) or not isinstance(output, Tensor):
            return None, None
        texts, queries = heads.shape[:2]
        if given.numel() != heads.numel() or output.shape[:-1].numel() != texts * queries:
            return None, None
        # Patches may lie in rows and columns; some multiply window by window.
        return given.reshape(heads.shape).transpose(1, 2), output.reshape(texts, queries, -1)
