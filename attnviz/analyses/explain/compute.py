"""Why a model predicted a token or a class.

The prediction is compared with that of a reference in which words can attend to less. The
difference is decomposed exactly (`attribution.decomposition`). Independently of that, each word is
changed, and the effect on the prediction is measured (`attribution.interventions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from attnviz.agreement import check_hidden_states
from attnviz.analyses.explain.result import ExplainResult, completeness_error
from attnviz.analyses.senses.compute import expect_readable
from attnviz.analyses.shift.compute import COMPLETE, tracing
from attnviz.attribution.decomposition import Decomposition, decompose
from attnviz.attribution.heads import HeadEffects, head_effects
from attnviz.attribution.interventions import (
    available_interventions,
    common_words,
    intervene,
    substitute_each,
)
from attnviz.attribution.lens import LogitLens, logit_lens
from attnviz.attribution.methods import attempt, check_methods, compute_methods
from attnviz.attribution.prediction import Choices, Prediction
from attnviz.attribution.ranking import sum_pieces
from attnviz.attribution.reference import Reading, encode_after, encode_causal, make_reference, read
from attnviz.attribution.stacks import token_ids
from attnviz.attribution.target import Score, Target
from attnviz.capture import generate_greedily, restoring
from attnviz.errors import InputError, ModelError, expect_words, positive_number
from attnviz.inputs import (
    TokenIds,
    encode,
    encode_prefix,
    expect_one_text,
    expect_tokens_left,
    generated_text,
)
from attnviz.models.pretrained import has_text_decoder, input_kinds
from attnviz.pipeline.attend import Loadable, Model, load
from attnviz.results import AgreementReport, AnalysisCheck
from attnviz.results.attention_result import Provenance
from attnviz.runtime.libraries import silence_logs
from attnviz.runtime.progress import part

_TOP = 5  # predictions that are listed


@silence_logs()
def explain(
    text: str,
    *,
    target: str | None = None,
    against: str | None = None,
    number: Literal["log-probability", "logit"] = "log-probability",
    reference: str = "gate",
    methods: str | Sequence[str] = ("partial-split",),
    heads: bool = False,
    generate: int = 1,
    decoder: str | None = None,
    model: Model | Loadable | None = None,
) -> ExplainResult:
    """Explain a prediction by the words of a text, exactly, beside the effect of changing each.

    Parameters
    ----------
    text : str
        The text. A causal model predicts its next token, a masked language model the first mask
        token in it, such as [MASK], a classifier its class. An encoder–decoder reads it as the
        source, and predicts the next token of the target.
    target : str, optional
        The token or class to explain. Of a word of several tokens it is the first. By default the
        most probable one.
    against : str, optional
        Another token or class. The difference of both logits is explained. By default the second
        most probable one, if there is no `target`; else the target is explained alone.
    number : {"log-probability", "logit"}
        What is explained of a target alone.
    reference : str, default "gate"
        What the text is compared with. "gate": the same text, where every token may attend only to
        itself, to special tokens and to the attention sink. "mask": the same text, where all other
        words are masked. Otherwise a text with the same number of tokens.
    methods : str or sequence of str, optional
        Attribution methods to compute beside the decomposition: "attention-flow",
        "attention-value-norm", "direct-attribution", "ensemble", "gradient-attention",
        "gradient-input", "integrated-gradients", "partial-split", "raw-attention", "rollout" or
        "value-zeroing". A method that the model does not support is left out, with a note. By
        default "partial-split", the mean over references in which some words are hidden.
    heads : bool, default False
        Also measure what the prediction loses without each head, estimated from the gradient and
        exactly for the thirty largest, and compute what each layer would predict (logit lens).
    generate : int, default 1
        Let a causal model or an encoder–decoder generate this many tokens greedily, and explain the
        last of them: the text and the tokens before it are what the model reads.
    decoder : str, optional
        The beginning of the target of an encoder–decoder, which the explained token goes on. By
        default the target is empty.
    model : Model, str, path or module
        From `load`, or what `load` takes: a model that predicts tokens or classes. The bundled
        model has no such head.

    Returns
    -------
    ExplainResult
        The decomposition, the effects of the interventions (`causal`), the attributions of
        `methods`, and how far each agrees with the effects (`rank_correlations`).

    Raises
    ------
    InputError
        The text has no mask token, the target is not in the vocabulary or no class, both choices
        are the same, the reference has another number of tokens, a method is unknown, the model
        does not generate so many tokens, or it has no decoder that reads another text.
    ModelError
        The model predicts neither tokens nor classes, or its blocks cannot be traced.

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
    if not isinstance(text, str):
        raise InputError(f"The text must be a string, not {type(text).__name__}.")
    expect_words(text, "The text")
    if number not in ("log-probability", "logit"):
        raise InputError(f"The number must be log-probability or logit, not {number!r:.60}.")
    generate = positive_number(generate, "generate")
    names = check_methods(methods)
    model = model if isinstance(model, Model) else load(model)
    log = number == "log-probability"
    if is_two_sided(model):
        prefix, written = _begin(model, text, decoder or "", generate)
        prediction = find_prediction(
            model, text, target, against, log=log, decoder=prefix, written=written.last
        )
    elif decoder is not None:
        raise InputError(
            f"{model.name} has no decoder that reads a text of its own. Leave out --decoder "
            "(decoder=)."
        )
    else:
        written = _continue(model, text, generate)
        prediction = find_prediction(
            model, text + written.text, target, against, log=log, written=written.last
        )
    return explain_prediction(
        prediction, reference=reference, methods=names, heads=heads, notes=written.notes
    )


def explain_prediction(
    prediction: FoundPrediction,
    *,
    reference: str = "gate",
    methods: Sequence[str] = (),
    heads: bool = False,
    measure: bool = True,
    notes: Sequence[str] = (),
    provenance: Provenance | None = None,
) -> ExplainResult:
    """Explain a prediction: see `explain`.

    methods : names of known methods. measure : change each word in separate runs. notes : on how
    the text came about. provenance : by default that of the reading.
    """
    reading, site, choices = prediction.reading, prediction.target, prediction.choices
    model, readout = site.model, site.readout
    assert isinstance(readout, Prediction)
    compared = make_reference(site, reference, reading.bos)
    groups, result, at = reading.groups, reading.result, readout.positions[0]
    unmeasured = tuple(
        index
        for index, rows in enumerate(groups.positions)
        if reading.sink in rows
        or (readout.kind == "masked token" and at in rows)
        or (readout.kind == "next token" and at in rows and compared.gate is not None)
    )
    with tracing(model):
        along = torch.ones(1, device="cpu")
        split = decompose(readout, compared.inputs, direction=along, gate=compared.gate)
        if not (torch.isfinite(split.credit).all() and split.length > 0):
            raise ModelError(
                f"The prediction of {model.name} cannot be decomposed: it is nan or infinite, or "
                "no word changes it. Choose another model or --dtype (dtype=)."
            )
        others = [
            index
            for index, special in enumerate(groups.special)
            if not special and index not in unmeasured
        ]
        words = [groups.positions[index] for index in others]
        causal: dict[str, Tensor] = {}
        replacements = torch.empty(0, len(words), dtype=torch.float64, device="cpu")
        if measure:
            causal, replacements = _measure(site, words, token_ids(compared.inputs))
        score = Score(
            **vars(site),
            direction=along,
            result=result,
            gate=compared.gate,
            computed={"split": split.credit},
        )
        attributions, left_out = compute_methods(methods, score)
        effects, lens, missing = _measure_heads(score, readout) if heads else (None, None, [])
        value = site.outputs(1).item()

    def by_word(numbers: Tensor) -> Tensor:
        """Place numbers of the changed words, (…, W)."""
        shape = *numbers.shape[:-1], len(groups.labels)
        placed = torch.full(shape, torch.nan, dtype=torch.float64, device="cpu")
        placed[..., others] = numbers
        return placed

    probabilities = choices.probabilities
    top = choices.top(_TOP)
    return ExplainResult(
        target=choices.label(readout.choice),
        against=None if readout.against is None else choices.label(readout.against),
        kind=readout.kind,
        number=readout.number,
        value=value,
        baseline=value - split.total,
        probability=probabilities[readout.choice].item(),
        top=tuple(map(choices.label, top)),
        top_probabilities=tuple(probabilities[top].tolist()),
        words=groups.labels,
        positions=groups.positions,
        special=groups.special,
        tokens=reading.tokens.labels,
        stacks=_stacks_of(reading),
        unmeasured=unmeasured,
        reference=compared.description,
        decomposition=split,
        causal={name: by_word(effect) for name, effect in causal.items()},
        replacements=by_word(replacements),
        methods={
            name: sum_pieces(scores, groups.positions) for name, scores in attributions.items()
        },
        heads=effects,
        lens=lens,
        notes=(*notes, *prediction.notes, *reading.notes, *compared.notes, *left_out, *missing),
        agreement=_verify(result.agreement, choices, site, split, value),
        provenance=provenance or result.provenance,
    )


@dataclass(frozen=True, eq=False)
class FoundPrediction:
    """The prediction that is explained, and the text that leads to it."""

    reading: Reading
    target: Target
    choices: Choices
    notes: list[str]


def find_prediction(
    model: Model,
    text: str,
    target: str | None = None,
    against: str | None = None,
    *,
    log: bool = True,
    decoder: TokenIds | None = None,
    written: int | None = None,
) -> FoundPrediction:
    """Read a text, and find the prediction that is explained: see `explain`.

    decoder : what the decoder of an encoder–decoder reads. written : the token that the model wrote
    next; by default the most probable one.
    """
    if decoder is None:
        expect_one_text(model.checkpoint)
    expect_readable(model, text, "The text")
    mask = getattr(model.tokenizer, "mask_token", None)
    if mask is not None and mask in text:
        model = Model(model.checkpoint.reading("parse"))  # it is the token to predict
    reading = read(model, text, decoder)
    before = text if decoder is None else reading.result.provenance.target or ""
    choices = Choices.of(model, before, reading)
    notes: list[str] = []
    if mask is not None and choices.kind == "masked token" and text.count(mask) > 1:
        notes.append(f"the text has {text.count(mask)} mask tokens: the first is explained")
    top = choices.top(2)
    first = top[0] if written is None else written
    second = next((other for other in top if other != first), None)
    if target is not None:
        first, found = choices.find(target, "target")
        notes += found
        second = None
    if against is not None:
        second, found = choices.find(against, "other choice")
        notes += found
    if first == second:
        raise InputError(
            f"Both choices are the token or class “{choices.label(first)}”. Choose another one."
        )
    readout = Prediction(
        model.module,
        choices.rows,
        choice=first,
        against=second,
        kind=choices.kind,
        log=log and choices.is_distribution,
        stacks=reading.stacks,
    )
    site = Target(model, reading.inputs, reading.special, readout, reading.sink)
    return FoundPrediction(reading, site, choices, notes)


def is_two_sided(model: Model) -> bool:
    """Return whether a model reads a text in its encoder, and writes another in its decoder."""
    module = model.module
    return input_kinds(module) == ("text",) and has_text_decoder(module, module.config)


@dataclass(frozen=True)
class _Written:
    """What a model wrote before the token that is explained, that token, and notes on both."""

    text: str = ""
    last: int | None = None
    notes: tuple[str, ...] = ()


def _begin(model: Model, text: str, decoder: str, count: int) -> tuple[TokenIds, _Written]:
    """Return what the decoder reads before the last of so many generated tokens."""
    if not isinstance(decoder, str):
        raise InputError(f"The decoder text must be a string, not {type(decoder).__name__}.")
    if not model.module.can_generate():
        raise ModelError(
            f"{model.name} has a decoder without a head that predicts its next token. Use a model "
            "with one, such as T5ForConditionalGeneration."
        )
    expect_readable(model, text, "The text")
    prefix = encode_prefix(model.checkpoint, decoder)
    expect_tokens_left(model.checkpoint, len(prefix.ids), count)
    if count == 1:
        return prefix, _Written()
    inputs = encode(model.checkpoint, [text], targets=[prefix]).inputs
    ids, last, notes = _generate(model, inputs, len(prefix.ids), count)
    tokenizer = model.checkpoint.target_tokenizer
    assert tokenizer is not None  # it has tokenized the text
    read, start = (generated_text(tokenizer, torch.tensor(i)) for i in (ids, prefix.ids))
    continuation = read[len(start) :]
    return TokenIds(tuple(ids), shifted=True), _Written(
        continuation, last, (f"the model wrote “{continuation.strip()}”", *notes)
    )


def _stacks_of(reading: Reading) -> tuple[str, ...]:
    """Return of each word whether it is in the source or in the target; () for one text."""
    if reading.stacks is None:
        return ()
    source = reading.stacks.source
    return tuple("source" if rows[0] < source else "target" for rows in reading.groups.positions)


def _generate(
    model: Model, inputs: Mapping[str, Tensor], length: int, count: int
) -> tuple[list[int], int, tuple[str, ...]]:
    """Return `length` ids and those of so many generated tokens but the last, and the last id.

    Raises InputError unless the model generates so many, and no special ones before the last.
    """
    tokenizer = model.checkpoint.target_tokenizer or model.tokenizer
    assert tokenizer is not None  # it has tokenized the text
    written = generate_greedily(model.module, inputs, count, tokenizer)
    *ids, last = written.ids.tolist()
    words = sum(token not in tokenizer.all_special_ids for token in ids[length:])
    if words < count - 1:
        raise InputError(
            f"{model.name} ends the text after {words} tokens. Ask for fewer with --generate "
            "(generate=)."
        )
    return ids, last, written.notes


def _continue(model: Model, text: str, count: int) -> _Written:
    """Return the tokens that a causal model generates after a text, greedily, but the last."""
    if count == 1:
        return _Written()
    expect_one_text(model.checkpoint)
    expect_readable(model, text, "The text")
    if not getattr(model.module, "can_generate", bool)():
        raise InputError(
            f"{model.name} does not generate tokens. Leave out --generate (generate=), or use a "
            "causal language model."
        )
    inputs, bos, *_ = encode_causal(model, text)
    before = inputs["input_ids"][0].tolist()
    expect_tokens_left(model.checkpoint, len(before), count)
    ids, last, notes = _generate(model, inputs, len(before), count)
    assert model.tokenizer is not None  # it has tokenized the text
    written, start = (
        str(model.tokenizer.decode(tokens, clean_up_tokenization_spaces=False))
        for tokens in (ids, before)
    )
    continuation = written[len(start) :]
    again = encode_after(model, text + continuation, bos).inputs["input_ids"][0].tolist()
    if again != ids:
        raise InputError(
            f"The generated text “{continuation}” is read as other tokens than were generated. "
            "Ask for one token more or fewer with --generate (generate=)."
        )
    return _Written(continuation, last, (f"the model wrote “{continuation.strip()}”", *notes))


def _measure(
    site: Target, words: Sequence[Sequence[int]], ids: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Return what the number loses by each change of a word, (W,), and by each replacement, (K, W).

    ids : the tokens of the text and of its reference, (2, T). None of them replaces a word.
    """
    others = [name for name in available_interventions(site.model) if name != "replace"]
    with part(0, 2):
        causal = {name: lost[:, 0] for name, lost in intervene(site, words, others).items()}
    stand_ins = [token for token in common_words(site.model) if token not in ids]
    with part(1, 2, "each word: replace"):
        ends = substitute_each(site, words, stand_ins)[..., 0].double().cpu()
    replacements = (site.outputs(1).item() - ends).T
    return {**causal, "replace": replacements.mean(0)}, replacements


def _measure_heads(
    score: Score, readout: Prediction
) -> tuple[HeadEffects | None, LogitLens | None, list[str]]:
    """Return the effects of the heads, the logit lens, and notes on what is left out."""
    lens, no_lens = None, ""
    effects, no_effects = attempt(lambda: head_effects(score))
    if readout.kind != "class":
        lens, no_lens = attempt(lambda: logit_lens(score, readout.rows[0]))
    reasons = {"the heads are": no_effects, "the logit lens is": no_lens}
    return effects, lens, [f"{what} left out: {why}" for what, why in reasons.items() if why]


def _verify(
    report: AgreementReport, choices: Choices, site: Target, split: Decomposition, value: float
) -> AgreementReport:
    """Return a report that covers the split: its sums, and the number that it explains.

    The model as loaded predicts the text once more. A gated reference is a run of its own, which no
    other run confirms.
    """
    missed = AnalysisCheck("sums of the parts", completeness_error(split), COMPLETE)
    report = replace(report, analysis=(*report.analysis, missed))
    ours = torch.tensor([[value]], dtype=torch.float64, device="cpu")
    with restoring(site.model.module, None, seed=2):
        loaded = site.readout.run(site.inputs).double().cpu()
    size = choices.logits.double().abs().max().item()
    return check_hidden_states(report, ours, loaded, name="logits", scale=size)
