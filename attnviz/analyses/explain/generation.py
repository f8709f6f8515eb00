"""Why a model generated each of its tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnviz.analyses.explain.compute import FoundPrediction, explain_prediction
from attnviz.analyses.explain.result import ExplainResult
from attnviz.attribution.prediction import Choices, Prediction
from attnviz.attribution.reference import Reading, encode_causal
from attnviz.attribution.target import Target
from attnviz.capture.capture import generate_greedily
from attnviz.capture.watch import restoring
from attnviz.errors import InputError, positive_number
from attnviz.inputs.batch import encode, expect_one_text
from attnviz.inputs.text import expect_tokens_left
from attnviz.inputs.tokens import TokenIds
from attnviz.pipeline.attend import Loadable, Model, load
from attnviz.results.arguments import checked_scalars
from attnviz.results.axis import token_groups
from attnviz.runtime.libraries import silence_logs
from attnviz.runtime.progress import part, track


@checked_scalars
@silence_logs()
def explain_generation(
    text: str,
    *,
    generate: int,
    measure: bool = False,
    model: Model | Loadable | None = None,
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

    See Also
    --------
    view : Shows the explanations in the page of the generation.

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
    return explain_tokens(model, text, generate, measure=measure)


def explain_tokens(
    model: Model, text: str, generate: int, *, only: int | None = None, measure: bool = False
) -> list[ExplainResult]:
    """Explain generated tokens: see `explain_generation`.

    only : the number of the generated token to explain, counted from 0; None for all.
    """
    expect_one_text(model.checkpoint)
    if not getattr(model.module, "can_generate", bool)():
        raise InputError(
            f"{model.name} does not generate tokens, so none can be explained. Use a causal "
            "language model."
        )
    with part(0, 2, "the model generates"):
        reading, ids = _read_generation(model, text, generate)
        with restoring(model.module), torch.no_grad():
            logits = model.module(**reading.inputs)[0][0]
    assert model.tokenizer is not None  # it has tokenized the text
    special = model.tokenizer.all_special_ids
    decode = partial(model.tokenizer.decode, clean_up_tokenization_spaces=False)
    read: list[int] = reading.inputs["input_ids"][0].tolist()
    start = len(read) + 1 - len(ids)
    results = []
    with part(1, 2):
        for number in track(range(len(ids)), "the tokens are explained"):
            if ids[number] in special or only not in (None, number):
                continue
            end = start + number  # of the tokens before this one
            written = str(decode(read[:end]))[len(str(decode(read[:start]))) :]
            prediction = _find_choice(model, reading.until(end), logits[end - 1], ids[number])
            notes = [f"the model wrote “{written.strip()}”"] if written else []
            source = replace(reading.result.provenance, text=text + written)
            results.append(
                explain_prediction(prediction, measure=measure, notes=notes, provenance=source)
            )
    return results


def _read_generation(model: Model, text: str, generate: int) -> tuple[Reading, list[int]]:
    """Return the reading of a text with all generated tokens but the last, and their ids."""
    inputs, bos, sink, notes = encode_causal(model, text)
    prompt = encode(model.checkpoint, [text]).inputs
    length = prompt["input_ids"].shape[1]
    expect_tokens_left(model.checkpoint, length, generate)
    written = generate_greedily(model.module, prompt, generate, model.tokenizer)
    ids: list[int] = written.ids.tolist()
    read = [*inputs["input_ids"][0].tolist(), *ids[length:-1]]
    batch = encode(model.checkpoint, [TokenIds(tuple(read))])
    result = model.attend(read, mode="full").without_linear("attribution needs")
    tokens = result.records[0].query_axis
    groups = token_groups(tokens)
    notes = (*written.notes, *notes)
    return Reading(batch.inputs, result, groups, bos, sink, notes, tokens), ids[length:]


def _find_choice(model: Model, reading: Reading, logits: Tensor, token: int) -> FoundPrediction:
    """Return the prediction of a token after a text, against the most probable other token."""
    row = reading.inputs["input_ids"].shape[1] - 1
    choices = Choices(model, "", "next token", (row,), logits)
    readout = Prediction(
        model.module,
        choices.rows,
        choice=token,
        against=next(other for other in choices.top(2) if other != token),
        kind=choices.kind,
        log=False,
    )
    target = Target(model, reading.inputs, reading.special, readout, reading.sink)
    return FoundPrediction(reading, target, choices, [])
