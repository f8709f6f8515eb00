"""Explain a prediction: the measured effect of each word, beside an exact decomposition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack

import torch
from PIL import Image
from torch import Tensor

from attnviz.agreement import check_hidden_runs, check_hidden_states
from attnviz.analyses.explain.result import CHANGES, ExplainResult
from attnviz.attribution.decomposition import Decomposition, check_sums, decompose
from attnviz.attribution.interventions import (
    FEW,
    available_interventions,
    intervene,
    knock_out,
)
from attnviz.attribution.methods import check_methods, compute_methods
from attnviz.attribution.prediction import Answer, Choices, Prediction, Similarity
from attnviz.attribution.ranking import spread, sum_pieces
from attnviz.attribution.reference import Reading, Reference, encode_begun, make_reference, read
from attnviz.attribution.target import Target, base_of, mask_id, token_ids
from attnviz.attribution.tracing import tracing
from attnviz.capture.capture import generate_greedily
from attnviz.capture.watch import restoring
from attnviz.errors import InputError, ModelError, first_line, positive_number, refuse_given
from attnviz.inputs import Inputs, encode, expect_one_text
from attnviz.inputs.text import encode_prefix, expect_tokens_left, tokenizer_of
from attnviz.inputs.tokens import TextSource, TokenIds, decode, parse_text
from attnviz.models.pretrained import has_text_decoder, input_kinds
from attnviz.pipeline.attend import Loadable, Model, Source, load, parse_source
from attnviz.results import AgreementReport, Provenance
from attnviz.results.arguments import checked_scalars
from attnviz.results.axis import TokenGroups
from attnviz.results.text import UNMEASURED
from attnviz.runtime import part, track
from attnviz.runtime.libraries import silence_logs

_TOP = 5  # predictions that are listed


@checked_scalars
@torch.inference_mode(False)
@silence_logs()
def explain(
    text: TextSource | None = None,
    *,
    target: str | None = None,
    against: str | None = None,
    word: str | None = None,
    similar_to: TextSource | Image.Image | None = None,
    groups: str | Sequence[str] | None = None,
    number: Literal["log-probability", "logit"] = "log-probability",
    reference: TextSource | None = None,
    methods: str | Sequence[str] = ("partial-split",),
    generate: int = 1,
    decoder: TextSource | None = None,
    model: Model | Loadable | None = None,
    **inputs: Unpack[Source],
) -> ExplainResult:
    """Explain a prediction by the effect of changing each word, beside an exact decomposition.

    Parameters
    ----------
    text : str, ids, BatchEncoding or messages
        The text, as in `attend`. A causal model predicts its next token, a masked language model
        the first mask token in it, such as [MASK], a classifier its class. An encoder–decoder reads
        it as the source, and predicts the next token of the target. A model that answers questions
        predicts a span of the second text (`pair`), after the question.
    target : str, optional
        The token, class or span to explain, not the text of a decoder, as in `attend`. Of a word of
        several tokens it is the first. By default the most probable one.
    against : str, optional
        Another token or class. The difference of both logits is explained. By default the second
        most probable one, if there is no `target`, the classes exclude each other, and the logits
        differ by half a logit or more. Else the target is explained alone.
    word : str, optional
        Of a model that labels each token: the word whose label is explained, as in `shift`. The
        target is the label.
    similar_to : str, ids, BatchEncoding, messages, or image, optional
        Another text, or the file of another picture. The cosine of both embeddings is explained, by
        the pooling of the model.
    groups : "sentence", "passage" or sequence of str, optional
        Explain by parts of the text in place of its words: by its sentences, by its passages, which
        blank lines separate, or by the parts that are given, in the words of the text. Each is
        hidden from all other tokens (attention knock-out), or masked for a similarity of mean
        states, and nothing is decomposed. The part with the position that is read, such as the
        question, stays. With `generate` the whole answer is explained.
    number : {"log-probability", "logit"}
        What is explained of a target alone.
    reference : str, optional
        What the text is compared with. "gate", the default: the same text, where every token may
        attend only to itself, to special tokens and to the attention sink. "mask", the default of
        a similarity of mean states if there is a mask token: the text with other words masked.
        Otherwise a text with the same number of tokens, also as ids or messages.
    methods : str or sequence of str, optional
        Attribution methods to compute beside the decomposition: "attention-value-norm",
        "direct-attribution", "ensemble", "gradient-attention", "gradient-input",
        "integrated-gradients", "late-rollout", "partial-split", "raw-attention", "rollout" or
        "value-zeroing". A method that the model does not support is left out, with a note. By
        default "partial-split", the mean over references in which some words are hidden.
    generate : int, default 1
        Let a causal model or an encoder–decoder generate this many tokens greedily, and explain the
        last of them: the text and the tokens before it are what the model reads. With `groups`, or
        a sound or an image without `target` and `against`, at most this many tokens, and all of
        them.
    decoder : str or ids, optional
        The beginning of the target of an encoder–decoder, which the explained token goes on. By
        default the target is empty.
    model : Model, str, path or module
        From `load`, or what `load` takes: a model that predicts tokens or classes, or for
        `similar_to` any model of texts, such as the bundled one.
    **inputs
        Further inputs of `attend`: `pair`, `truncate`, `special_tokens`; or an `image`, or an
        `audio`, in place of a text. The parts of a sound are windows of time, each replaced by
        silence; those of an image are tiles, each covered with its mean color.

    Returns
    -------
    ExplainResult
        The effects of the interventions (`causal`), their mean (`consensus`), the decomposition,
        the attributions of `methods`, and how far each agrees with the effects
        (`rank_correlations`).

    Raises
    ------
    InputError
        The text has no mask token, the target is not in the vocabulary or no class, both choices
        are the same, the reference has another number of tokens, a method is unknown, a part is not
        in the text, the model does not generate so many tokens, it has no decoder that reads
        another text, or the input is no text.
    ModelError
        The model predicts neither tokens nor classes, or its blocks cannot be traced or have no
        gradients, where this is asked for.

    Examples
    --------
    >>> import attnviz
    >>> text = "The Eiffel Tower is in the city of"
    >>> why = attnviz.explain(text, target="Paris", against="London", model="smollm2")
    >>> print(why.headline)
    “Eiffel” raises “Paris” over “London” most
    >>> why.names[why.credit.nan_to_num().argmax()]
    'Eiffel'
    """
    generate = positive_number(generate, "generate")
    names = check_methods(methods)
    log = number == "log-probability"
    model, source, truncate = parse_source("explain", model, text, inputs, media=True)
    finish: Callable[[Target, Choices], ExplainResult] = partial(
        explain_prediction, reference=reference, methods=names
    )
    has_media = bool(source.pictures or source.sounds)
    chosen = names not in ((), ("partial-split",))
    of_words: dict[str, Any] = {"reference": reference, "word": word, "methods": chosen}
    if has_media:
        if len(kinds := input_kinds(model.module)) > 1:
            raise ModelError(
                f"{model.name} reads {' and '.join(kinds)} together, and explain replaces parts of "
                "one input. Choose a model that reads one alone, or see its maps with attend."
            )
        why = "parts of the sound or of the picture are replaced. Leave it out, or explain a text."
        refuse_given(why, groups=groups, decoder=decoder, **of_words)
        finish = explain_media
    elif groups is not None:
        why = "parts of a text are hidden, and nothing is decomposed. Leave it out, or groups."
        refuse_given(why, **of_words)
        is_one = isinstance(groups, str) or not isinstance(groups, Iterable)
        parts: list[Any] = [groups] if is_one else [*groups]
        by = parts[0] if parts in (["sentence"], ["passage"]) else parts
        finish = partial(explain_by_parts, by=by)
    reads: dict[str, Any] = {"truncate": truncate, "record": groups is None}
    if similar_to is not None:
        why = "a similarity is explained, of two whole texts. Leave it out, or similar_to."
        changed = {"generate": generate > 1, "number": not log}
        refuse_given(why, target=target, against=against, word=word, decoder=decoder, **changed)
        if has_text_decoder(model.module):
            raise ModelError(
                f"{model.name} has a decoder, and a similarity is of the states of one encoder. "
                "Choose a model without a decoder, such as BERT, ViT or Wav2Vec2."
            )
        reading = read(model, source, is_whole=True, **reads)
        choices = Choices.like(model, reading, similar_to, truncate=truncate)
        return finish(choices.target(0, None), choices)
    reads["makes_target"] = True
    is_bare = base_of(model.module) is model.module
    writes = has_text_decoder(model.module) and (is_bare or model.module.can_generate())
    if input_kinds(model.module) == ("text",) and writes:
        source = replace(source, targets=[_prefix(model, "" if decoder is None else decoder)])
    else:
        why = f"{model.name} has no decoder that reads a text of its own. Leave it out."
        refuse_given(why, decoder=decoder)
    is_named = target is not against or not log
    as_answer = (groups is not None or (has_media and not is_named)) and generate > 1
    if as_answer:
        why = "the whole answer is explained. Leave it out, or generate."
        refuse_given(why, target=target, against=against, number=not log)
    reading, ids, logits = _read_and_write(model, source, generate, as_answer=as_answer, **reads)
    if as_answer:
        choices = Choices.of_answer(model, reading, ids, logits)
        return finish(choices.answer(ids), choices)
    last = ids[-1] if ids else None
    return finish(*find_prediction(reading, model, target, against, word, log=log, last=last))


def explain_prediction(
    site: Target,
    choices: Choices,
    *,
    reference: TextSource | None = None,
    methods: Sequence[str] = (),
    measure: bool = True,
    provenance: Provenance | None = None,
) -> ExplainResult:
    """Explain a prediction as `explain`; `measure` : change each word."""
    reading, model, readout = choices.reading, site.model, site.readout
    optional = measure and (reference is None or str(reference) == "gate")
    if reference is None:
        reference = "mask" if readout.is_pooled and mask_id(model) is not None else "gate"
    compared = make_reference(site, reference, reading)
    groups, at = reading.groups, readout.positions[0]
    with tracing(model):
        numbers = site.outputs(1)
    value = numbers.sum().item()
    split, missing = _decompose(site, compared, value, optional=optional)
    is_gated = split is not None and compared.gate is not None
    is_same = {"masked token": True, "label": True, "next token": is_gated}
    # The positions with no difference to measure
    same = {reading.sink, *([at] if is_same.get(choices.kind) else [])}
    unmeasured = tuple(n for n, rows in enumerate(groups.positions) if same & {*rows})
    others = [n for n, flag in enumerate(groups.special) if not flag and n not in unmeasured]
    with tracing(model):
        words = [groups.positions[index] for index in others]
        # A word that others cannot read still counts in a mean over all words.
        left_out = {
            "knock-out": split is None or readout.is_pooled,
            "delete": choices.spans is not None,  # which are of positions
        }
        names = [name for name in available_interventions(model) if not left_out.get(name)]
        names = names if len(words) <= FEW else names[:1]
        changes = sorted(names, key="replace".__eq__) if measure else []  # it takes longest
        lost = intervene(site, words, changes, numbers, avoided=token_ids(compared.inputs))
        attributions: dict[str, Tensor] = {}
        if split is not None:
            score = split.score(site, reading.result, compared.gate)
            attributions, missing = compute_methods(methods, score)
    replaced = lost["replace"][..., 0].T if "replace" in lost else torch.empty(0, len(words))
    by_word = partial(spread, words=others, count=len(groups.labels))
    report = reading.result.agreement
    if split is not None:
        report = check_sums(report, split.relative_error(value))
    labeled = [n for n, rows in enumerate(groups.positions) if at in rows]
    return _result(
        site, choices, groups, numbers, report,
        baseline=value - (math.nan if split is None else split.total),
        at=labeled[0] if choices.kind == "label" else None,
        unmeasured=unmeasured,
        reference=compared.description,
        decomposition=split,
        causal={name: by_word(effect.mean(1).sum(-1)) for name, effect in lost.items()},
        replacements=by_word(replaced),
        methods={name: sum_pieces(of, groups.positions) for name, of in attributions.items()},
        notes=(*choices.notes, *reading.notes, *compared.notes, *missing),
        provenance=provenance or reading.result.provenance,
    )  # fmt: skip


def explain_by_parts(site: Target, choices: Choices, *, by: str | list[str]) -> ExplainResult:
    """Explain a prediction, or an answer, as `explain`, by hiding parts of the text."""
    reading, model, readout = choices.reading, site.model, site.readout
    at, goes_on = readout.positions[0], choices.kind in ("next token", "answer")
    groups = reading.parts(by, at + 1 if goes_on else len(reading.tokens))
    # Of a mean, the states of the part itself would still count; a decoder reads copies of it.
    is_changed = readout.is_pooled or (has_text_decoder(model.module) and not reading.stacks)
    # The part that is read, and the one that the text goes on from, stay.
    same = {reading.sink, *([] if readout.is_pooled else [at])}
    if isinstance(by, str) and goes_on and not reading.stacks:
        same |= {*groups.positions[-1]}
    others = [n for n, rows in enumerate(groups.positions) if rows and not same & {*rows}]
    others = [n for n in others if not groups.special[n]]
    changes = [one for one in available_interventions(model) if one not in ("knock-out", "replace")]
    change = changes[0] if is_changed else "knock-out"
    with tracing(model):
        numbers = site.outputs(1) if is_changed else knock_out(site, [()])  # with nothing hidden
        lost = intervene(site, [groups.positions[n] for n in others], [change], numbers)[change]
    parts = "part" if isinstance(by, list) else by
    return _of_parts(site, choices, groups, parts, change, numbers, lost, others)


def explain_media(site: Target, choices: Choices) -> ExplainResult:
    """Explain a prediction, or an answer, as `explain`, by replacing parts of a sound or image."""
    media, source, readout = choices.reading.media, choices.reading.source, site.readout
    assert media is not None
    parts, change = ("tile", "cover") if media.batch.waveform is None else ("window", "silence")
    others = [*range(len(choices.reading.tokens))]
    with restoring(site.model.module, None, seed=2):  # as it was loaded
        numbers = site.outputs(1)
        runs = [readout.run(media.without(n, site.model, source)) for n in track(others)]
        lost = (numbers - torch.stack(runs)).double().cpu()
    return _of_parts(site, choices, choices.reading.groups, parts, change, numbers, lost, others)


def _of_parts(
    site: Target, choices: Choices, groups: TokenGroups, parts: str, change: str, numbers: Tensor,
    lost: Tensor, others: list[int],
) -> ExplainResult:  # fmt: skip
    """Return a result by the effects of `change` on some parts, (n, K, R)."""
    reading, media = choices.reading, choices.reading.media
    effects, answer, by_answer = lost.mean(1), list[str](), None
    by_part = partial(spread, words=others, count=len(groups.labels))
    if isinstance(site.readout, Answer):
        answer, pieces = choices.words_of(site.readout.tokens)
        by_answer = by_part(sum_pieces(effects, pieces).T)
    unmeasured = [n for n, flag in enumerate(groups.special) if not flag and n not in others]
    what = {"window": "sound", "tile": "picture"}.get(parts, "text")
    return _result(
        site, choices, groups, numbers, reading.result.agreement, effects,
        baseline=math.nan,
        unmeasured=tuple(unmeasured),
        reference=f"the same {what}, where one {'part' if what == 'text' else parts} is "
        f"{CHANGES[change][1]}",
        decomposition=None,
        causal={change: by_part(effects.sum(-1))},
        replacements=torch.empty(0, len(groups.labels), dtype=torch.float64),
        notes=(*choices.notes, *(note.removesuffix(UNMEASURED) for note in reading.notes)),
        provenance=reading.result.provenance,
        parts=parts,
        answer=tuple(answer),
        by_answer=by_answer,
        edges=media.edges if media else (),
        image=media.batch.image if media else None,
        waveform=media.batch.waveform if media else None,
    )  # fmt: skip


def _result(
    site: Target, choices: Choices, groups: TokenGroups, numbers: Tensor, report: AgreementReport,
    effects: Tensor | None = None, **measured: Any,
) -> ExplainResult:  # fmt: skip
    """Return a result on the numbers (1, R) of our run, by some words, with what is measured.

    effects : those of runs without each part, (n, R), which show another attention if none is
    recorded.
    """
    reading, readout, model = choices.reading, site.readout, site.model
    assert isinstance(readout, Prediction)
    answer, value = measured.get("answer"), numbers.sum().item()
    probabilities, top = choices.probabilities, [] if answer else choices.top(_TOP)
    source = reading.stacks.source
    sides = ["source" if {*rows} & {*range(source)} else "target" for rows in groups.positions]
    ours, loaded = numbers.double().cpu(), choices.loaded(readout).double().cpu()
    size = choices.logits.double().abs().max().item()
    if effects is not None:
        if not report.checks:
            layers = getattr(model.module.config.get_text_config(), "num_hidden_layers", 1)
            report = check_hidden_runs(report, ours, loaded, effects, layers, size)
        if report.output is not None and not report.output.passed:  # how much rounding may add
            report = reading.again(model).agreement
    name = "similarity" if isinstance(readout, Similarity) else "logits"
    return ExplainResult(
        target=" ".join(answer or ()) or choices.label(readout.choice),
        against=None if readout.against is None else choices.label(readout.against),
        kind=readout.kind,
        number=readout.number,
        value=value,
        probability=math.exp(value) if answer else probabilities[readout.choice].item(),
        top=tuple(map(choices.label, top)),
        top_probabilities=tuple(probabilities[top].tolist()),
        words=groups.shown,
        positions=groups.positions,
        special=groups.special,
        tokens=reading.tokens.labels,
        stacks=tuple(sides) if reading.stacks else groups.texts,
        agreement=check_hidden_states(report, ours, loaded, name=name, scale=size),
        **measured,
    )


def _decompose(
    site: Target, compared: Reference, value: float, *, optional: bool
) -> tuple[Decomposition | None, list[str]]:
    """Return the split of the number `value`, and notes; `optional`: a note if it is impossible."""
    split, notes = None, []
    try:
        if has_text_decoder(site.model.module) and not site.readout.stacks:
            raise ModelError("the model makes the text of its decoder itself")
        with tracing(site.model):
            along = torch.ones(1, device="cpu")
            split = decompose(site.readout, compared.inputs, direction=along, gate=compared.gate)
    except ModelError as error:
        if not optional or isinstance(error.__cause__, torch.OutOfMemoryError):
            raise
        notes = [f"only effects are measured, and no method is computed: {first_line(error)}"]
    is_split = split is None or (split.credit.isfinite().all() and split.length > 0)
    if not (is_split and math.isfinite(value)):
        raise ModelError(
            f"The prediction of {site.model.name} cannot be explained: it is nan or infinite, or "
            "no word changes it. Choose another model or --dtype (dtype=)."
        )
    return split, notes


def find_prediction(
    reading: Reading,
    model: Model,
    target: str | None = None,
    against: str | None = None,
    word: str | None = None,
    *,
    log: bool = True,
    last: int | None = None,
) -> tuple[Target, Choices]:
    """Return the prediction of a text, by default of `last` or the most probable token.

    word : as in `explain`.
    """
    choices = Choices.of(model, reading, word)
    first = choices.top(1)[0] if last is None else last
    second = choices.rival(first) if target is against is None else None
    if target is not None:
        first = choices.find(target, "target")
    if against is not None:
        second = choices.find(against, "other choice")
    if not log and second is not None:
        raise InputError(
            "The number logit is of a target alone, but of two choices the difference of logits is "
            "explained. Name a target (--target, target=) and no other choice."
        )
    if first == second:
        raise InputError(
            f"Both choices are the token or class “{choices.label(first)}”. Choose another one."
        )
    return choices.target(first, second, log=log), choices


def _prefix(model: Model, decoder: TextSource) -> TokenIds:
    """Return what a decoder reads first: a text that begins its target, or the ids themselves."""
    if not model.module.can_generate():
        raise ModelError(
            f"{model.name} has a decoder without a head that predicts its next token. Use a model "
            "with one, such as T5ForConditionalGeneration."
        )
    if isinstance(decoder, str):
        return encode_prefix(model.checkpoint, decoder)
    match parse_text(decoder, "The decoder text", prompted=False):
        case [TokenIds() as ids]:
            return replace(ids, shifted=True)
    raise InputError(f"The decoder text must be a string or ids, not {decoder!r:.60}.")


def _read_and_write(
    model: Model, source: Inputs, count: int, *, as_answer: bool, **reads: Any
) -> tuple[Reading, list[int], Tensor | None]:
    """Read a text with what the model writes after it; return the ids and the logits of this too.

    count : of tokens, the last of which is predicted and not read. A model that writes about a
    sound or a picture begins its text itself.
    """
    checkpoint, has_media = model.checkpoint, bool(source.pictures or source.sounds)
    begins = has_media and has_text_decoder(model.module) and model.module.can_generate()
    decodes = begins or source.targets is not None
    if not decodes:
        if count == 1:
            return read(model, source, **reads), [], None
        other = ", or use a causal language model" * (not has_media)
        _expect_generator(model, f". Leave out --generate (generate=){other}.", media=has_media)
    truncate, start = reads["truncate"], 0
    if begins:
        inputs = encode(checkpoint, replace(source, generate=1), truncate=truncate).inputs
    else:
        inputs = encode_begun(model, source, truncate=truncate)[1].inputs
        start = inputs["decoder_input_ids" if decodes else "input_ids"].shape[1]
    expect_tokens_left(checkpoint, start, count)
    if count == 1 and not begins:
        return read(model, source, **reads), [], None
    tokenizer = checkpoint.target_tokenizer or model.tokenizer
    assert tokenizer is not None  # it has tokenized the text
    written = generate_greedily(model.module, inputs, count, tokenizer)
    start = start or written.prompt
    new: list[int] = written.ids[start:].tolist()
    words = [token not in tokenizer.all_special_ids for token in new]
    if as_answer:  # which may end before
        new = new[: [*words, False].index(False)]
    if not new:
        raise InputError(f"{model.name} writes no answer to this text. Begin the answer in it.")
    if sum(words[:-1]) < count - 1 and not as_answer:
        raise InputError(
            f"{model.name} ends the text after {sum(words[:-1])} tokens. Ask for fewer with "
            "--generate (generate=)."
        )
    ids: list[int] = written.ids[: start + len(new) - 1].tolist()
    whole, before = (decode(tokenizer, x, skip_special_tokens=True) for x in (ids, ids[:start]))
    told = whole.strip()[len(before.strip()) :].strip()
    wrote = () if as_answer or len(new) == 1 else (f"the model wrote “{told}”",)
    if decodes:
        source = replace(source, targets=[TokenIds(tuple(ids), shifted=True)])
    reading = read(model, source, more=None if decodes else new[:-1], **reads)
    notes = (*wrote, *written.notes, *reading.notes)
    return replace(reading, notes=notes), new, written.logits


def _expect_generator(model: Model, how: str, *, media: bool = False) -> None:
    """Raise InputError unless a model of one text generates. how : the rest of the message."""
    if not media:
        expect_one_text(model.checkpoint)
    if media or not getattr(model.module, "can_generate", bool)():
        raise InputError(f"{model.name} does not generate tokens{how}")


@checked_scalars
@silence_logs()
def explain_generation(
    text: str, *, generate: int, measure: bool = False, model: Model | Loadable | None = None
) -> list[ExplainResult]:
    """Explain each token that a model generates after a text by the words before it.

    The tokens are those of ``attend(text, generate=…)``. Each is compared with the token that is
    most probable beside it. Source and cost of the contributions are those of `explain`: a few
    forward passes for each token.

    Parameters
    ----------
    text : str
        The text before the generated tokens.
    generate : int
        The number of tokens to generate greedily.
    measure : bool, default False
        Also change each word in separate runs and measure the effect, as `explain` does. This takes
        some ten runs for each word, for each token.
    model : Model, str, path or module
        From `load`, or what `load` takes: a causal language model.

    Returns
    -------
    list of ExplainResult
        One for each generated token, in order. Special tokens, such as that of the end, have none.

    Raises
    ------
    InputError
        The model is no causal language model, or cannot read so many tokens.
    ModelError
        The blocks of the model cannot be traced.

    Examples
    --------
    >>> import attnviz
    >>> text = "The capital of France is"
    >>> (why,) = attnviz.explain_generation(text, generate=1, model="smollm2")
    >>> print(why.headline)
    By its contribution “France” raises “Paris” over “the” most
    """
    generate = positive_number(generate, "generate")
    model = model if isinstance(model, Model) else load(model)
    model.checkpoint.expect_pretrained("explain_generation")
    return explain_tokens(model, text, generate, measure=measure)


def explain_tokens(
    model: Model, text: str, generate: int, *, only: int | None = None, measure: bool = False
) -> list[ExplainResult]:
    """Explain generated tokens, or `only` the one with this number, as `explain_generation`."""
    model = Model(model.checkpoint.shadow())
    _expect_generator(model, ", so none can be explained. Use a causal language model.")
    with part(0, 2, "the model generates"):
        prompt = encode(model.checkpoint, [text]).inputs
        length = prompt["input_ids"].shape[1]
        expect_tokens_left(model.checkpoint, length, generate)
        generated = generate_greedily(model.module, prompt, generate, model.tokenizer)
        ids: list[int] = generated.ids[length:].tolist()
        reading = read(model, text, more=ids[:-1])
        reading = replace(reading, notes=(*generated.notes, *reading.notes))
        logits = Choices.of_answer(model, reading, ids).logits
    tokenizer = tokenizer_of(model.checkpoint)
    tokens: list[int] = reading.inputs["input_ids"][0].tolist()
    start = len(tokens) + 1 - len(ids)
    results = []
    with part(1, 2):
        for number in track(range(len(ids)), "the tokens are explained"):
            if ids[number] in tokenizer.all_special_ids or only not in (None, number):
                continue
            end = start + number  # of the tokens before this one
            written = decode(tokenizer, tokens[:end])[len(decode(tokenizer, tokens[:start])) :]
            before = reading.until(end)
            choices = Choices(model, before, "next token", (end - 1,), logits[number])
            site = choices.target(ids[number], choices.rival(ids[number]))
            choices.notes.extend([f"the model wrote “{written.strip()}”"] if written else [])
            source = replace(reading.result.provenance, text=text + written)
            why = explain_prediction(site, choices, measure=measure, provenance=source)
            results.append(why)
    return results
