"""Whether models can be compared: the same heads, and the same tokens of each text."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.analyses.survey.corpus import TokenizedText, tokenize_corpus
from attnviz.analyses.survey.result import HeadName
from attnviz.errors import InputError
from attnviz.pipeline.attend import Model


def describe_heads(model: Model, heads: Sequence[HeadName]) -> str:
    """Return how many heads a model has, in words."""
    return f"{model.name} ({type(model.module).__name__}) has {len(heads)}"


def expect_same_heads(
    first: Sequence[HeadName], second: Sequence[HeadName], descriptions: tuple[str, str]
) -> None:
    """Raise InputError if two models, described by `describe_heads`, do not have the same heads."""
    if tuple(first) != tuple(second):
        raise InputError(
            f"The heads differ: {', '.join(descriptions)}, perhaps in other layers. "
            "Compare checkpoints of one architecture."
        )


def expect_same_tokens(
    first: str, second: Model, texts: Sequence[TokenizedText], truncate: bool
) -> None:
    """Raise InputError if a model reads texts with other tokens than the model named `first`."""
    again = tokenize_corpus(second, texts, truncate=truncate, on_bad=None)
    for text, other in zip(texts, again, strict=True):
        if list(text.encoding["input_ids"]) != list(other.encoding["input_ids"]):
            raise InputError(
                f"{first} and {second.name} make different tokens of text "
                f"{text.number + 1}. Compare models with one vocabulary."
            )
