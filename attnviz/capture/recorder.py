"""A record of a run: the tensors of every attention that the untouched model executes.

Most models of transformers fetch the function that computes their attention from
`AttentionInterface`: its arguments say all. Whatever else may be attention is found by a search
(search.py), unless the plan of an earlier one says where it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from attnviz.capture.attention_interface import AttentionCallArgs, from_arguments
from attnviz.capture.calls import first_tensor
from attnviz.capture.linear import LinearCalls, LinearMixing
from attnviz.capture.projections.find import STAGES, AttentionModule, ModuleInputs
from attnviz.capture.tracing.arrange import Attention, NotExpressibleError
from attnviz.capture.tracing.tracer import SoftmaxCollector
from attnviz.capture.watch import ModuleWatcher, map_tensors, memory_budget
from attnviz.formula.attention import HIDDEN
from attnviz.runtime.compat import FUSED_ATTENTION, math_attention
from attnviz.runtime.libraries import copy_to, input_device

COMPARED = 14  # maps in float64 that comparing one attention takes (measured on BERT)
_NOT_READ = ("cum_seq_q", "cu_seqlens_q", "seqstart_q", "alibi_slopes")


@dataclass(frozen=True, eq=False)
class FusedAttention:
    """The arguments of one of torch's fused attentions, and the output of the kernel that ran.

    They say all, and no softmax is seen. The weights that ours are compared with come from torch's
    own unfused attention on the same arguments.
    """

    query: Tensor  # (B, H, m, d_k)
    key: Tensor  # (B, G, n, d_k)
    value: Tensor  # (B, G, n, d_v)
    mask: Tensor | None  # added to the scores, (1 or B, 1 or H, 1 or m, n)
    causal: bool  # whether a query reads no later key
    scale: float
    head_output: Tensor | None  # (B, H, m, d_v); None if weights were dropped from it
    first: int = 0  # the key at which the first query stands

    @classmethod
    def read(cls, name: str, arguments: Mapping[str, Any], output: Tensor) -> FusedAttention:
        """Return the call of an operator; arguments : by the names of its schema.

        Raises NotExpressibleError for arguments of a kernel that are not read.
        """

        def given(*names: str) -> Any:
            return next((x for x in map(arguments.get, names) if x is not None), None)

        is_kernel = not name.startswith(FUSED_ATTENTION)  # which takes (B, T, H, d)
        has_window = given("window_size_left") not in (None, -1)
        if is_kernel and (has_window or given("softcap") or given(*_NOT_READ) is not None):
            raise NotExpressibleError(f"{name} packs its texts, or changes its scores")
        vectors = given("query", "q"), given("key", "k"), given("value", "v"), output
        query, key, value, output = (
            x.clone().transpose(1, 2) if is_kernel else x.clone() for x in vectors
        )  # which a program may write over
        mask, scale = given("attn_mask", "attn_bias", "bias"), given("scale", "softmax_scale")
        if mask is not None:
            mask = mask.detach().view((1,) * (4 - mask.dim()) + mask.shape)
            if mask.numel() <= query.numel() + key.numel():  # a larger one is shared by many calls
                mask = mask.clone()
        # flash-attn and the second kind of xformers' masks let the last query read all keys.
        is_last = name == "_flash_attn_forward" or given("custom_mask_type") == 2
        return cls(
            query,
            key,
            value,
            mask,
            bool(given("is_causal", "causal", "custom_mask_type")),
            query.shape[-1] ** -0.5 if scale is None else float(scale),
            None if given("dropout_p") else output,
            key.shape[2] - query.shape[2] if is_last else 0,
        )

    def arranged(self, texts: int) -> Attention:
        """Return the attention of N texts; several rows of one text are windows of its positions.

        Then no query reads the keys of another window.
        """
        texts = texts if len(self.query) % texts == 0 else 1
        shared, mask = self.query.shape[1] // self.key.shape[1], self._whole_mask()
        key, value = (x.repeat_interleave(shared, 1) for x in (self.key, self.value))
        collector = SoftmaxCollector()
        with collector, collector.collect_softmaxes() as softmaxes:
            math_attention(self.query, key, value, mask, scale=self.scale)  # one by one
        scores, weights = softmaxes[0].scores, softmaxes[0].weights
        added = torch.zeros_like(scores[:1, :1]) if mask is None else mask

        def rows(x: Tensor) -> Tensor:
            return x.reshape(texts, -1, *x.shape[1:]).transpose(1, 2).flatten(2, 3)

        def maps(x: Tensor, other: float) -> Tensor:
            blocks = x.expand(len(scores), *x.shape[1:]).reshape(texts, -1, *x.shape[1:])
            N, k, H, m, n = blocks.shape
            every, window = x.new_full((N, H, k, m, k, n), other), torch.arange(k, device=x.device)
            every[:, :, window, :, window] = blocks.transpose(0, 1)
            return every.view(N, H, k * m, k * n)

        added = maps(added, -torch.inf)
        hidden = added <= HIDDEN
        bias, lowest = added.masked_fill(hidden, 0.0), torch.finfo(added.dtype).min
        empty = (added == -torch.inf).all(-1, keepdim=True)  # rows whose weights are 0
        mask = torch.zeros_like(bias).masked_fill(hidden, lowest).masked_fill(empty, -torch.inf)
        return Attention(
            query=rows(self.query),
            key=rows(self.key),
            value=rows(self.value),
            scale=self.scale,
            soft_cap=None,
            capped_bias=None,
            bias=bias if bias.any() else None,
            mask=mask if hidden.any() else None,
            sinks=None,
            scores=maps(scores, -torch.inf),
            weights=maps(weights, 0.0),
            head_output=None if self.head_output is None else rows(self.head_output),
        )

    def _whole_mask(self) -> Tensor | None:
        """Return the mask with a row for each query, and later keys hidden where it is causal."""
        m, n = self.query.shape[2], self.key.shape[2]
        mask = None if self.mask is None else self.mask[..., :n].expand(-1, -1, m, -1)
        if self.causal:
            later = self.query.new_ones(m, n, dtype=torch.bool).triu(1 + self.first)
            zero = self.query.new_zeros(1, 1, m, n) if mask is None else mask
            mask = zero.masked_fill(later, -torch.inf)
        return mask


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
    # The keys of all rows, if some are not recorded, by path and number.
    keys: Mapping[tuple[str, int], Tensor] | None = None


@dataclass(eq=False)
class Recorded:
    """An attention that was executed; its tensors may be pending."""

    path: str
    inputs: ModuleInputs
    through_interface: bool
    entry: int  # how often its module had been entered
    texts: int  # in the batch
    number: int = 0  # of the attention in its module, where only some are recorded
    attention: Attention | FusedAttention | None = None
    order: int = 0  # among all of a program
    members: int = 1  # of a torch.vmap, one after the other among the texts


class Recorder(ModuleWatcher):
    """Collects the attentions of a run that the interface shows, and counts all other operators.

    paths : the modules that may execute attention; None for all. tracer : of the operators. source
    : (R,), the rows with whose attention the last R rows go on; of these, only keys are kept.
    """

    def __init__(
        self,
        model: nn.Module,
        texts: int,
        paths: Collection[str] | None = None,
        tracer: SoftmaxCollector | None = None,
        source: Tensor | None = None,
    ) -> None:
        super().__init__(model, texts, paths)
        self.mode = self._softmaxes = tracer or SoftmaxCollector()
        self.operators, self._is_traced = self._softmaxes.operators, tracer is not None
        self._recorded: list[Recorded] = []
        self._runs = 1 if source is None else 2  # that are rows of the batch
        self._source = None if source is None or not len(source) else source
        self._rows = slice(0, texts - (0 if source is None else len(source)))
        self._keys: dict[tuple[str, int], Tensor] = {}
        self._memory_checked = False
        # The input and output of each call of a module that multiplies by W^O.
        self._output_calls: dict[nn.Module | None, list[tuple[Any, Any]]] = defaultdict(list)
        # What a module returned that executed several attentions, by its path and entry.
        self._returned: dict[tuple[str, int], Tensor] = {}

    def on_call(self, args: AttentionCallArgs) -> Any:
        """Call the model's own attention function, and record its arguments."""
        path = self.paths[args.module]
        if not _can_read(args, self.texts):
            if not self._is_traced:  # among its operators
                self.unreadable.append((path, "its arguments do not describe it"))
            return args.call()
        with self._softmaxes.collect_softmaxes() as softmaxes:
            if self._source is not None:
                self._keys[path, sum(path == other for other, _ in self._keys)] = args.key
                args = args.of_rows(self._rows)
            result = returned = args.call()
            if self._source is not None:
                others = result[0].index_select(0, copy_to(result[0].device, self._source))
                returned = torch.cat([result[0], others]), None
        if len(softmaxes) != 1:
            count = len(softmaxes) or "no"
            self.unreadable.append((path, f"its attention function computes {count} softmax"))
            return returned
        attention = from_arguments(args, softmaxes[0], result[0])
        inputs = self.inputs_of(args.module)
        entry = self.entries[args.module]
        self._recorded.append(Recorded(path, inputs, True, entry, self.texts, 0, attention))
        return returned

    def _cut(self, tensor: Tensor) -> Tensor:
        """Leave out the rows of which only keys are kept; a module may multiply tokens of all."""
        if self._source is None or not tensor.dim() or len(tensor) % self.texts:
            return tensor
        return tensor[: len(tensor) // self.texts * self._rows.stop]

    def on_leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Note what a module returns that executed several attentions."""
        super().on_leave(module, args, output)
        entry, returned = (self.paths[module], self.entries[module]), first_tensor(output)
        count = sum((one.path, one.entry) == entry for one in self._recorded)
        if count > 1 and returned is not None:
            self._returned[entry] = returned
        first = self._recorded[0].attention if self._recorded else None
        if first is not None and not self._memory_checked:
            self._memory_checked = True
            cells = first.query[0, ..., 0].numel() * first.key.shape[2]  # of one text
            size = 2 * cells * len(first.query) * first.query.itemsize // self._runs
            all_maps = size * max(1, len(self.modules))
            compared = COMPARED * torch.float64.itemsize * cells
            # Those of two runs at once, and later those of one while they are compared.
            memory_budget(self.model).expect(max(2 * all_maps, all_maps + compared) - size)

    def on_output(self, module: nn.Module, merged_heads: Any, output: Any) -> None:
        """Note a call of a module that multiplies the heads by W^O."""
        self._output_calls[module].append((merged_heads, output))

    def take_recording(self) -> Recording:
        """Return all attentions, numbered by module, and release them."""
        counts: Counter[str] = Counter()
        entries = [(recorded.path, recorded.entry) for recorded in self._recorded]
        at_once = Counter(entries)
        calls, device = [], input_device(self.model)
        for recorded in self._recorded:
            assert recorded.attention is not None
            attention = recorded.attention
            if isinstance(attention, FusedAttention):
                attention = attention.arranged(self.texts)
            path, number = recorded.path, counts[recorded.path]
            counts[path] += 1
            module = self.modules.get(path)
            if module is not None and at_once[path, recorded.entry] > 1:
                module = replace(module, known=frozenset())  # which it projects is not known
            inputs: ModuleInputs = map_tensors(recorded.inputs, self._cut)
            x, m = inputs.input, attention.query.shape[2]
            if self._runs == 1:  # side by side in memory, once for all texts; rows are copied later
                vectors = {name: getattr(attention, name).contiguous() for name in STAGES}
                attention = replace(attention, **vectors)
            call = AttentionCall(
                path,
                number,
                attention,
                replace(inputs, input=None if x is None else x[:, :m]),
                module,
                recorded.through_interface,
                *self._output_of(path, number, attention),
            )
            calls.append(map_tensors(call, lambda tensor: tensor.to(device)))
        every = [*zip(calls, entries, strict=True)]
        for entry, returned in self._returned.items():
            of_entry = (call for call, own in every if own == entry)
            by_size = sorted(of_entry, key=lambda one: -one.attention.query.shape[-2])
            for other in by_size[1:]:
                main = by_size[0]
                joined = _with_rows_of(main.attention, other.attention, self._cut(returned))
                if joined is not None:
                    calls.remove(other)
                    by_size[0] = replace(main, attention=joined, merged_heads=None, output=None)
                    calls[calls.index(main)] = by_size[0]
        # The recorder and its tracer refer to each other: they would outlive this function.
        self._recorded.clear()
        self._output_calls.clear()
        keys = self._keys if self._runs > 1 else None
        return Recording(calls, LinearCalls([], self.texts), keys=keys)

    def _output_of(
        self, path: str, number: int, attention: Attention
    ) -> tuple[Tensor | None, Tensor | None]:
        calls = self._output_calls.get(self.outputs[path], [])
        if number >= len(calls) or attention.head_output is None:
            return None, None
        merged, output = map_tensors(calls[number], self._cut)
        heads = attention.head_output.transpose(1, 2)
        merged = heads if merged is None else merged
        if not isinstance(merged, Tensor) or not isinstance(output, Tensor):
            return None, None
        texts, queries = heads.shape[:2]
        if merged.dim() == output.dim() == 3:  # without what the model pads its input with
            merged, output = merged[:, :queries], output[:, :queries]
        if merged.numel() != heads.numel() or output.shape[:-1].numel() != texts * queries:
            return None, None
        # Patches may lie in rows and columns; some models multiply window by window.
        return merged.reshape(heads.shape).transpose(1, 2), output.reshape(texts, queries, -1)


def _can_read(args: AttentionCallArgs, texts: int) -> bool:
    """Whether the arguments describe the attention; otherwise its operators are traced."""
    is_added = args.mask is None or args.mask.is_floating_point()
    is_text = args.query.dim() == 4 and len(args.query) == texts
    return is_text and is_added and args.arguments.get("indices") is None


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

    def mask(one: Attention) -> Tensor:
        none = torch.zeros_like(one.query[:, :1, :, :1]).expand(-1, -1, -1, n)
        return none if one.mask is None else one.mask

    d = main.query.shape[-1]  # each row has its own half of the features
    return replace(
        main,
        query=joined(lambda one: pad(one.query * one.scale, (0, d) if one is main else (d, 0))),
        key=torch.cat([main.key, other.key], -1),
        value=torch.cat([main.value, other.value], -1),
        scale=1.0,
        mask=joined(mask),
        scores=joined(lambda one: one.scores),
        weights=joined(lambda one: one.weights),
        head_output=None,
    )
