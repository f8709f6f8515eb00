"""Run a model on one batch: encode, capture, verify, and return the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import isqrt
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from attnviz import agreement
from attnviz.capture.calls import read_computation
from attnviz.capture.capture import (
    Capture,
    Generation,
    LaterKeysError,
    capture,
    expect_no_later_keys,
    generate_greedily,
    inputs_of_whole,
)
from attnviz.capture.positions import (
    MovedKeys,
    Rows,
    UnknownPlacesError,
    change_by_code,
    change_in_rows,
    change_one_by_one,
    place_windows,
    rows_of,
)
from attnviz.capture.search import output_moved
from attnviz.capture.streamed import (
    LinearLayers,
    ReducedAttention,
    ReductionOptions,
    Sample,
    capture_pooled,
    capture_streamed,
    linear_calls,
    outputs_of_start,
)
from attnviz.capture.watch import Outputs, memory_budget
from attnviz.errors import InputError, ModelError, from_end, refuse_given, whole_numbers
from attnviz.inputs import Arguments, Batch, Inputs, encode, expect_labels_fit
from attnviz.inputs.audio import Sound
from attnviz.inputs.text import continue_axis, expect_tokens_left, spelled
from attnviz.inputs.tokens import decode, read_labels
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.pretrained import has_text_decoder, input_kinds
from attnviz.results import (
    AgreementReport,
    AttentionRecord,
    AttentionResult,
    Axis,
    Computation,
    LinearAttention,
    NextTokens,
    OutputCheck,
    PositionCheck,
    Provenance,
    StreamedAttention,
    digests_of,
    digests_of_each,
)
from attnviz.results.attention_record import Attention
from attnviz.results.axis import content_positions
from attnviz.runtime import version_of
from attnviz.runtime.libraries import free, translate

Mode: TypeAlias = Literal["auto", "full", "streamed"]
Positions: TypeAlias = Literal["sample", "all"]
_MOST_TOP_KEYS = 1024  # of each query
_MOST_WHOLE_WEIGHTS = 160_000_000  # of all heads: 1,024 tokens of GPT-2
_MOST_CELLS = 500  # rows and columns of a pooled map by default
_CELL_BUDGET = 2**23  # cells of all pooled maps together: 64 MB
_SAMPLED_WEIGHTS = 2**18  # of a layer, compared with the model's own
_CHANGED = 3  # tokens of each text, to see which key they move
_FEWEST_ROWS = 4  # compared of each head
_MOST_NEXT = 5  # tokens that are named as the next after each position
_PROBABILITIES = 2**21  # in memory at once, beside the logits of the run


class IfStreamed(tuple[int, ...]):
    """Layers or heads to store of a text that is streamed; whole maps are stored all the same."""


@dataclass(frozen=True)
class AttendOptions:
    """The options of `attend`, which describes them, checked as far as possible without a model."""

    truncate: bool = False
    mode: Mode = "full"
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    cells: int | None = None
    top: int = 0
    exact: tuple[int, ...] | None = None
    positions: Positions = "sample"
    selects_whole: bool = True  # whole maps, too

    @classmethod
    def parse(cls, **given: Any) -> AttendOptions:
        """Return checked options; raise InputError for a value that no model allows."""
        numbers = {"layers": "layer", "heads": "head", "exact": "exact layer"}
        chosen = {name: given.pop(name) for name in numbers}
        options = cls(**given)
        if options.cells is not None and options.cells < 1:
            raise InputError(f"cells must be at least 1, not {options.cells}.")
        if not 0 <= options.top <= _MOST_TOP_KEYS:
            raise InputError(f"top must be from 0 to {_MOST_TOP_KEYS} keys, not {options.top}.")
        whole = not any(isinstance(value, IfStreamed) for value in chosen.values())
        for name, what in numbers.items():
            chosen[name] = None if chosen[name] is None else whole_numbers(chosen[name], what)
        layers, exact = chosen["layers"], chosen["exact"]
        if layers and exact and (others := [n for n in exact if n not in layers]):
            raise InputError(
                f"exact layer {others[0]} is not stored: layers selects "
                f"{', '.join(map(str, layers))}. Name it in layers too."
            )
        return replace(options, selects_whole=whole, **chosen)


def run(checkpoint: Checkpoint, inputs: Inputs, options: AttendOptions) -> list[AttentionResult]:
    """Return the results of one batch; InputError for options, or maps, that do not fit."""
    module = checkpoint.module
    others = (inputs.pictures, inputs.sounds, inputs.generate, inputs.arguments)
    is_text = all(other is None for other in others)
    kinds, has_decoder = input_kinds(module), has_text_decoder(module)
    can_stream = is_text and kinds == ("text",) and not has_decoder
    if all(source is None for source in (inputs.texts, inputs.targets, inputs.sounds)):
        refuse_given("an image or inputs= are never cut. Leave it out.", truncate=options.truncate)
    if options.mode == "streamed" and not can_stream:
        raise InputError(
            'mode="streamed" takes one text by itself, for a model that reads nothing else; '
            "images, sounds, targets and generated texts have whole maps. Leave mode out."
        )
    if options.mode == "full" or not can_stream:
        why = 'the maps of this input are whole, not streamed. Leave it out, or mode="full".'
        refuse_given(why, cells=options.cells, top=options.top or None)
    budget = memory_budget(module)
    with translate(budget):
        beside = (inputs.texts, inputs.pictures, inputs.targets, inputs.generate)
        writes_text = has_decoder and kinds == ("audio",) and module.can_generate()
        if inputs.sounds and writes_text and all(other is None for other in beside):
            sound = inputs.sounds[0]
            transcript, notes = transcript_of(checkpoint, sound, truncate=options.truncate)
            results = run(checkpoint, replace(inputs, targets=[transcript]), options)
            notes = ("the target is the model's own transcript", *notes)
            return [replace(result, notes=(*notes, *result.notes)) for result in results]

        def encoded(inputs: Inputs) -> _Run:
            batch = encode(checkpoint, inputs, truncate=options.truncate)
            return _Run(checkpoint, inputs, batch, options, read_computation(checkpoint.as_loaded))

        if options.mode != "streamed" and options.cells is None and not options.top:
            all_at_once = encoded(inputs)
            batch = all_at_once.batch
            if not can_stream:
                return all_at_once.whole()
            layers, heads = _head_counts(checkpoint)
            length = max(len(axis) for axis in batch.axes["text"])
            if options.mode == "full" or layers * heads * length**2 <= _MOST_WHOLE_WEIGHTS:
                # The scores and the weights of one layer must fit. The recorder checks the memory
                # for all layers when the first has run.
                texts, length = len(batch.axes["text"]), batch.inputs["input_ids"].shape[-1]
                budget.expect(2 * texts * heads * length**2 * module.dtype.itemsize)
                return all_at_once.whole()
            if len(batch.axes["text"]) == 1:
                return [all_at_once.streamed()]
        return [encoded(single).streamed() for single in inputs.one_by_one()]


def transcript_of(
    checkpoint: Checkpoint, sound: Sound, *, truncate: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Return the text that the model writes for a sound, and notes; InputError if it is empty."""
    batch = encode(checkpoint, Inputs(sounds=[sound], generate=1), truncate=truncate)
    tokenizer = checkpoint.target_tokenizer
    assert tokenizer is not None  # no model that writes text is loaded without one
    written = generate_greedily(checkpoint.module, batch.inputs, tokenizer=tokenizer)
    # With its first blank, so that the tokenizer divides it as the model wrote it.
    text = str(tokenizer.decode(written.returned, skip_special_tokens=True))
    if not text.strip():
        raise InputError(
            f"{checkpoint.name} finds no words in the sound. Give another sound, or the text of "
            "its decoder with --target (target=…)."
        )
    return text, written.notes


def _head_counts(checkpoint: Checkpoint) -> tuple[int, int]:
    """Return the number of layers and of heads in each by the config; 12 if it does not say."""
    config = checkpoint.module.config
    names = "num_hidden_layers", "num_attention_heads"
    numbers = (getattr(config, name, None) for name in names)  # some have one for each stack
    layers, heads = (number if isinstance(number, int) else 12 for number in numbers)
    return layers, heads


@dataclass(frozen=True, eq=False)
class _Run:
    """The run of a model on one batch; its methods return the results by the kind of their maps."""

    checkpoint: Checkpoint
    inputs: Inputs
    batch: Batch
    options: AttendOptions
    computation: Computation  # before the run
    written: Generation | None = None  # the batch ends with what the model wrote

    def whole(self) -> list[AttentionResult]:
        """Return the results of a batch, with records from which the whole maps follow."""
        checkpoint, inputs, batch, options = self.checkpoint, self.inputs, self.batch, self.options
        if options.selects_whole:
            why = "whole maps hold all heads, exactly. Leave it out."
            refuse_given(why, heads=options.heads, exact=options.exact)
        if inputs.generate is not None and self.written is None:
            return self.generated(inputs.generate)
        sha256, module = checkpoint.current_sha256(), checkpoint.module
        captures, outputs, rows = self._capture(sha256)
        first = captures[0]
        logits: Tensor | list[None] | None = first.outputs.recorded.logits
        if logits is None or len(logits) != len(captures):
            logits = [None] * len(captures)
        if inputs.arguments is not None:
            expect_labels_fit(inputs.arguments, {one.size for one in first.records})
        moved = self._moved_keys(captures, rows)
        placed = [
            tuple(place_windows(module, batch.inputs, one) for one in each.records)
            for each in captures
        ]
        proofs = agreement.prove_all(
            [record for records in placed for record in records],
            [reference for each in captures for reference in each.references],
        )
        digests, results = digests_of_each(placed), []
        for n, (captured, output) in enumerate(zip(captures, outputs, strict=True)):
            records = placed[n]
            doubts = self._doubts(n)
            positions = PositionCheck(doubt=doubts[0]) if doubts else None
            if moved and not doubts:
                of_input = {kind: keys[n] for kind, keys in moved.items()}
                every = options.positions == "all"
                positions = agreement.check_positions(of_input, records, every=every)
            report = agreement.verify(
                records,
                captured.references,
                proofs=[proofs.pop(0) for _ in records],
                digests=digests[n],
                output=output,
                positions=positions,
                input=batch.details[n].check,
                versions=package_versions(),
                weights_sha256=sha256,
            )
            linear = [one.module for one in records if isinstance(one, LinearAttention)]
            where = "in the stack “linear”"
            notes = (*captured.notes, *_mixing(len(records) - len(linear), linear, where))
            if self.written is not None:
                report = _check_steps(report, self.written, first.outputs.loaded.logits)
                notes += () if report.analysis else ("the steps of the generation not compared",)
            result = self._result(
                n,
                records,
                report,
                notes,
                next_tokens=_next_tokens(module, checkpoint.target_tokenizer, logits[n], records),
            )
            if options.layers is not None and options.selects_whole:
                result = result.at(options.layers)
            results.append(result)
        return results

    def generated(self, count: int) -> list[AttentionResult]:
        checkpoint, batch, module = self.checkpoint, self.batch, self.checkpoint.module
        has_decoder = has_text_decoder(module)
        checkpoint.expect_processors()
        tokenizer = checkpoint.target_tokenizer
        if tokenizer is None:
            raise ModelError(
                f"{checkpoint.name} cannot generate text: its decoder has no tokenizer. Pass one "
                "(target_tokenizer=)."
            )
        prompt = None if has_decoder else batch.axes.get("text", (None,))[0]
        expect_tokens_left(checkpoint, 1 if prompt is None else len(prompt), count)
        written = generate_greedily(module, batch.inputs, count, tokenizer)
        kind = "target" if has_decoder else "text"
        axes = {**batch.axes, kind: (continue_axis(tokenizer, prompt, written.ids[:-1]),)}

        def read(*, prefix: bool) -> list[AttentionResult]:
            inputs = inputs_of_whole(module, batch.inputs, written, prefix=prefix)
            whole = replace(batch, inputs=inputs, axes=axes)
            return replace(self, batch=whole, written=written).whole()

        try:
            return read(prefix=False)
        except LaterKeysError:
            if not has_decoder and written.logits is not None:  # which show whether it was so
                with suppress(ModelError):  # it takes no mask of two dimensions
                    return read(prefix=True)
            raise

    def _capture(self, sha256: str) -> tuple[list[Capture], list[OutputCheck | None], Rows | None]:
        """Return what was recorded, the checks of the outputs, and the rows.

        The two runs are rows of one batch, unless the model then gives other outputs.
        """
        module, batch = self.checkpoint.module, self.batch
        has_codes = self.options.positions != "all" and self.written is None
        kinds = [kind for kind in self._kinds() if kind != "audio"] if has_codes else []
        joined = None if self.inputs.arguments is not None else rows_of(batch, kinds)
        for rows in (joined, None):
            captures = capture(module, batch.inputs, batch.axes, rows)
            layers = len({record.path for record in captures[0].records})
            outputs = self._check_outputs(captures[0].outputs, len(captures), layers, sha256)
            if captures[0].keys is None or all(one is None or one.passed for one in outputs):
                break
            captures.clear()  # before others take their memory
        if self.written is not None:
            expect_no_later_keys(module, captures[0], self.written)
        return captures, outputs, rows

    def _check_outputs(
        self, outputs: Outputs, texts: int, layers: int, sha256: str
    ) -> list[OutputCheck | None]:
        known, inputs = self.computation, self.batch.inputs
        is_plain = not (known.hooks or known.forwards or known.adapters)
        moved = output_moved(self.checkpoint.module, inputs, sha256 if is_plain else None)
        axes = self.batch.axes if outputs.tokens is None else {}
        return agreement.check_output(outputs, axes, texts, layers, moved)

    def _kinds(self) -> list[str]:
        inputs = self.inputs
        given: dict[str, object] = {
            "text": inputs.texts, "image": inputs.pictures, "audio": inputs.sounds,
            "target": inputs.targets,
        }  # fmt: skip
        if inputs.arguments is not None:
            given = {kind: self.batch.axes.get(kind) for kind in given}
        return [kind for kind, source in given.items() if source is not None]

    def pooled(self, known: LinearLayers) -> AttentionResult:
        checkpoint, batch, options = self.checkpoint, self.batch, self.options
        why = f"{checkpoint.name} has linear attention only, with pooled maps. Leave it out."
        named = {"top": options.top or None, "exact (--layer of view)": options.exact}
        refuse_given(why, **named)
        module, axis = checkpoint.module, batch.axes["text"][0]
        cells = options.cells or min(_MOST_CELLS, max(1, isqrt(_CELL_BUDGET // known.heads)))
        cell = -(-len(axis) // cells)
        records, references = capture_pooled(module, batch.inputs, axis, known.calls, cell)
        report = agreement.verify(records, references, **self._of_start(len(records)))
        pooled = (
            f"each cell joins {cell} × {cell} of the {len(axis):,} × {len(axis):,} weights "
            "(columns summed with their signs, rows averaged)"
        )
        notes = (*self._doubts(0), *known.notes, pooled)
        result = self._result(0, records, report, notes)
        for head in options.heads or ():
            for layer in options.layers or result.layers:
                result.check_head(layer, head)
        return result if options.layers is None else result.at(options.layers)

    def streamed(self) -> AttentionResult:
        """Return the reduced attentions of one text, compared in some rows with the model's own."""
        checkpoint, batch, options = self.checkpoint, self.batch, self.options
        if options.positions == "all":
            raise InputError(
                "The positions of a streamed text cannot be checked. Leave --positions "
                '(positions="all") out, or ask for whole maps: --mode full (mode="full").'
            )
        known = linear_calls(checkpoint.module, batch.inputs)
        if known is not None and known.is_all:
            return self.pooled(known)
        module, axis, device = checkpoint.module, batch.axes["text"][0], checkpoint.device
        layers, heads = _head_counts(checkpoint)
        chosen, exact = (
            numbers and tuple(dict.fromkeys(from_end(one, range(layers)) for one in numbers))
            for numbers in (options.layers, options.exact)
        )
        count = len(chosen or range(layers)) * len(options.heads or range(heads))
        cells = options.cells or min(_MOST_CELLS, max(1, isqrt(_CELL_BUDGET // count)))
        marked = content_positions(axis).to(device)
        exact = (chosen if exact is None else exact) or ()
        reduction = ReductionOptions(chosen, options.heads, cells, options.top, marked, exact)
        rows = sampled_rows(len(axis), heads)
        proofs: list[agreement.Proof] = []
        attentions: list[StreamedAttention] = []
        pending: list[Sample] = []  # a GPU compares as many at once as it has room for
        layers_of: Counter[str] = Counter()  # of each stack

        def take(attention: Sample) -> None:
            pending.append(attention)
            layers_of[attention.record.stack] += 1
            size, place = sum(map(_bytes, pending)), attention.record.query.device
            if place.type == "cpu" or 4 * size > (free(place) or 0):
                compare_and_store()

        def compare_and_store() -> None:
            of_rows = agreement.prove_rows(pending, rows)
            reduced = [one for one in pending if isinstance(one, ReducedAttention)]
            of_maps = iter(agreement.prove_streamed(reduced, rows, marked))
            for attention, proof in zip(pending, of_rows, strict=True):
                proofs.append(proof)
                if not isinstance(attention, ReducedAttention):
                    continue
                proofs.append(next(of_maps))
                record = attention.record
                source = replace(record, input=None, rotation=None, projection=None)
                fields_of = {one.name: getattr(record, one.name) for one in fields(Attention)}
                attentions.append(
                    StreamedAttention(
                        **fields_of,
                        heads=record.heads,
                        layers=0,  # known after the run
                        kept=attention.heads,
                        summary=attention.summary.cpu(),
                        record=source if record.layer in exact else None,
                    )
                )
            pending.clear()

        capture_streamed(module, batch.inputs, batch.axes, rows, reduction, take)
        if pending:
            compare_and_store()
        streamed = tuple(replace(entry, layers=layers_of[entry.stack]) for entry in attentions)
        report = agreement.report(
            proofs,
            str(module.dtype).removeprefix("torch."),
            str(device),
            rows=(len(rows), len(axis)),
            digests=digests_of(streamed),
            **self._of_start(layers),
        )
        notes = self._doubts(0)
        if known is not None:
            where = "not shown of a long text"
            notes = (*notes, *known.notes, *_mixing(layers_of.total(), known.modules, where))
        return self._result(0, (), report, notes, streamed=streamed)

    def _of_start(self, layers: int) -> dict[str, Any]:
        """Return what a report says of a long text's input, versions and weights, and its start."""
        outputs = outputs_of_start(self.checkpoint.module, self.batch.inputs)
        sha256 = self.checkpoint.current_sha256()
        (output,) = self._check_outputs(outputs, 1, layers, sha256)
        return {
            "output": output,
            "input": self.batch.details[0].check,
            "versions": package_versions(),
            "weights_sha256": sha256,
        }

    def _moved_keys(
        self, captures: Sequence[Capture], rows: Rows | None
    ) -> dict[str, list[MovedKeys]]:
        """Return how far keys moved when each input was changed, by kind; {} if none can be."""
        module, batch = self.checkpoint.module, self.batch
        every, records = self.options.positions == "all", captures[0].records

        def moved(kind: str) -> list[MovedKeys]:
            if not every and kind != "audio":  # whose frames overlap
                by_code = change_in_rows(batch, rows, kind, records, captures[0].keys)
                by_code = by_code or change_by_code(module, batch, kind, records)
                if all(map(agreement.can_be_told, by_code)):
                    return by_code
            return change_one_by_one(module, batch, kind, records, None if every else _CHANGED)

        try:
            if self.inputs.generate is not None:
                raise UnknownPlacesError("the model generates the tokens itself")
            return {kind: moved(kind) for kind in self._kinds()}
        except UnknownPlacesError as reason:
            if every:
                raise InputError(
                    f"The positions of {self.checkpoint.name} cannot be checked: {reason}. Leave "
                    '--positions (positions="all") out.'
                ) from reason
        except ModelError:  # the model does not run on a batch of changed inputs
            if every:
                raise
        return {}

    @cached_property
    def _ids(self) -> list[list[int]]:
        """The ids that the model reads of each text; a device is waited for once."""
        ids = self.batch.inputs.get("input_ids")
        return [] if ids is None else ids.flatten(0, -2).tolist()

    def _doubts(self, n: int) -> tuple[str, ...]:
        """Return notes where the labels of text n may not be its tokens."""
        doubts = [] if (doubt := self.batch.details[n].doubt) is None else [doubt]
        axis, media = self.batch.axes.get("text"), "pixel_values" in self.batch.inputs
        if axis is not None and self._ids and not (media or self.inputs.sounds):  # with own labels
            own = read_labels(self._ids[n], self.checkpoint.tokenizer)
            pairs = zip(axis[n].labels, own, axis[n].padding, strict=False)
            if any(label != text and not padding for label, text, padding in pairs):
                doubts.append("the labels are not those of the tokens")
        if "text" in self.batch.axes and self.checkpoint.fits_vocabulary is False:
            doubts.append(
                "tokens that are spelled alike have unrelated embeddings: this may be the "
                "tokenizer of another model"
            )
        return tuple(doubts)

    def _result(
        self,
        n: int,
        records: tuple[AttentionRecord, ...],
        report: AgreementReport,
        notes: tuple[str, ...],
        **more: Any,
    ) -> AttentionResult:
        """Return the result of input n with its provenance; what was recorded must fit together."""
        batch, source = self.batch, self.inputs.texts[n] if self.inputs.texts else ""
        how = () if isinstance(source, str) else (source.note,)
        written = () if self.written is None else self.written.notes
        notes = (*batch.details[n].notes, *how, *self.checkpoint.notes, *written, *notes)
        more |= {"notes": notes, "waveform": batch.waveform}
        try:
            return AttentionResult(records, report, self.provenance(n, report), batch.image, **more)
        except InputError as error:
            raise ModelError(
                f"{error}, and it was recorded otherwise. This is a bug in attnviz, not in your "
                "input. Report it with the name of the model."
            ) from error

    def provenance(self, n: int, report: AgreementReport) -> Provenance:
        """Return the provenance of input n."""
        checkpoint, inputs, batch = self.checkpoint, self.inputs, self.batch
        text, pair = batch.details[n].texts
        written, generated = self.written, None
        if written is not None and checkpoint.target_tokenizer is not None:
            ids = written.ids[written.prompt :].tolist()
            generated = decode(checkpoint.target_tokenizer, ids, skip_special_tokens=True).strip()
        target = inputs.targets[n] if inputs.targets else ""
        return Provenance(
            model=checkpoint.name, weights_sha256=report.weights_sha256, text=text,
            pair=pair, dtype=report.dtype,
            device=report.device, versions=report.versions,
            target=spelled(replace(checkpoint, decodes=True), target)[0] or None,
            cut_from=batch.details[n].cut_from,
            image=inputs.pictures[0].name if inputs.pictures else None, audio=batch.sound,
            generated=generated, computation=self.computation,
            inputs=None if inputs.arguments is None else Arguments(batch.inputs).summary,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Unrecorded:
    """What is known of a text that a model reads without a recording of its attention."""

    agreement: AgreementReport
    provenance: Provenance
    records: tuple[AttentionRecord, ...] = ()

    @classmethod
    def of(cls, checkpoint: Checkpoint, inputs: Inputs, *, truncate: bool = False) -> Unrecorded:
        """Return what is known of one text; nothing runs."""
        batch = encode(checkpoint, inputs, truncate=truncate)
        report = AgreementReport(
            checks=(),
            not_compared=(("any layer", "weights", "no map is shown"),),
            unproven=(),
            dtype=str(checkpoint.module.dtype).removeprefix("torch."),
            device=str(checkpoint.device),
            input=batch.details[0].check,
            versions=package_versions(),
            weights_sha256=checkpoint.current_sha256(),
        )
        known = read_computation(checkpoint.as_loaded)
        reads = _Run(checkpoint, inputs, batch, AttendOptions(truncate=truncate), known)
        return cls(report, reads.provenance(0, report))


def _check_steps(
    report: AgreementReport, written: Generation, logits: Tensor | None
) -> AgreementReport:
    """Compare the logits (1, T, V) of one pass with those of the steps in which a model wrote."""
    if logits is None or written.logits is None:
        return report
    steps, compared = len(written.ids) - written.prompt, len(written.logits)
    ours = logits[0, written.prompt - 1 :][:compared]
    name = f"logits of {'the' if compared == steps else f'the first {compared:,}'} steps"
    return agreement.check_hidden_states(report, ours.double(), written.logits.double(), name=name)


def _next_tokens(
    module: Any,
    tokenizer: PreTrainedTokenizerBase | None,
    logits: Tensor | None,
    records: Sequence[AttentionRecord],
) -> NextTokens | None:
    """Return the most probable next tokens, from logits (T, vocabulary), of a causal model."""
    if logits is None or tokenizer is None or not getattr(module, "can_generate", bool)():
        return None
    axis = _causal_axis(records, len(logits))
    if axis is None:
        return None
    probabilities, ids = most_probable(logits, min(_MOST_NEXT, logits.shape[-1]))
    labels = tuple(tuple(read_labels(row, tokenizer)) for row in ids.tolist())
    return NextTokens(axis, ids, labels, probabilities)


def most_probable(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest probabilities (T, count), float32, and their ids, from logits (T, V)."""
    rows = max(1, _PROBABILITIES // logits.shape[-1])
    tops = [part.double().softmax(-1).topk(count) for part in torch.split(logits, rows)]
    probabilities, ids = (torch.cat(parts).cpu() for parts in zip(*tops, strict=True))
    return probabilities.float(), ids


def _causal_axis(records: Sequence[AttentionRecord], length: int) -> Axis | None:
    """Return the tokens (length,) of the stack in which no query reads a later key."""
    stacks: dict[str, list[AttentionRecord]] = {}
    for record in records:
        if len(record.query_axis) == len(record.key_axis) == length:
            stacks.setdefault(record.stack, []).append(record)
    causal = []
    for same in stacks.values():
        known = [mask for record in same if (mask := record.readable()) is not None]
        later = [mask.triu(1).any().to(known[0].device) for mask in known]
        if len(known) == len(same) and not torch.stack(later).any():  # waits for a device once
            causal.append(same[0].query_axis)
    return causal[0] if len(causal) == 1 else None


def _mixing(softmax: int, linear: Sequence[str], where: str) -> tuple[str, ...]:
    """Return how many layers mix tokens by a softmax, and how many without one, if both exist."""
    if not linear or not softmax:
        return ()
    kinds = " and ".join(dict.fromkeys(linear))
    first, second = ("are" if count > 1 else "is" for count in (softmax, len(linear)))
    return (
        f"{softmax} of {softmax + len(linear)} layers that mix tokens {first} softmax attention; "
        f"the other {len(linear)} ({kinds}) {second} linear attention, {where}",
    )


def _bytes(sample: Sample) -> int:
    """Return how much memory a record takes, with weights that may be elsewhere otherwise."""
    made = sample.record.projection
    weights = [getattr(part, "weight", None) for part in vars(made).values()] if made else []
    parts = [*vars(sample.record).values(), *weights]
    return sum(part.nbytes for part in parts if isinstance(part, Tensor))


def sampled_rows(length: int, heads: int) -> Tensor:
    """Return the rows to compare: the last, and random ones that are the same in every run."""
    count = min(length, max(_FEWEST_ROWS, _SAMPLED_WEIGHTS // (heads * length)))
    chance = torch.Generator("cpu").manual_seed(length)
    others = torch.randperm(length - 1, generator=chance, device="cpu")
    last = torch.tensor([length - 1], device="cpu")
    return torch.cat([others[: count - 1], last]).sort().values


def package_versions() -> dict[str, str]:
    """Return the versions of attnviz, torch and transformers."""
    return {name: version_of(name) for name in ("attnviz", "torch", "transformers")}
