"""A corpus as a model reads it, and some of its texts on which the model is proven."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnviz.analyses.survey.corpus import Text
from attnviz.analyses.survey.measure import Read
from attnviz.errors import InputError
from attnviz.inputs import max_tokens, tokenize
from attnviz.inputs.readers import reading
from attnviz.models.processors import has_text_decoder, input_kinds
from attnviz.pipeline.attend import Model, attend, load
from attnviz.results import AttentionResult

if TYPE_CHECKING:
    from attnviz.pipeline.attend import Loadable

PART = 512  # texts that are sorted by length, and written together
_SAMPLE = 8  # texts of which all stages are proven, and on which heads are compared
_SHORT = 128  # tokens, the most that these have where there are such


@dataclass
class Bad:
    """What of a corpus could not be read: how much, and the first."""

    count: int = 0
    first: str = ""

    def add(self, said: str) -> None:
        """Count one more; `said` is what is wrong with it."""
        self.count, self.first = self.count + 1, self.first or said

    def all(self) -> InputError:
        """Return what to raise where nothing else was there."""
        beside = f"; {self.count:,} could not be read: {self.first}" if self.count else "."
        return InputError(f"Expected a corpus with at least one text, got none{beside}")

    @property
    def notes(self) -> tuple[str, ...]:
        """What a result says of it."""
        if not self.count:
            return ()
        texts = "1 text" if self.count == 1 else f"{self.count:,} texts"
        return (f"left out, since it could not be read: {texts}, first {self.first.rstrip('.')}",)


def expect_text(model: Model | Loadable | None) -> Model:
    """Return a model that reads one text at a time."""
    model = model if isinstance(model, Model) else load(model)
    reads = input_kinds(model.module)
    if reads != ("text",) or has_text_decoder(model.module, model.module.config):
        two = reads == ("text",)
        what = "is an encoder–decoder" if two else f"reads {' and '.join(reads)}"
        raise InputError(
            f"Expected a model that reads one text, but {model.name} {what}. Choose another."
        )
    return model


def expect_seed(seed: int) -> None:
    """Raise InputError unless numbers can be drawn from a seed."""
    if not 0 <= seed < 2**63:
        raise InputError(f"Expected a seed from 0 to 2^63 - 1, got {seed}. Choose another.")


def read(
    model: Model, texts: Iterable[Text], *, truncate: bool, on_bad: Callable[[str], None] | None
) -> Iterator[Read]:
    """Yield the texts as the tokenizer reads them; what the model cannot is told, or raised."""
    checkpoint = model.checkpoint
    assert checkpoint.tokenizer is not None  # it reads text
    longest = max_tokens(checkpoint.module, checkpoint.tokenizer)
    for each in texts:
        try:
            with reading(checkpoint):
                encoding, _ = tokenize(checkpoint, (each.text, None), longest, truncate=truncate)
        except InputError as error:
            if on_bad is None:
                raise InputError(
                    f"In text {each.number + 1}: {error} Or leave such texts out (--skip-bad)."
                ) from None
            on_bad(f"text {each.number + 1}: {error}")
        else:
            kept = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask")
            found = {name: encoding[name] for name in kept if name in encoding}
            yield Read(each.number, each.text, found)


def sampled(model: Model, texts: Sequence[Read], truncate: bool) -> list[AttentionResult]:
    """Return results of some texts, spread evenly over those that are no longer than usual."""
    short = [each for each in texts if len(each.encoding["input_ids"]) <= _SHORT]
    short = short or [min(texts, key=lambda each: len(each.encoding["input_ids"]))]
    some = [each.text for each in short[:: -(-len(short) // _SAMPLE)]]
    results = attend(some, model=model, truncate=truncate, mode="full")
    return [replace(each, provenance=replace(each.provenance, text=None)) for each in results]
