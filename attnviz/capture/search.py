"""A search for every attention of a run, and the plan that it leaves for later runs.

The search looks among the operators that torch executes. Each softmax over products q·k is one
attention (tracing), so none is missed; and each call that is linear in its values is one too.

A search costs several times the run of the model. What it finds depends on the model's code and not
on its numbers. So it is kept, as a plan, for models with the same code, hooks, settings and config.
A later run is recorded by the plan, and its operators are counted. If it executes other attentions,
or other operators from which one could be made, it is searched again. No numbers are kept.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from fnmatch import fnmatch
from functools import lru_cache, partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnviz.capture import calls
from attnviz.capture.attention_interface import OwnAttention
from attnviz.capture.linear import Call, Layout, LinearCalls, LinearMixing
from attnviz.capture.projections.find import ModuleInputs
from attnviz.capture.recorder import (
    COMPARED,
    AttentionCall,
    FusedAttention,
    Recorded,
    Recorder,
    Recording,
)
from attnviz.capture.tracing.arrange import Axes, Batch, NotExpressibleError, arrange
from attnviz.capture.tracing.provenance import Softmax
from attnviz.capture.tracing.tracer import OperatorTracer
from attnviz.capture.watch import (
    expect_same,
    map_tensors,
    moved_by_attention,
    needs_isolation,
    watch,
)
from attnviz.errors import ModelError
from attnviz.models.pretrained import batch_size, forward_parameters
from attnviz.runtime import compat
from attnviz.runtime.libraries import MemoryBudget

_HEAD_COUNTS = (
    "num_attention_heads", "num_heads", "n_heads", "n_head", "nhead", "num_head", "heads", "h",
    "encoder_attention_heads", "decoder_attention_heads",
)  # fmt: skip
# Of products of activations and of a normalization each attention is made.
_OF_ATTENTION = {*compat.SOFTMAX, "exp", "logsumexp", "bmm", "baddbmm"}
_OTHER_OUTPUT = "not compared: what heads return in {}: more than weights and values enters it"
_OVER_QUERIES = "the softmax of {} runs over its queries: they are the columns of its maps"
_OTHER_VALUES = (
    "not compared: in {} the weights are also multiplied by values that differ from query to query"
)
_SHORT = 4  # tokens of a text that shows whether attention moves the output
_REPEATED = 7  # a text of one token, where no width of a model is as small
_FEWEST_QUERIES = 4  # with fewer positions a search may not tell what mixes them
_WITH_FAST_PATH = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
_SETTINGS = (str, int, float, type(None))
_PLAIN = (*_SETTINGS, list, tuple, dict)


class Search(Recorder):
    """Collects every attention of a run; linear attention, too, of a model of transformers.

    is_first : whether the matrices of linear attention are computed, or what they are compared
    with. known : which calls are linear; by default it is tested.
    """

    def __init__(
        self, model: nn.Module, texts: int, *, is_first: bool, known: LinearCalls | None = None
    ) -> None:
        constants = [*model.parameters(), *model.buffers()]
        found = self._on_softmax, self._on_fused, self._on_unreadable
        others = self._on_other if isinstance(model, Program) else None
        self._tracer = OperatorTracer(model, *found, others)
        super().__init__(model, texts, tracer=self._tracer)
        self._linear_calls, self._is_first = known or LinearCalls(constants, texts), is_first
        self._linear: list[LinearMixing] = []
        # The calls of submodules by each running module; None if its own code is of no interest.
        self._called: list[list[calls.SubmoduleCall] | None] = []
        self._is_replaying = False
        # Other code may write its arguments: it is not called again to see what is linear.
        self._finds_linear = isinstance(model, PreTrainedModel)
        self.mode = self._watching() if self._finds_linear else self._tracer
        # Softmaxes whose weights enter no product with values, as far as the run has come.
        self._unmixed: list[tuple[str, Softmax]] = []
        self._uncompared: list[tuple[str, str]] = []  # paths, and what is not compared there
        # Softmaxes whose product with the values is still to come.
        self._pending: list[tuple[Recorded, Softmax, Batch]] = []
        self._lengths: set[int] = set()
        self._own = OwnAttention()

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
        of_call = self.paths[module], module, call, layout, result
        self._linear.append(self._linear_calls.read(*of_call, with_matrix=self._is_first))

    @contextmanager
    def _replaying(self) -> Iterator[None]:
        """Let the model's code run again, which is no part of the run that is watched."""
        self._is_replaying = True
        try:
            with compat.outside_dispatch_modes():
                yield
        finally:
            self._is_replaying = False

    def finish(self) -> None:
        """Arrange the attentions that are left; raise ModelError for an unreadable one."""
        self._arrange_pending(0)
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
        calls = super().take_recording().calls
        return Recording(calls, self._linear_calls, self.notes(), tuple(self._linear))

    def notes(self) -> tuple[str, ...]:
        """Return notes on softmaxes that are no attention, and on what is not read or compared."""
        found = [
            (path, "not attention: a softmax in {}, whose weights are multiplied by no values")
            for path, softmax in self._unmixed
            if softmax.used and softmax.products and not softmax.multiplied
        ]
        found += [(path, f"not shown: attention of {{}}: {why}") for path, why in self.unreadable]
        name = type(self.model).__name__
        every = (note.format(path or name) for path, note in (*found, *self._uncompared))
        return tuple(dict.fromkeys(every))

    def on_enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a module starts to run."""
        if self._is_replaying:
            return
        super().on_enter(module, args, kwargs)
        self._called.append([] if self._finds_linear and _has_own_code(module) else None)
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
        self._unmixed = [(path, one) for path, one in self._unmixed if not one.mixtures]
        with compat.outside_dispatch_modes():
            for recorded, softmax, batch in pending:
                if softmax.depth <= depth:
                    self._pending.append((recorded, softmax, batch))
                elif recorded not in self._recorded:
                    continue
                elif not softmax.mixtures:  # until the end of the run nothing shows what it is
                    self._recorded.remove(recorded)
                    self._unmixed.append((recorded.path, softmax))
                else:
                    try:
                        attention = arrange(softmax, batch, self._lengths)
                        may_join = isinstance(self.model, Program) or softmax.weights.dim() > 2
                        if len(attention.query) < recorded.texts and not may_join:
                            raise NotExpressibleError("the texts of the batch are not told apart")
                        recorded.attention = attention
                        if not attention.compares_all:
                            self._uncompared.append((recorded.path, _OTHER_VALUES))
                    except NotExpressibleError as error:
                        self.unreadable.append((recorded.path, str(error)))
        if not depth:  # weights that are changed, and multiplied by an activation then
            unmixed = ((path, one) for path, one in self._unmixed if one.multiplied)
            self.unreadable += ((path, one.reason) for path, one in unmixed)
        self._tracer.forget(depth)

    def _on_softmax(self, softmax: Softmax) -> None:
        recorded = self._record(softmax.weights, compat.vmap_sizes())
        self._lengths |= self.lengths()
        self._pending.append((recorded, softmax, self._batch(recorded)))

    def _on_other(self, softmax: Softmax) -> None:
        self._unmixed.append((self.paths[self.innermost_module()], softmax))

    def _on_fused(self, name: str, arguments: Mapping[str, Any], output: Tensor) -> None:
        try:
            attention = FusedAttention.read(name, arguments, output)
            recorded = self._record(attention.query)
            recorded.attention = self._inputs_first(attention, arguments, recorded)
        except NotExpressibleError as error:
            self._on_unreadable(str(error))

    def _batch(self, recorded: Recorded) -> Batch:
        is_first = not (isinstance(self.model, Program) and recorded.path)
        heads, joined = self._count_heads(), self._tracer.joined
        return Batch(recorded.texts, heads, recorded.members, is_first, joined)

    def _inputs_first(
        self, attention: FusedAttention, arguments: Mapping[str, Any], recorded: Recorded
    ) -> FusedAttention:
        """Return a fused attention with inputs, and windows of these, before heads."""
        A, B, m, _ = shape = attention.query.shape
        vectors = [arguments.get(name) for name in ("query", "key", "value")]
        known = [x for x in vectors if x is not None and x.dim() == 4]
        if len(known) < len(vectors):
            return attention
        whole = [x for x in known if x.shape[:2] == shape[:2]]
        query, *others = (self._tracer.provenance.places(x)[..., :1] for x in whole)
        numbers = torch.arange(m, device=query.device).view(m, 1).expand(A, B, m, 1)
        axes = Axes.of([query, *(x.mT for x in others)], numbers, self._batch(recorded))
        maps, lying = axes.beside(A * B), torch.arange(A * B).view(A, B)
        if maps is None or torch.equal(maps, lying):
            return attention
        keeps_heads = torch.equal(maps, maps[:, :1] // B * B + lying[0])

        def own(x: Tensor) -> Tensor:
            if keeps_heads or x.shape[:2] == (1, 1):
                return x if len(x) == 1 else x[maps[:, 0] // B]
            if x.shape[1] not in (1, B):
                raise NotExpressibleError("its queries and keys have other heads")
            return x.expand(A, B, -1, -1).flatten(0, 1)[maps]

        attention = map_tensors(attention, own)
        return attention

    def _record(self, result: Tensor, members: list[int] | None = None) -> Recorded:
        """Record an attention of the innermost module. members : of each vmap in a known result."""
        module = self.innermost_module()
        where = self.paths[module], self.inputs_of(module), False, self.entries[module]
        self._recorded.append(Recorded(*where, self.texts))
        return self._recorded[-1]

    def _on_unreadable(self, reason: str) -> None:
        self.unreadable.append((self.paths[self.innermost_module()], reason))

    def _count_heads(self) -> int | None:
        for module, _, _ in reversed(self.running):
            for owner in (module, getattr(module, "config", None)):
                for name in _HEAD_COUNTS:
                    with suppress(Exception):  # a config may know it for each layer only
                        if isinstance(heads := getattr(owner, name, None), int):
                            return heads
        return None


class Program(nn.Module):
    """The modules that a program calls, by the names of their classes."""


class ProgramSearch(Search):
    """Collects every softmax attention that runs in this thread, in a block of code.

    Hooks that torch calls for every module tell which one runs. Neither what the program computes
    nor its modules are changed.

    patterns : of the paths of modules to record; None for all. wanted : which attentions of each
    module, from 0; None for all.
    """

    def __init__(
        self, patterns: Collection[str] | None = None, wanted: Collection[int] | None = None
    ) -> None:
        super().__init__(Program().eval(), 1, is_first=True)
        self.patterns, self.wanted = patterns, wanted
        self._counts: Counter[str] = Counter()  # of the attentions of each module
        self.inputs: dict[str, dict[str, Any]] = {}  # of the outermost modules, by name
        self.take: Callable[[Recorded], None] = list[Recorded]().append  # each that can be read
        self._memory_checked = True  # of each attention by itself
        self.running.append((self.model, (), {}))
        self._tracer.provenance.depth = len(self.running)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what runs in this thread, in the block."""
        thread, hooks = threading.get_ident(), nn.modules.module

        def is_recorded() -> bool:
            return threading.get_ident() == thread and not self._is_replaying

        def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
            if is_recorded():
                self.on_enter(module, args, compat.keywords_of_call())

        def leave(module: nn.Module, args: Any, output: Any) -> Any:
            if not is_recorded() or self.running[-1][0] is not module:
                return None
            kwargs = self.running[-1][2]
            self.on_leave(module, args, output)
            is_inside = any(isinstance(one, _WITH_FAST_PATH) for one, *_ in self.running)
            if output is None or is_inside or not _takes_fast_path(module):
                return None
            with self._replaying(), compat.outside_function_modes():
                return module.forward(*args, **kwargs)  # what the program computes without us

        torch.clear_autocast_cache()  # else weights that were cast before are taken for activations
        with (
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, always_call=True),
            compat.uncompiled(),
            self._own,
            self._tracer,
        ):
            self._choose()
            yield
        self._arrange_pending(0)
        self._pass_on()

    def on_enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a module starts to run; an outermost one is one more of the program."""
        if module not in self.paths:
            inside = compat.compiled_from(module) or module
            kind, own = type(inside).__name__, dict(self.model.named_children())
            numbers = (f"{kind}_{n}" if n else kind for n in range(len(own) + 1))
            self.model.add_module(name := next(n for n in numbers if n not in own), inside)
            self._tracer.add_constants(inside)
            for path, one in ((name, module), *inside.named_modules(prefix=name)):
                self.paths.setdefault(one, path)
                self.outputs[path] = None
        if len(self.running) == 1:
            names = forward_parameters(compat.compiled_from(module) or module)
            names += map("argument {}".format, range(len(args)))  # those without names
            given = dict(zip(names, args, strict=False)) | kwargs
            if any(isinstance(one, Tensor) and one.is_nested for one in given.values()):
                raise ModelError(
                    f"{type(module).__name__} reads nested tensors, which are not recorded. Give "
                    "it padded ones, and a mask."
                )
            one_by_one = (x.values() if isinstance(x, Mapping) else [x] for x in given.values())
            self.texts = max(1, batch_size(module, itertools.chain.from_iterable(one_by_one)))
            self.inputs.setdefault(self.paths[module], given)
        super().on_enter(module, args, kwargs)
        self._choose()

    def on_leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Arrange the attentions inside a module that has run, with the outermost all of them."""
        super().on_leave(module, args, output)
        if len(self.running) == 1 and all(softmax.mixtures for _, softmax, _ in self._pending):
            self._arrange_pending(1)
        self._choose()
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass on the attentions that can be read by now, if there is memory for them."""
        found = [(one, one.attention) for one in self._recorded if one.attention is not None]
        for one, attention in found:
            self._recorded.remove(one)
            self._expect_memory(one)
            one.texts = 1 if len(attention.query) % one.texts else one.texts  # not divided
            if attention.head_output is None:
                is_turned = getattr(attention, "over_queries", False)
                self._uncompared.append((one.path, _OVER_QUERIES if is_turned else _OTHER_OUTPUT))
            with compat.outside_dispatch_modes(), compat.outside_function_modes():
                self.take(one)

    def _expect_memory(self, recorded: Recorded) -> None:
        """Raise InputError unless one more of the kind fits, and its maps while it is proven."""
        tensors = [x for x in vars(recorded.attention).values() if isinstance(x, Tensor)]
        query, key = (getattr(recorded.attention, name) for name in ("query", "key"))
        cells = query[0, ..., 0].numel() * key.shape[2]
        what = f"the attention of {recorded.path or 'this program'}"
        ways = "Choose fewer: modules=, or calls=, of attnviz.record."
        compared = COMPARED * torch.float64.itemsize * cells
        MemoryBudget(what, query.device, ways).expect(sum(x.nbytes for x in tensors) + compared)

    def on_output(self, module: nn.Module, merged_heads: Any, output: Any) -> None:
        """Keep no output of a module, which is not compared."""

    def _choose(self) -> None:
        """Follow operators only in modules that are recorded."""
        paths = [self.paths[module] for module, *_ in self.running]
        self._tracer.is_idle = self.patterns is not None and not any(
            fnmatch(name, pattern)
            for path in paths
            for name in (path, path.partition(".")[2])
            for pattern in self.patterns
        )

    def _record(self, result: Tensor, members: list[int] | None = None) -> Recorded:
        path = self.paths[module := self.innermost_module()]
        number, self._counts[path] = self._counts[path], self._counts[path] + 1
        own_shape = result.shape[len(members or ()) :]
        batch = own_shape[0] if len(own_shape) > 3 else 1  # outside every module
        texts = self.texts if len(self.running) > 1 else batch
        if isinstance(module, nn.MultiheadAttention):  # which tells where the batch is
            _, args, kwargs = self.running[-1]
            first = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
            own, is_second = batch_size(module, [first]), not module.batch_first
            texts = own if own % texts or (is_second and len(first) == texts) else texts
        recorded = super()._record(result)
        read = compat.tree_leaves([self.running[-1][1:], *module.parameters()])
        is_batched = not path or any(map(compat.is_transformed, read))
        if members and is_batched and [*result.shape[: len(members)]] == members:
            count, rows = prod(members), prod(result.shape[:-2])
            texts = next((n for n in (texts * count, count) if rows % n == 0), texts)
            recorded.members = 1 if texts % count else count
        recorded.inputs = ModuleInputs(key_input=recorded.inputs.key_input)
        recorded.texts, recorded.number, recorded.order = texts, number, self._counts.total()
        if self.wanted is not None and number not in self.wanted:
            self._recorded.pop()
        return recorded


def _takes_fast_path(module: nn.Module) -> bool:
    """Whether torch may run a module by one fast operator, which shows no attention."""
    hooks = (hook for one in module.modules() for hook in compat.forward_hooks(one))
    if not isinstance(module, _WITH_FAST_PATH) or module.training or any(hooks):
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in module.parameters()))


def call_of(recorded: Recorded, row: int) -> AttentionCall:
    """Return an attention of one input of the batch, or of the last one if it has fewer."""
    n = min(row, recorded.texts - 1)

    def own(x: Tensor) -> Tensor:
        """Return the rows of the input; sinks (H,) have no inputs."""
        rows = max(1, len(x) // recorded.texts)  # several are windows
        return x if x.dim() == 1 or len(x) == 1 else x[n * rows : (n + 1) * rows]

    attention, inputs = map_tensors((recorded.attention, recorded.inputs), own)
    if isinstance(attention, FusedAttention):
        attention = attention.arranged(1)
    where = recorded.path, recorded.number
    return AttentionCall(*where, attention, inputs, None, False, None, None)


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


def record_runs(
    model: nn.Module, texts: int, *runs: Callable[[], object], known: LinearCalls | None = None
) -> Iterator[Recording]:
    """Record several runs on a batch of N texts one by one, each with its own random numbers.

    The first computes the matrices of linear attention, the others what these are compared with. A
    run is repeated if it does not follow the plan of its model.

    known : as in `Search`.
    """
    search_of = partial(Search, texts=texts, known=known)

    def record(number: int, run: Callable[[], object]) -> Recording:
        shown = None
        if plan.paths:
            recording, is_known = plan.record(model, texts, run, seed=number)
            if is_known:
                return recording
            shown = [call.path for call in recording.calls]
            needs_isolation.pop(model)  # what this run executes, the plan does not know
        search = watch(model, run, partial(search_of, is_first=number == 0), seed=number)
        recording = search.take_recording()
        if shown is not None:
            found = [call.path for call in recording.calls if call.through_interface]
            expect_same(model, shown, found)
        plan.learn(search, recording)
        return recording

    plan = plan_for(model)
    return itertools.starmap(record, enumerate(runs))


def linear_calls(model: nn.Module, texts: int, inputs: Mapping[str, Any]) -> LinearCalls | None:
    """Return which calls of a model are linear, of texts of one token; None of any others.

    A text of one token does not show what mixes tokens: each is repeated.
    """
    ids = inputs.get("input_ids")
    if ids is None or ids.shape != (texts, 1):
        return None
    is_repeated = {name for name, one in inputs.items() if getattr(one, "shape", 0) == ids.shape}
    longer = {n: one.repeat(1, _REPEATED) if n in is_repeated else one for n, one in inputs.items()}
    with suppress(ModelError):  # it cannot read these, or attends to none
        search = partial(Search, texts=texts, is_first=True)
        return watch(model, partial(model, **longer), search).take_recording().linear_calls
    return None


def output_moved(
    model: nn.Module, inputs: Mapping[str, Any], sha256: str | None
) -> dict[str, float]:
    """Return how much the output moves by another attention in each module, by its path.

    Of any text it is measured on the same few tokens, with the ids 1, 2, …, and once for a model
    with these weights. sha256 : of the weights; None where the code of the user may change more.
    """
    start = {name: t[:1] for name, t in inputs.items() if isinstance(t, Tensor) and t.dim()}
    is_text = all(t.dim() == 2 and not t.is_floating_point() for t in start.values())
    for name, t in ((name, t[:, :_SHORT]) for name, t in start.items() if is_text):
        ones = torch.ones_like(t)
        same = {"input_ids": ones.cumsum(1), "attention_mask": ones}
        start[name] = next((same[end].to(t) for end in same if name.endswith(end)), t)
    moved = partial(moved_by_attention, model, start, one_by_one=is_text)
    if sha256 is None or not is_text:
        return moved()
    kept, shapes = plan_for(model).moved, tuple((n, x.shape) for n, x in start.items())
    weights, known = (sha256, str(next(model.parameters()).dtype)), kept.get(shapes)
    if known is None or known[0] != weights:
        known = weights, moved()
        if known[1]:
            kept[shapes] = known
    return known[1]


class Plan:
    """The attentions of each run of a model that was searched and has no others."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.needs_isolation = False
        self.searches = 0  # that this plan has learned from
        self.joins = True  # whether two runs may be rows of one batch, as far as is known
        # By the shapes of an input: weights, and how much the output moves by another attention.
        self.moved: dict[object, tuple[tuple[str, str], dict[str, float]]] = {}
        # By the inputs of the start of a long text: what is linear attention in the model.
        self.linear: dict[object, Any] = {}
        # By the attentions of a run and the operators that make one: all operators, and notes.
        self._runs: dict[object, tuple[set[str], tuple[str, ...]]] = {}

    def record(
        self,
        model: nn.Module,
        texts: int,
        run: Callable[[], object],
        *,
        seed: int = 0,
        source: Tensor | None = None,
    ) -> tuple[Recording, bool]:
        """Record a run, and return whether it is like one that was searched; as `Recorder`."""
        needs_isolation.setdefault(model, self.needs_isolation)
        recorder = partial(Recorder, texts=texts, paths=self.paths, source=source)
        by_plan = watch(model, run, recorder, seed=seed)
        recording = by_plan.take_recording()
        operators, notes = self._runs.get(_kind(by_plan, recording), (set[str](), ()))
        is_known = not by_plan.unreadable and by_plan.operators.keys() <= operators
        return replace(recording, notes=notes), is_known

    def learn(self, run: Search, recording: Recording) -> None:
        """Keep where attention is, if the interface showed each one in the search."""
        queries: Counter[str] = Counter()
        for call in recording.calls:
            queries[call.path] = max(queries[call.path], call.attention.query.shape[-2])
        is_shown = all(call.through_interface for call in recording.calls)
        if is_shown and not recording.linear and min(queries.values()) >= _FEWEST_QUERIES:
            self.searches += 1
            self.paths = self.paths | queries.keys()
            self.needs_isolation |= needs_isolation[run.model]
            kind = _kind(run, recording)
            known, _ = self._runs.get(kind, (set[str](), ()))
            self._runs[kind] = known | run.operators.keys(), recording.notes


def plan_for(model: nn.Module) -> Plan:
    """Return the plan of all models with the code of this one."""
    with calls.functions_lock:  # another thread may watch these
        return _plan_of(tuple(_code(model)))


_plan_of = lru_cache(64)(lambda _: Plan())  # by the code of a model


def _kind(run: Recorder, recording: Recording) -> object:
    """Return the attentions of a run, and how many operators there are that make one."""
    attentions = Counter(call.path for call in recording.calls)
    makers = {name: run.operators[name] for name in _OF_ATTENTION}
    return frozenset(attentions.items()), frozenset(makers.items())


def _code(model: nn.Module) -> Iterator[object]:
    """Yield what decides which operators a model executes: its code, hooks, settings and config."""
    for path, module in model.named_modules():
        members = vars(module)
        yield from (path, type(module), _body(members.get("forward")))
        yield from map(_body, compat.forward_hooks(module))
        if not type(module).__module__.startswith("torch."):
            settings = (one for one in members.items() if isinstance(one[1], _SETTINGS))
            yield from (one for one in settings if one[0] != "training")
    yield from map(_body, compat.global_forward_hooks())
    yield from (function.__code__ for _, _, function in calls.functions_of(model))
    for config in compat.attention_configs(model):
        fields = vars(config).items()
        yield repr({name: value for name, value in fields if isinstance(value, _PLAIN)})


def _body(function: Any) -> object:
    """Return the code of a function, or the class of another object: neither holds a model."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__code__", None) or type(function)
