"""What a page shows of the explanations of generated tokens, as types of JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from attnviz.analyses.explain.result import SPLIT, ExplainResult
from attnviz.errors import InputError
from attnviz.figures.scale import signed_norm
from attnviz.results import AttentionResult
from attnviz.results.text import literal, signed

_NAMED = 3  # words with the largest contributions that the headline names
_DIGITS = 4  # of a number
_LONGEST = 24  # letters of a word in a sentence


def place_explanations(
    result: AttentionResult, explanations: Sequence[ExplainResult]
) -> list[dict[str, Any]]:
    """Return what a page of a generation shows of the explanations of its tokens.

    InputError: an explanation is not of a token that the result has after the same tokens.
    """
    labels = result.stack().records[0].query_axis.labels
    placed: dict[int, dict[str, Any]] = {}
    for explanation in explanations:
        tokens = explanation.tokens
        has_first = tokens != labels[: len(tokens)]  # a token that is read before the text
        position = len(tokens) - 1 if has_first else len(tokens)
        if tokens[-position:] != labels[:position]:
            raise InputError(
                f"{explanation.question} is no token of this result after the same text. Explain "
                "the tokens of the same generation: explain_generation(text, generate=…)."
            )
        if position < len(labels):  # the model has not read its last token
            placed[position] = describe_explanation(explanation, position)
    if not placed:
        raise InputError(
            "None of the explained tokens is shown: the model does not read the last token that it "
            "generates. Generate one token more."
        )
    return [placed[position] for position in sorted(placed)]


def describe_explanation(result: ExplainResult, position: int) -> dict[str, Any]:
    """Return what a page shows of the explanation of one token.

    position : that of the token in the page. The explanation may read a token before the text.
    """
    before = len(result.tokens) - position
    if result.decomposition is None:
        raise InputError(f"{result.question} has no contributions of words, which a page shows.")
    credit = result.decomposition.credit.clone()
    for word in {*range(len(result.words))} - {*result.sources}:
        credit[list(result.positions[word])] = math.nan
    words = result.credit.tolist()
    top = signed_norm(words[index] for index in result.sources).vmax or 1.0
    return {
        "position": position,
        "credit": [_rounded(number) for number in credit[before:].tolist()],
        "top": _rounded(top),
        "headline": _headline(result),
        "lowers": f"lowers {result.question}",
        "unit": result.unit,
        "details": _details(result),
        "verdict": result.checked_agreement.verdict,
    }


def _rounded(number: float) -> float | None:
    return None if math.isnan(number) else float(f"{number:.{_DIGITS}g}")


def _headline(result: ExplainResult) -> str:
    """Return what raised the token most, with numbers: “Paris” over “London”: “Eiffel” +2.10."""
    credit = result.credit.tolist()
    order = sorted(result.sources, key=lambda index: -abs(credit[index]))[:_NAMED]
    words = [f"“{literal(result.names[n], _LONGEST)}” {_with_sign(credit[n])}" for n in order]
    if not words:
        return f"{result.question}: no word before it is measured"
    numbers = f"{', '.join(words)} {result.unit}"
    if result.causal and result.strongest != result.first(result.credit):
        return f"{result.question}: methods disagree, {numbers} by the split"
    return f"{result.question}: {numbers}"


def _details(result: ExplainResult) -> str:
    """Return how the contributions were computed, and how far they agree with the measured ones."""
    value, baseline = signed(result.value), signed(result.baseline)
    numbers = f"the logits differ by {value} here and by {baseline} without context"
    if result.against is None:
        numbers = f"{result.quantity} is {value} here and {baseline} without context"
    parts = [f"Contributions of the words by the split, sum {_with_sign(result.total)}: {numbers}"]
    if not result.causal:
        parts.append("Not compared with measured effects")
    elif SPLIT in result.rank_correlations:
        rho, low, high = map(signed, result.rank_correlations[SPLIT])
        rho = f"{rho} ({low} to {high} over words)"
        parts.append(f"Rank correlation with the measured effects {rho}")
    else:
        parts.append("Too few words for a rank correlation with the measured effects")
    parts += [
        f"{note[0].upper()}{note[1:]}"
        for note in result.notes
        if not note.startswith("the model wrote")
    ]
    if result.checked_agreement.verdict != "verified":
        parts.append(result.checked_agreement.summary())
    return ". ".join(part.rstrip(".") for part in parts) + "."


def _with_sign(number: float) -> str:
    return f"+{signed(number)}" if number > 0 else signed(number)
