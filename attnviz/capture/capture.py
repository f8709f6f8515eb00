"""From a model and its inputs to records: the inputs and outputs of every attention.

The untouched model runs twice. The records come from the first run, the references that they are
compared with from the second. Nothing of one run enters the other, so comparing them is a proof and
not a tautology. The two runs may be rows of one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnviz.capture import watch
from attnviz.capture.linear import LinearMixing, notes_on_unshown
from attnviz.capture.positions import Rows, StackCounter
from attnviz.capture.projections import match
from attnviz.capture.projections.find import STAGES
from attnviz.capture.recorder import AttentionCall, Recording
from attnviz.capture.search import Plan, linear_calls, plan_for, record_runs
from attnviz.capture.tracing.provenance import ConstantStorages, storage_key
from attnviz.errors import InputError, ModelError
from attnviz.formula.attention import additive_mask
from attnviz.models.pretrained import count_inputs, kinds_among
from attnviz.results import AttentionRecord, Axis, LinearAttention, MaskRule, Reference
from attnviz.results.agreement_report import LINEAR
from attnviz.runtime import compat
from attnviz.runtime.libraries import MemoryBudget, input_device

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer


_LOGITS = 2**25  # numbers of all steps of a generation that are compared
_FIELDS = {one.name for one in fields(AttentionRecord)}


@dataclass(frozen=True, eq=False)
class Capture:
    """The attentions of one text."""

    records: tuple[AttentionRecord, ...]  # from one run: all that our weights follow from
    references: tuple[Reference, ...]  # from the other: the model's own values
    outputs: watch.Outputs
    notes: tuple[str, ...] = ()  # on softmaxes that are no attention, and what is not compared
    # The keys of each attention in all rows, if the two runs are rows of one batch; else None.
    keys: Mapping[tuple[str, int], Tensor] | None = None


def capture(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[Axis]] | None = None,
    rows: Rows | None = None,
) -> list[Capture]:
    """Run `model` twice on a batch of N texts and return the attentions of each.

    It also runs as it was loaded, unwatched, for its output. The model is always restored exactly.

    axes : the positions of the N texts, by kind of input: "text", "image", "audio", and "target"
    for the input of an encoder–decoder's decoder. Other positions are numbered. rows : the texts
    twice, and rows with changed positions. Where the plan of the model allows it, the two runs are
    rows of this one batch.
    """
    texts = len(next(iter(axes.values()))) if axes else count_inputs(model, inputs)
    forward = partial(model, **inputs)
    first_run, second_run, recorded = _record(model, texts, inputs, rows)
    calls, again, is_joined = first_run.calls, second_run.calls, first_run is second_run
    if is_joined:
        calls = [_own_rows(call, texts) for call in calls]
    mixtures, mixed_again = first_run.linear, second_run.linear
    watch.expect_same(model, _executed(again, mixed_again), _executed(calls, mixtures))
    if not axes and all(len(call.attention.query) == 1 for call in calls):
        texts = 1  # the first tensor was no batch
    of_both = ([call.attention.query for call in run] for run in (calls, again))
    between = 0.0 if is_joined else _between_runs(*of_both)
    compared = replace(watch.outputs_beside(model, forward, recorded), between_runs=between)
    shown = {call.path for call in calls} | {mixing.path for mixing in mixtures}
    notes = (*first_run.notes, *notes_on_unshown(model, watch.minimal_run(model, inputs), shown))
    own, known = without_memory_of(model), ((call.attention, call.output) for call in again)
    references = (
        *(Reference(of.weights, of.scores, of.head_output, output) for of, output in known),
        *(mixing.reference for mixing in mixed_again),
    )
    kinds = {*kinds_among(inputs), *("image" for name in inputs if "patches" in name)}
    by_text = ({kind: of[n] for kind, of in (axes or {}).items()} for n in range(texts))
    by_size, after = not isinstance(model, PreTrainedModel), texts if is_joined else 0
    stacks = [StackCounter(one, kinds, by_size=by_size) for one in by_text]
    with watch.weights_in_memory(call.module for call in calls):
        return [
            Capture(own(records), of_text(references, after + n), compared, notes, first_run.keys)
            for n, records in enumerate(_to_records(calls, stacks, own, mixtures))
        ]


_Runs: TypeAlias = tuple[Recording, Recording, watch.Output]


def _record(model: nn.Module, texts: int, inputs: Mapping[str, Tensor], rows: Rows | None) -> _Runs:
    """Record two runs, as rows of one batch once the search has made a plan of the model."""
    outputs: list[watch.Output] = []
    forward, plan = partial(model, **inputs), plan_for(model)
    if rows is not None and plan.paths and (joined := _record_rows(model, plan, texts, rows)):
        return joined
    searches = plan.searches
    runs = record_runs(
        model,
        texts,
        lambda: outputs.append(watch.output_of(model, forward)),
        forward,
        known=linear_calls(model, texts, inputs),
    )
    first = next(runs)
    is_new = plan.searches > searches
    if rows is not None and is_new and (joined := _record_rows(model, plan, texts, rows)):
        return joined
    return first, next(runs), outputs[0]


def _record_rows(model: nn.Module, plan: Plan, texts: int, rows: Rows) -> _Runs | None:
    """Record two runs as rows of one batch; None unless both give the same numbers.

    A model that draws random numbers may draw the same for all rows.
    """
    if not plan.joins or plan.needs_isolation:
        return None
    outputs: list[watch.Output] = []
    forward, count = partial(model, **rows.inputs), 2 * texts + len(rows.source)
    with suppress(ModelError, InputError):  # it does not run on more rows, or lacks the memory
        recording, is_known = plan.record(
            model,
            count,
            lambda: outputs.append(watch.output_of(model, forward)),
            source=rows.source,
        )
        if not is_known:
            return None
        tensors = *outputs[-1].model, *outputs[-1].attention
        is_by_row = bool(tensors) and all(x.dim() and len(x) == count for x in tensors)
        vectors = (getattr(call.attention, name) for call in recording.calls for name in STAGES)
        both = zip(*(x.chunk(2) for x in vectors), strict=True)
        plan.joins = is_by_row and _between_runs(*both) == 0  # not NaN
        if plan.joins:
            own = watch.map_tensors(tuple(outputs[-1]), lambda x: x[:texts].clone())
            return recording, recording, watch.Output(*own)
    return None


def _own_rows(call: AttentionCall, texts: int) -> AttentionCall:
    """Return an attention with copies of the first N rows of its vectors and its inputs."""

    def own(x: Tensor) -> Tensor:
        return x[:texts].clone(memory_format=torch.contiguous_format) if len(x) > 1 else x

    vectors: dict[str, Any] = {name: own(getattr(call.attention, name)) for name in STAGES}
    attention = replace(call.attention, **vectors)
    return replace(call, attention=attention, inputs=watch.map_tensors(call.inputs, own))


def hidden_states(
    model: nn.Module, inputs: Mapping[str, Tensor], *, as_loaded: bool = False
) -> tuple[Tensor, ...]:
    """Run `model` once and return its L + 1 hidden states (N, T, d_model), the embeddings first.

    They are the means of the streams of a model that passes on several.

    as_loaded : run it with its own attention implementation, and with other random numbers.
    """
    name = type(model).__name__
    run = watch.restoring(model, None, seed=2) if as_loaded else watch.restoring(model)
    with run, torch.no_grad(), watch.model_errors(model):
        states = getattr(model(**inputs, output_hidden_states=True), "hidden_states", None) or ()
    if "input_ids" in inputs:  # some models pass on several streams
        shape = inputs["input_ids"].shape
        states = [s.mean(0 if s.shape[1:3] == shape else 2) if s.dim() == 4 else s for s in states]
    if not states:
        raise ModelError(f"{name} returns no hidden states. Choose another model.")
    if len({state.shape for state in states}) > 1:
        raise ModelError(
            f"{name} does not pass on one vector of each token from layer to layer, so these "
            "cannot be compared. Choose another model, or draw the maps of this one."
        )
    return tuple(states)


def _executed(calls: Sequence[AttentionCall], mixtures: Sequence[LinearMixing]) -> list[str]:
    """Return what two runs must have in common: the modules and the sizes of their attentions."""
    names = [f"{call.path} {tuple(call.attention.weights.shape)}" for call in calls]
    shapes = ((one, tuple(one.reference.weights.shape)) for one in mixtures)
    return names + [f"{one.path} {one.function} {shape}" for one, shape in shapes]


def _between_runs(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """Return the largest difference between vectors of two runs, relative to those of the first."""
    pairs = [pair for pair in map(match.widened, second, first) if pair is not None]
    if not pairs:
        return 0.0
    return compat.relative_distances(*map(list, zip(*pairs, strict=True))).max().item()


def _to_records(
    calls: Sequence[AttentionCall],
    stacks: Sequence[StackCounter],
    own: Callable[[Any], Any],
    mixtures: Sequence[LinearMixing],
) -> list[tuple[AttentionRecord, ...]]:
    """Return the records of each text of a batch; those of linear attention follow the others."""
    texts = range(len(stacks))

    def of_one_text(call: AttentionCall, n: int, is_causal: bool) -> match.Executed:
        one: AttentionCall = of_text(call, n)
        batch = call.inputs.input, call.inputs.key_input
        record = to_record(one, stacks[n], is_causal=is_causal)
        return match.Executed(
            record, one.module, one.attention.head_output, one.merged_heads, batch
        )

    batch = [
        [of_one_text(call, n, is_causal) for n in texts]
        for call, is_causal in zip(calls, _are_causal(calls), strict=True)
    ]
    matched = match.match_batch(batch, own)
    every = [(i, n, one.module) for i, one in enumerate(calls) if one.module for n in texts]
    # A form that reproduces one layer is known. Where it does not reproduce another, they differ.
    shown = {
        (n, type(module.module), stage)
        for i, n, module in every
        for stage in match.reproduced(matched[i][n])
    }
    again = {}
    for i, n, module in every:
        kind, missing = type(module.module), module.known - match.reproduced(matched[i][n])
        if known := [stage for stage in missing if (n, kind, stage) in shown]:
            again[i, n] = replace(batch[i][n], known=known)
    for (i, n), record in zip(again, match.match_projections([*again.values()]), strict=True):
        matched[i][n] = record
    return [
        (
            *(of_texts[n] for of_texts in matched),
            *(to_linear_record(mixing, n, stacks[n]) for mixing in mixtures),
        )
        for n in texts
    ]


def _are_causal(calls: Sequence[AttentionCall]) -> list[bool]:
    """Return of each attention whether no query of some text reads a later key (padding may)."""
    same: dict[tuple[Any, ...], list[int]] = {}
    for index, call in enumerate(calls):
        weights = call.attention.weights
        if weights.shape[-2] == weights.shape[-1] > 1:
            same.setdefault((weights.device, weights.shape[::2]), []).append(index)
    causal = [False] * len(calls)
    for indices in same.values():
        for rows in (1, None):  # the first query nearly always tells; a device is waited for once
            some = [calls[index].attention.weights[:, :, :rows].amax(1) for index in indices]
            later = torch.stack(some).triu(1).flatten(2).any(2).all(1).tolist() if some else ()
            indices = [index for index, flag in zip(indices, later, strict=True) if not flag]
        for index in indices:
            causal[index] = True
    return causal


def to_linear_record(
    mixing: LinearMixing, text_index: int, stacks: StackCounter
) -> LinearAttention:
    """Return the record of one text of a batch."""
    assert mixing.matrix is not None
    matrix, value = mixing.matrix[text_index], mixing.values[text_index]
    H, m, n = matrix.shape
    is_causal = m == n and not matrix.triu(1).any()
    empty = value.new_empty(H, m, 0)
    own = {name for name, one in mixing.arguments.items() if len(one) == len(mixing.values)}
    return LinearAttention(
        path=mixing.path,
        call=0,
        **stacks.place(mixing.path, m, n, cross=False, causal=True, linear=True),
        query=empty,
        key=value.new_empty(H, n, 0),
        value=value,
        scale=1.0,
        matrix=matrix,
        module=mixing.module,
        function=mixing.function,
        arguments={n: one[text_index] if n in own else one for n, one in mixing.arguments.items()},
        head_dims={name: dim - (name in own) for name, dim in mixing.head_dims.items()},
        through_interface=False,
        visible=MaskRule(after=0) if is_causal else None,
    )


def of_text(value: Any, n: int) -> Any:
    """Return what tensors hold of text n: some are shared, and sinks (H,) have no texts."""

    def part(tensor: Tensor) -> Tensor:
        return tensor if tensor.dim() == 1 else tensor[n if tensor.shape[0] > 1 else 0]

    return watch.map_tensors(value, part)


def to_record(call: AttentionCall, stacks: StackCounter, *, is_causal: bool) -> AttentionRecord:
    """Return the record of a call of one text; is_causal : that of the batch."""
    attention, inputs = call.attention, call.inputs
    m, n = attention.query.shape[-2], attention.key.shape[-2]
    rotation = inputs.rotation
    if rotation is not None and any(angle.dim() != 2 or len(angle) != m for angle in rotation):
        rotation = None  # of some positions only, or of more: its stage is not compared
    cross = inputs.key_input is not None
    if any(x is not None and len(x) != T for x, T in ((inputs.input, m), (inputs.key_input, n))):
        inputs = replace(inputs, input=None, key_input=None)  # cut into blocks: not compared
    return AttentionRecord(
        path=call.path,
        call=call.call,
        **stacks.place(call.path, m, n, cross=cross, causal=is_causal),
        input=inputs.input,
        key_input=inputs.key_input,
        rotation=rotation,
        through_interface=call.through_interface,
        **{name: term for name, term in vars(attention).items() if name in _FIELDS},
    )


def record_alone(call: AttentionCall, stacks: StackCounter) -> tuple[AttentionRecord, Reference]:
    """Return the record of a call of one text by itself, and what the model computed."""
    (is_causal,), one = _are_causal([call]), of_text(call, 0)
    of = one.attention
    record = to_record(one, stacks, is_causal=is_causal)
    return record, Reference(of.weights, of.scores, of.head_output)


def without_memory_of(model: nn.Module) -> Callable[[Any], Any]:
    """Return what copies the tensors in records that share memory with weights or buffers.

    Later steps of an optimizer must not change what a figure shows. The records of several texts
    share one copy.
    """
    weights = ConstantStorages([*model.parameters(), *model.buffers()])
    copies: dict[tuple[Any, ...], Tensor] = {}

    def own(tensor: Tensor) -> Tensor:
        if tensor not in weights:
            return tensor
        place = storage_key(tensor), tensor.storage_offset()
        layout = *place, tensor.shape, tensor.stride(), tensor.dtype
        if layout not in copies:
            copies[layout] = tensor.detach().clone(memory_format=torch.contiguous_format)
        return copies[layout]

    return partial(watch.map_tensors, change=own)


@dataclass(frozen=True, eq=False)
class Generation:
    """What a model wrote."""

    ids: Tensor  # (T,), what it, or its decoder, read, and the token that it wrote last
    prompt: int  # how many of them it did not write
    returned: Tensor  # the ids that its own `generate` returns
    notes: tuple[str, ...]  # on its settings that were left out
    positions: Tensor | None = None  # those that `generate` gave to what it read, (1, T - 1)
    logits: Tensor | None = None  # of the first S steps, (S, vocabulary), if the model shows them


def generate_greedily(
    model: Any,
    inputs: Mapping[str, Tensor],
    tokens: int | None = None,
    tokenizer: Tokenizer | None = None,
) -> Generation:
    """Let the model, as it was loaded, continue one text greedily, with its own settings.

    Forced tokens, penalties, bans and lengths apply. Sampling, beams and other searches do not.

    tokens : the most tokens to generate; None: as its settings say. tokenizer : finds the strings
    that end a text.
    """
    if not getattr(model, "can_generate", bool)():
        raise ModelError(
            f"{type(model).__name__} cannot generate text. Choose a causal language model or an "
            "encoder–decoder, with its language head."
        )
    if tokens is not None:
        maps = f"the attention maps of {tokens:,} tokens"
        budget = MemoryBudget(maps, input_device(model), "Generate fewer tokens.")
        budget.expect(tokens**2 * model.dtype.itemsize)
    settings = deepcopy(model.generation_config)
    sampling = dict.fromkeys(_SAMPLING if settings.do_sample else ())
    notes = tuple(
        f"{name}={value!r:.40}"
        for name, off in (_OTHER_SEARCHES | sampling).items()
        if (value := getattr(settings, name, None)) not in (None, off)
    )
    for name, off in (_OTHER_SEARCHES | _RETURNED).items():
        setattr(settings, name, off)
    options: dict[str, Any] = {"do_sample": False, "num_beams": 1}
    if tokens is not None:
        settings.max_length, options["max_new_tokens"] = None, tokens
    is_standard = type(model).generate is transformers.GenerationMixin.generate
    if model.config.is_encoder_decoder and is_standard and not settings.cache_implementation:
        # By default transformers gives the decoder a cache with the layers of the encoder.
        sides = transformers.DynamicCache(), transformers.DynamicCache()
        options["past_key_values"] = transformers.EncoderDecoderCache(*sides)
    if settings.stop_strings is not None:
        options["tokenizer"] = tokenizer
    if "generate" in vars(model):
        notes += ("its own function `generate`",)
    read: list[Tensor] = []  # after each step, of the first text that the model writes

    def keep(ids: Tensor, scores: object, **_: object) -> Tensor:
        if not read or ids.shape[1] == read[-1].shape[1] + 1:
            read.append(ids)
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)  # ends no text

    positions: list[Tensor] = []
    logits: list[Tensor] = []

    def note(_: object, args: object, given: Mapping[str, Any], output: object) -> None:
        if (more := given.get("position_ids")) is not None:
            positions.append(more)
        of_step = getattr(output, "logits", None)
        if isinstance(of_step, Tensor) and len(logits) * of_step.shape[-1] < _LOGITS:
            logits.append(of_step[0, -1].clone())

    with watch.restoring(model, None), torch.no_grad(), watch.model_errors(model):
        model.register_forward_hook(note, with_kwargs=True)
        model.generation_config = settings
        options["stopping_criteria"] = transformers.StoppingCriteriaList([keep])
        returned = type(model).generate(model, **inputs, **options)
    if not read or (sequences := getattr(returned, "sequences", returned)).dim() != 2:  # sounds
        raise ModelError(f"{type(model).__name__} does not generate text. Choose another model.")
    one_each = sum(more.shape[-1] for more in positions) == len(read[-1][0]) - 1
    return Generation(
        positions=torch.cat(positions, dim=-1) if positions and one_each else None,
        logits=torch.stack(logits) if logits and len(logits) <= len(read) else None,
        ids=read[-1][0],
        prompt=read[0].shape[1] - 1,
        returned=sequences[0],
        notes=(f"left out of the settings of the generation: {', '.join(notes)}",) if notes else (),
    )


# Settings with which the next token is not the likeliest, and what turns them off.
_OTHER_SEARCHES = {
    "do_sample": False, "num_beams": 1, "num_beam_groups": None, "num_return_sequences": 1,
    "penalty_alpha": None, "dola_layers": None, "constraints": None, "force_words_ids": None,
    "prompt_lookup_num_tokens": None, "assistant_early_exit": None, "use_mtp": None,
    "token_healing": None,
}  # fmt: skip
_SAMPLING = "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p"
_RETURNED = {
    "return_dict_in_generate": False, "output_attentions": False, "output_hidden_states": False,
    "output_scores": False, "output_logits": False, "disable_compile": True,
}  # fmt: skip


def expect_no_later_keys(model: Any, captured: Capture, written: Generation) -> None:
    """Raise LaterKeysError if a token attends to one that was written later."""
    others = "encoder", "decoder", "text", LINEAR
    stacks = ("decoder",) if model.config.is_encoder_decoder else others
    for record, reference in zip(captured.records, captured.references, strict=True):
        maps = record.matrix if isinstance(record, LinearAttention) else reference.weights
        later = torch.ones_like(maps[0]).triu(1)
        later[:, : written.prompt] = 0
        is_square = len(later) == len(later.T) == len(written.ids) - 1
        if is_square and record.stack in stacks and bool((maps * later).any()):
            raise LaterKeysError(
                f"The tokens of {type(model).__name__} attend to later ones, so a generation has "
                "no single map. Give the text as a whole."
            )


class LaterKeysError(ModelError):
    """A token attends to one that is written later."""


def inputs_of_whole(
    model: Any, inputs: Mapping[str, Tensor], written: Generation, *, prefix: bool = False
) -> dict[str, Tensor]:
    """Return the inputs for reading a text with its continuation in one pass.

    prefix : whether the prompt is read in both directions; what is written reads what it follows.
    """
    ids, whole = written.ids[None, :-1], {**inputs}
    if model.config.is_encoder_decoder:
        whole["decoder_input_ids"] = ids
    else:
        added = ids.shape[1] - inputs["input_ids"].shape[1]
        # The continuation has the mask and the segment of the last token.
        for name in inputs.keys() & {"attention_mask", "token_type_ids"}:
            last = inputs[name][:, -1:].expand(-1, added)
            whole[name] = torch.cat([inputs[name], last], dim=1)
        if (positions := inputs.get("position_ids")) is not None:
            more = torch.arange(1, added + 1, device=positions.device)
            whole["position_ids"] = torch.cat([positions, positions[..., -1:] + more], dim=-1)
        whole["input_ids"] = ids
    if written.positions is not None:
        whole["position_ids"] = written.positions
    if prefix:
        T = len(written.ids) - 1
        seen = torch.ones(T, T, dtype=torch.bool, device=written.ids.device).tril()
        seen[:, : written.prompt] = True
        whole["attention_mask"] = additive_mask(seen[None, None], model.dtype)
    return whole
