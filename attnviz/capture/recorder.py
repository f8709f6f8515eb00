"""Runs of the untouched model, recorded: the tensors of every attention that it executes.

An attention is captured in one of two ways. Most models of transformers fetch the function that
computes their attention from `AttentionInterface`: its arguments say all (attention_interface.py).
All other attentions are found among the operators that torch executes (tracing). Either way the
model's own code computes, and nothing in the model is replaced. Each softmax over products q·k is
one attention, so none is missed.
"""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.capture.attention_call import Attention, AttentionCall
from attnviz.capture.attention_interface import (
    AttentionCallArgs,
    from_arguments,
    intercept_attention,
)
from attnviz.capture.projections import (
    AttentionModule,
    ModuleInputs,
    find_attention_modules,
    find_output,
    read_inputs,
)
from attnviz.capture.restore import model_lock, restoring
from attnviz.capture.tracing import NotExpressibleError, OperatorTracer, Softmax, arrange
from attnviz.errors import ModelError
from attnviz.models.parameters import devices
from attnviz.runtime.compat import outside_dispatch_modes
from attnviz.runtime.libraries import translate
from attnviz.runtime.memory import MemoryBudget

_HEAD_COUNTS = (
    "num_attention_heads", "num_heads", "n_heads", "n_head", "nhead", "num_head", "heads", "h",
    "encoder_attention_heads", "decoder_attention_heads",
)  # fmt: skip
_COMPARED = 12  # maps in float64 that comparing one attention takes (measured on BERT)


# --------------------------------------------------------------------------- running a model


@contextmanager
def model_errors(model: nn.Module) -> Iterator[None]:
    """Turn any exception of a model that runs into one line.

    Raises
    ------
    ModelError
        The model fails on this input.
    InputError
        There is not enough memory.
    """
    failure = f"Expected {type(model).__name__} to run on this input, but it fails"
    hint = ". Check its config.json, or try another input."
    with translate(memory_budget(model), failure, hint):
        yield


def memory_budget(model: nn.Module) -> MemoryBudget:
    """Return the memory for attention maps on the model's device, and what to do without it."""
    device = devices(model)[0]
    elsewhere = "" if device.type == "cpu" else ", device='cpu' (--device cpu)"
    return MemoryBudget(
        f"the attention maps of {type(model).__name__}",
        device,
        "Use mode='streamed' (--mode streamed), a shorter text (--truncate), fewer texts at once, "
        f"dtype='bfloat16' (--dtype bfloat16){elsewhere}, or a smaller model.",
    )


def batch_size(model: nn.Module, inputs: Mapping[str, Tensor]) -> int:
    """Return how many texts (images, recordings) a batch holds."""
    tensors = {name: tensor for name, tensor in inputs.items() if isinstance(tensor, Tensor)}
    main_name = str(getattr(model, "main_input_name", ""))
    return len(tensors.get(main_name, next(iter(tensors.values()), [None])))


def minimal_run(model: nn.Module, inputs: Mapping[str, Tensor]) -> Callable[[], object]:
    """Return a run of the model without a cache and without the logits of every token."""
    accepted = inspect.signature(model.forward).parameters
    options = {"use_cache": False, "logits_to_keep": 1}
    arguments = {
        **inputs,
        **{name: value for name, value in options.items() if name in accepted},
    }
    return lambda: model(**arguments)


# ----------------------------------------------------------------------------- recording runs


def record_runs(
    model: nn.Module, texts: int, *runs: Callable[[], object]
) -> tuple[list[AttentionCall], ...]:
    """Record several runs on a batch of N texts, each of the model as the user has it."""
    with model_lock:
        modules = find_attention_modules(model)
        recorded = []
        for run in runs:
            with restoring(model):
                recorded.append(record(model, run, modules, texts))
    return tuple(recorded)


def expect_same(
    model: nn.Module, calls: Sequence[AttentionCall], again: Sequence[AttentionCall]
) -> None:
    """Raise ModelError unless two runs executed the same attentions."""
    if [call.path for call in calls] != [call.path for call in again]:
        raise ModelError(
            f"Expected {type(model).__name__} to execute the same attentions in every run, but two "
            "runs on the same input differ. This model cannot be verified."
        )


@torch.no_grad()
def record(
    model: nn.Module,
    run: Callable[[], object],
    modules: Mapping[str, AttentionModule],
    texts: int,
) -> list[AttentionCall]:
    """Return the attentions that the model executes in a run, in the order of execution.

    Parameters
    ----------
    run : callable
        Runs the model on a batch of `texts` texts.
    modules : mapping
        The attention modules of the model, by path.

    Raises
    ------
    ModelError
        The model executed no attention, or one that could not be read.
    """
    recorder = _Recorder(model, texts, modules)
    with (
        intercept_attention(recorder.on_call, recorder.paths),
        recorder.tracer,
        model_errors(model),
    ):
        run()
    recorder.arrange_pending(0)
    calls = recorder.finish()
    recorder.clear()
    return calls


@dataclass(frozen=True, eq=False)
class _RunningModule:
    """A module whose forward has been entered and not left."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(eq=False)
class _Recorded:
    """An attention that was executed; its tensors may be pending."""

    path: str
    inputs: ModuleInputs
    through_interface: bool
    attention: Attention | None = None


@dataclass(frozen=True, eq=False)
class _Pending:
    """A softmax whose product with the values is still to come."""

    softmax: Softmax
    recorded: _Recorded
    depth: int
    heads: int | None


class _Recorder:
    """Collects every attention of a run, in the order of execution."""

    def __init__(
        self, model: nn.Module, texts: int, modules: Mapping[str, AttentionModule]
    ) -> None:
        constants = [*model.parameters(), *model.buffers()]
        self.tracer = OperatorTracer(constants, self._on_softmax, self._on_unreadable)
        self.paths = {module: path for path, module in model.named_modules()}
        self._thread = threading.get_ident()
        self._recorded: list[_Recorded] = []
        self._unreadable: list[tuple[str, str]] = []
        self._pending: list[_Pending] = []
        self._running: list[_RunningModule] = []
        self._model = model
        self._texts = texts
        self._memory_checked = False
        self._modules = modules
        self._outputs = {path: find_output(model, path) for path in self.paths.values()}
        self._output_calls: dict[nn.Module, list[tuple[Any, Any]]] = {
            module: [] for module in self._outputs.values() if module is not None
        }
        for module in model.modules():
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
            module.register_forward_hook(self._leave, always_call=True)

    def on_call(self, args: AttentionCallArgs) -> Any:
        """Call the model's own attention function, and record its arguments."""
        if not self._can_read(args):
            return args.call()
        with self.tracer.collect_softmaxes() as softmaxes:
            result = args.call()
        path = self.paths[args.module]
        if len(softmaxes) != 1:
            count = len(softmaxes) or "no"
            self._unreadable.append((path, f"its attention function computes {count} softmax"))
            return result
        self._recorded.append(
            _Recorded(
                path,
                self._inputs_of(args.module),
                through_interface=True,
                attention=from_arguments(args, softmaxes[0], result[0]),
            )
        )
        return result

    def arrange_pending(self, depth: int) -> None:
        """Finish the attentions of modules deeper than `depth`, which have been left."""
        done = [pending for pending in self._pending if pending.depth > depth]
        self._pending = [pending for pending in self._pending if pending.depth <= depth]
        with outside_dispatch_modes():
            for pending in done:
                if not pending.softmax.used:  # the model computes it and ignores it: no attention
                    self._recorded.remove(pending.recorded)
                    continue
                try:
                    pending.recorded.attention = arrange(
                        pending.softmax, self._texts, pending.heads
                    )
                except NotExpressibleError as error:
                    self._unreadable.append((pending.recorded.path, str(error)))
        self.tracer.forget(depth)

    def finish(self) -> list[AttentionCall]:
        """Return all attentions, numbered by module, or raise ModelError for an unreadable one."""
        name = type(self._model).__name__
        if self._unreadable:
            path, reason = self._unreadable[0]
            most = max(len(self._recorded), len(self._unreadable))
            raise ModelError(
                f"Expected to read each of the {most} attentions that {name} executes, "
                f"but {len(self._unreadable)} cannot be: in {path}, {reason}. Nothing is drawn "
                "that was not recorded."
            )
        if not self._recorded:
            raise ModelError(
                f"Expected a model with attention, but {name} executes no softmax over products of "
                "queries and keys. There is no attention to show."
            )
        counts: Counter[str] = Counter()
        calls, device = [], devices(self._model)[0]
        for recorded in self._recorded:
            assert recorded.attention is not None
            number = counts[recorded.path]
            counts[recorded.path] += 1
            call = AttentionCall(
                recorded.path,
                number,
                recorded.attention,
                recorded.inputs,
                self._modules.get(recorded.path),
                recorded.through_interface,
                *self._output_of(recorded.path, number, recorded.attention),
            )
            calls.append(call.to(device))
        return calls

    def clear(self) -> None:
        """Release all tensors: the recorder and its tracer refer to each other."""
        self._recorded.clear()
        self._output_calls.clear()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            self._unreadable.append((self.paths[module], "it runs in another thread"))
            return
        self._running.append(_RunningModule(module, args, kwargs))
        self.tracer.provenance.depth = len(self._running)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._running.pop()
        self.tracer.provenance.depth = len(self._running)
        if module in self._output_calls:
            self._output_calls[module].append((args[0] if args else None, output))
        # What a module returns to its siblings must outlive it.
        self.arrange_pending(len(self._running) + 1)
        if not self._memory_checked and self._recorded and self._recorded[0].attention is not None:
            self._expect_memory(self._recorded[0].attention)

    def _expect_memory(self, first: Attention) -> None:
        """Refuse maps that do not all fit in memory, once the size of the first is known."""
        self._memory_checked = True
        size = first.scores.nbytes + first.weights.nbytes
        all_maps = size * max(1, len(self._modules))
        compared = _COMPARED * torch.float64.itemsize * first.weights[0].numel()
        # Those of two runs at once, and later those of one while they are compared.
        memory_budget(self._model).expect(max(2 * all_maps, all_maps + compared) - size)

    def _on_softmax(self, softmax: Softmax) -> None:
        module = self._innermost_module()
        recorded = _Recorded(self.paths[module], self._inputs_of(module), through_interface=False)
        self._recorded.append(recorded)
        self._pending.append(_Pending(softmax, recorded, len(self._running), self._count_heads()))

    def _on_unreadable(self, reason: str) -> None:
        self._unreadable.append((self.paths[self._innermost_module()], reason))

    def _innermost_module(self) -> nn.Module:
        """Return the innermost module that has parameters: not a softmax by itself."""
        return next(
            (
                running.module
                for running in reversed(self._running)
                if any(True for _ in running.module.parameters())
            ),
            self._running[0].module,
        )

    def _can_read(self, args: AttentionCallArgs) -> bool:
        """Whether the arguments describe the attention; otherwise its operators are traced."""
        return (
            len(args.query) == self._texts
            and args.query.dim() == 4
            and (args.mask is None or args.mask.is_floating_point())
            and args.arguments.get("indices") is None
        )

    def _inputs_of(self, module: nn.Module) -> ModuleInputs:
        running = next((one for one in reversed(self._running) if one.module is module), None)
        if running is None:
            return ModuleInputs()
        return read_inputs(module, running.args, running.kwargs, self._texts)

    def _count_heads(self) -> int | None:
        """Return the number of heads that the innermost module with such an attribute names."""
        for running in reversed(self._running):
            for owner in (running.module, getattr(running.module, "config", None)):
                for name in _HEAD_COUNTS:
                    if isinstance(heads := getattr(owner, name, None), int):
                        return heads
        return None

    def _output_of(
        self, path: str, number: int, attention: Attention
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the input of W^O, cut into heads, and its output."""
        module = self._outputs[path]
        calls = self._output_calls.get(module, []) if module is not None else []
        if number >= len(calls) or attention.head_output is None:
            return None, None
        merged, output = calls[number]
        heads = attention.head_output.transpose(1, 2)
        if not isinstance(merged, Tensor) or not isinstance(output, Tensor):
            return None, None
        texts, queries = heads.shape[:2]
        if merged.numel() != heads.numel() or output.shape[:-1].numel() != texts * queries:
            return None, None
        # Patches may lie in rows and columns; some models multiply window by window.
        return merged.reshape(heads.shape).transpose(1, 2), output.reshape(texts, queries, -1)
