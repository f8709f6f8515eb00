"""A record of a run: the tensors of every attention that the untouched model executes.

Most models of transformers fetch the function that computes their attention from
`AttentionInterface`: its arguments say all (attention_interface.py). The model's own code computes,
and nothing in the model is replaced.

Not every attention is fetched there. So `Search` looks among the operators that torch executes.
Each softmax over products q·k is one attention (tracing), so none is missed; and each call that is
linear in its values is one too (linear.py). Whether a search is needed, a plan says (plan.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from attnviz.capture.attention_interface import AttentionCallArgs, from_arguments
from attnviz.capture.function_calls import FunctionCall, first_tensor, watching_functions
from attnviz.capture.inline_calls import ModuleRun, SubmoduleCall, tensor_taken
from attnviz.capture.linear import Call, Layout, LinearCalls, LinearMixing
from attnviz.capture.projections.find import AttentionModule, ModuleInputs
from attnviz.capture.tracing.arrange import Attention, NotExpressibleError, arrange
from attnviz.capture.tracing.provenance import Softmax
from attnviz.capture.tracing.tracer import OperatorTracer, SoftmaxCollector
from attnviz.capture.watch import ModuleWatcher, map_tensors, memory_budget
from attnviz.errors import ModelError
from attnviz.models.devices import input_device
from attnviz.runtime.compat import outside_dispatch_modes

_COMPARED = 14  # maps in float64 that comparing one attention takes (measured on BERT)
_HEAD_COUNTS = (
    "num_attention_heads", "num_heads", "n_heads", "n_head", "nhead", "num_head", "heads", "h",
    "encoder_attention_heads", "decoder_attention_heads",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """An attention and the module that executed it."""

    path: str
    call: int  # 0, 1, … where one module executes several
    attention: Attention
    inputs: ModuleInputs
    module: AttentionModule | None  # the module with its projections, if it is of a known kind
    through_interface: bool  # whether transformers' interface showed it, or the operators did
    merged_heads: Tensor | None  # the input of W^O, cut into heads: (N, H, m, d_v)
    output: Tensor | None  # the output of W^O, (N, m, d_model)


@dataclass(frozen=True, eq=False)
class Recording:
    """All attentions of a run, and notes on what is none or not compared."""

    calls: list[AttentionCall]
    linear_calls: LinearCalls  # which calls are linear in their values, of those searched
    notes: tuple[str, ...] = ()
    linear: tuple[LinearMixing, ...] = ()


@dataclass(eq=False)
class Recorded:
    """An attention that was executed; its tensors may be pending."""

    path: str
    inputs: ModuleInputs
    through_interface: bool
    entry: int  # how often its module had been entered
    attention: Attention | None = None


class Recorder(ModuleWatcher):
    """Collects the attentions of a run that the interface shows, and counts all other operators.

    paths : the modules that may execute attention; None for all. tracer : of the operators.
    """

    def __init__(
        self,
        model: nn.Module,
        texts: int,
        paths: Collection[str] | None = None,
        tracer: SoftmaxCollector | None = None,
    ) -> None:
        super().__init__(model, texts, paths)
        self.mode = self._softmaxes = tracer or SoftmaxCollector()
        self._recorded: list[Recorded] = []
        self._unreadable: list[tuple[str, str]] = []
        self._memory_checked = False
        self._entries: Counter[nn.Module] = Counter()
        # The input and output of each call of a module that multiplies by W^O.
        self._output_calls: dict[nn.Module | None, list[tuple[Any, Any]]] = defaultdict(list)
        # What a module returned that executed several attentions, by its path and entry.
        self._returned: dict[tuple[str, int], Tensor] = {}

    def on_call(self, args: AttentionCallArgs) -> Any:
        """Call the model's own attention function, and record its arguments."""
        path = self.paths[args.module]
        if not _can_read(args, self.texts):
            self._unread(path)
            return args.call()
        with self._softmaxes.collect_softmaxes() as softmaxes:
            result = args.call()
        if len(softmaxes) != 1:
            count = len(softmaxes) or "no"
            self._unreadable.append((path, f"its attention function computes {count} softmax"))
            return result
        attention = from_arguments(args, softmaxes[0], result[0])
        inputs = self.inputs_of(args.module)
        entry = self._entries[args.module]
        self._recorded.append(Recorded(path, inputs, True, entry, attention))
        return result

    def _unread(self, path: str) -> None:
        """Note a call whose arguments do not describe the attention."""
        self._unreadable.append((path, "its arguments do not describe it"))

    def on_enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a module starts to run."""
        super().on_enter(module, args, kwargs)
        self._entries[module] += 1

    def on_other_thread(self, module: nn.Module) -> None:
        """Note that the attentions of a module cannot be read."""
        self._unreadable.append((self.paths[module], "it runs in another thread"))

    def on_leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Note what a module returns that executed several attentions."""
        super().on_leave(module, args, output)
        entry, returned = (self.paths[module], self._entries[module]), first_tensor(output)
        count = sum((one.path, one.entry) == entry for one in self._recorded)
        if count > 1 and returned is not None:
            self._returned[entry] = returned
        if not self._memory_checked and self._recorded and self._recorded[0].attention is not None:
            self._expect_memory(self._recorded[0].attention)

    def on_output(self, module: nn.Module, merged_heads: Any, output: Any) -> None:
        """Note a call of a module that multiplies the heads by W^O."""
        self._output_calls[module].append((merged_heads, output))

    @property
    def operators(self) -> Counter[str]:
        """How often each operator ran outside attention functions."""
        return self._softmaxes.operators

    @property
    def is_readable(self) -> bool:
        """Whether the arguments of each attention function describe its attention."""
        return not self._unreadable

    def take_recording(self) -> Recording:
        """Return all attentions, numbered by module, and release them."""
        counts: Counter[str] = Counter()
        at_once = Counter((recorded.path, recorded.entry) for recorded in self._recorded)
        calls, device = [], input_device(self.model)
        for recorded in self._recorded:
            assert recorded.attention is not None
            attention = recorded.attention
            path, number = recorded.path, counts[recorded.path]
            counts[path] += 1
            module = self.modules.get(path)
            if module is not None and at_once[path, recorded.entry] > 1:
                module = replace(module, known=frozenset())  # which it projects is not known
            x, m = recorded.inputs.input, attention.query.shape[2]
            # Side by side in memory, once for all texts.
            vectors = (attention.query, attention.key, attention.value)
            query, key, value = (tensor.contiguous() for tensor in vectors)
            call = AttentionCall(
                path,
                number,
                replace(attention, query=query, key=key, value=value),
                replace(recorded.inputs, input=None if x is None else x[:, :m]),
                module,
                recorded.through_interface,
                *self._output_of(path, number, attention),
            )
            calls.append(map_tensors(call, lambda tensor: tensor.to(device)))
        by_entry: dict[tuple[str, int], list[AttentionCall]] = defaultdict(list)
        for recorded, call in zip(self._recorded, calls, strict=True):
            by_entry[recorded.path, recorded.entry].append(call)
        for entry, returned in self._returned.items():
            by_size = sorted(by_entry[entry], key=lambda one: -one.attention.query.shape[-2])
            for other in by_size[1:]:
                main = by_size[0]
                joined = _with_rows_of(main.attention, other.attention, returned)
                if joined is not None:
                    calls.remove(other)
                    by_size[0] = replace(main, attention=joined, merged_heads=None, output=None)
                    calls[calls.index(main)] = by_size[0]
        # The recorder and its tracer refer to each other: they would outlive this function.
        self._recorded.clear()
        self._output_calls.clear()
        return Recording(calls, LinearCalls([], self.texts))

    def _expect_memory(self, first: Attention) -> None:
        """Refuse maps that do not all fit in memory, once the size of the first is known."""
        self._memory_checked = True
        size = first.scores.nbytes + first.weights.nbytes
        all_maps = size * max(1, len(self.modules))
        compared = _COMPARED * torch.float64.itemsize * first.weights[0].numel()
        # Those of two runs at once, and later those of one while they are compared.
        memory_budget(self.model).expect(max(2 * all_maps, all_maps + compared) - size)

    def _output_of(
        self, path: str, number: int, attention: Attention
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the input of W^O, cut into heads, and its output."""
        calls = self._output_calls.get(self.outputs[path], [])
        if number >= len(calls) or attention.head_output is None:
            return None, None
        merged, output = calls[number]
        heads = attention.head_output.transpose(1, 2)
        if not isinstance(merged, Tensor) or not isinstance(output, Tensor):
            return None, None
        texts, queries = heads.shape[:2]
        if merged.dim() == output.dim() == 3:  # without what the model pads its input with
            merged, output = merged[:, :queries], output[:, :queries]
        if merged.numel() != heads.numel() or output.shape[:-1].numel() != texts * queries:
            return None, None
        # Patches may lie in rows and columns; some models multiply window by window.
        return merged.reshape(heads.shape).transpose(1, 2), output.reshape(texts, queries, -1)


class Search(Recorder):
    """Collects every attention of a run.

    is_first : whether the matrices of linear attention are computed, or what they are compared
    with.
    """

    def __init__(self, model: nn.Module, texts: int, *, is_first: bool) -> None:
        constants = [*model.parameters(), *model.buffers()]
        self._tracer = OperatorTracer(constants, self._on_softmax, self._on_unreadable)
        super().__init__(model, texts, tracer=self._tracer)
        self._linear_calls, self._is_first = LinearCalls(constants, texts), is_first
        self._linear: list[LinearMixing] = []
        # The calls of submodules by each running module; None if its own code is of no interest.
        self._called: list[list[SubmoduleCall] | None] = []
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

        with self._tracer, watching_functions(self.model, position, self._on_function):
            yield

    def _on_function(self, call: FunctionCall, result: Tensor, before: tuple[int, int]) -> None:
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

    def _on_module(self, run: ModuleRun) -> None:
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
        with self._replaying():
            for call, layout in self._linear_calls.inline(run, self._count_heads() or 0):
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

    def _unread(self, path: str) -> None:
        """Read the operators of an attention whose arguments do not describe it."""

    def finish(self) -> None:
        """Arrange the attentions that are left; raise ModelError for an unreadable one."""
        self._arrange_pending(0)
        self._unreadable += [
            (path, "its weights enter no product with values")
            for path, softmax in self._unmixed
            if softmax.multiplied
        ]
        name = type(self.model).__name__
        if self._unreadable:
            path, reason = self._unreadable[0]
            most = max(len(self._recorded), len(self._unreadable))
            raise ModelError(
                f"{len(self._unreadable)} of the {most} attentions of {name} cannot be read: in "
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
        # A list of layers, or a module of torch, mixes no tokens between its submodules.
        is_list = any(isinstance(child, nn.ModuleList) for child in module.children())
        is_of_torch = type(module).__module__.partition(".")[0] == "torch"
        self._called.append(None if is_list or is_of_torch else [])
        self._tracer.provenance.depth = len(self.running)

    def on_leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Arrange the attentions inside a module that has run."""
        if self._is_replaying:
            return
        _, _, kwargs = self.running[-1]
        calls = self._called.pop()
        if calls and (run := ModuleRun.read(module, args, kwargs, calls, output)) is not None:
            self._on_module(run)
        if self._called and (siblings := self._called[-1]) is not None:
            name = self.paths[module].rpartition(".")[2]
            siblings.append(SubmoduleCall(name, module, tensor_taken(args, kwargs), output))
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
                        self._unreadable.append((recorded.path, str(error)))
        self._tracer.forget(depth)

    def _on_softmax(self, softmax: Softmax) -> None:
        module = self.innermost_module()
        inputs = self.inputs_of(module)
        recorded = Recorded(self.paths[module], inputs, False, self._entries[module])
        self._recorded.append(recorded)
        self._lengths |= self.lengths()
        self._pending.append((recorded, softmax, self._count_heads()))

    def _on_unreadable(self, reason: str) -> None:
        self._unreadable.append((self.paths[self.innermost_module()], reason))

    def _count_heads(self) -> int | None:
        """Return the number of heads that the innermost module with such an attribute names."""
        for module, _, _ in reversed(self.running):
            for owner in (module, getattr(module, "config", None)):
                for name in _HEAD_COUNTS:
                    with suppress(Exception):  # a config may know it for each layer only
                        if isinstance(heads := getattr(owner, name, None), int):
                            return heads
        return None


def _can_read(args: AttentionCallArgs, texts: int) -> bool:
    """Whether the arguments describe the attention; otherwise its operators are traced."""
    return (
        len(args.query) == texts
        and args.query.dim() == 4
        and (args.mask is None or args.mask.is_floating_point())
        and args.arguments.get("indices") is None
    )


def _with_rows_of(main: Attention, other: Attention, returned: Tensor) -> Attention | None:
    """Return an attention in which the rows of another one of its module take the place of some.

    Tokens with global attention in a model with windows have their own queries, keys and values,
    which are put beside the others (a query is 0 in features that are not its own). What the module
    returns shows which rows these are; None if it does not.
    """
    N, H, m, n = main.weights.shape
    terms = ("sinks", "soft_cap", "capped_bias", "bias")
    plain = all(getattr(one, term) is None for one in (main, other) for term in terms)
    if not plain or other.weights.shape[::3] != (N, n) or other.value.shape[1] != H:
        return None
    results = (other.weights.double() @ other.value.double()).transpose(1, 2).flatten(2)
    if returned.dim() != 3 or returned.shape[::2] != results.shape[::2]:
        return None
    # One place for each row; a row that the module pads a batch with has none.
    distance, place = torch.cdist(results, returned[:, :m].to(results)).min(-1)  # (N, m2)
    rounding = torch.finfo(returned.dtype).eps ** 0.5
    text, row = (distance <= rounding * results.norm(dim=-1)).nonzero(as_tuple=True)
    if not len(text):
        return None
    place = place[text, row]

    def joined(of: Callable[[Attention], Tensor]) -> Tensor:
        mine, others = of(main), of(other)
        both = mine.expand(N, H, -1, -1).clone()
        both[text, :, place] = others.expand(N, H, -1, -1)[text, :, row].to(both)
        return both

    def own_features(one: Attention) -> Tensor:
        width = one.query.shape[-1]
        return pad(one.query * one.scale, (0, width) if one is main else (width, 0))

    def mask(one: Attention) -> Tensor:
        none = torch.zeros_like(one.query[:, :1, :, :1]).expand(-1, -1, -1, n)
        return none if one.mask is None else one.mask

    return replace(
        main,
        query=joined(own_features),
        key=torch.cat([main.key, other.key], -1),
        value=torch.cat([main.value, other.value], -1),
        scale=1.0,
        mask=joined(mask),
        scores=joined(lambda one: one.scores),
        weights=joined(lambda one: one.weights),
        head_output=None,
    )


def _block(path: str) -> str:
    """Return the path of a module's block: "layers.3" of "layers.3.self_attn.k_conv"."""
    names = path.split(".")
    last = max((index for index, name in enumerate(names) if name.isdigit()), default=-1)
    return ".".join(names[: last + 1])
