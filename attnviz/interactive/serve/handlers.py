"""Answer requests: attention as the data of a page, senses and shift as figures."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from attnviz.analyses.senses.compute import senses
from attnviz.analyses.senses.sentences import bundled
from attnviz.analyses.shift.compute import shift
from attnviz.analyses.shift.reference import parse_pair
from attnviz.errors import AttnvizWarning, InputError
from attnviz.figures.style import COLUMN_WIDTH, FULL_WIDTH
from attnviz.inputs import encode
from attnviz.interactive.view import view
from attnviz.pipeline.attend import Model, attend
from attnviz.runtime.progress import part, track

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnviz.analyses.senses.result import SensesResult
    from attnviz.analyses.shift.result import ShiftResult

Query: TypeAlias = Mapping[str, Any]  # the JSON object of a request
Work: TypeAlias = Callable[[], bytes]  # returns JSON


@dataclass(frozen=True)
class Handlers:
    """Checks each request at once, and returns the work that answers it.

    Attributes
    ----------
    models : mapping of str to Model
        The models that a request may name; the first is the default.
    max_tokens : int
        The most tokens of a text.
    """

    models: Mapping[str, Model]
    max_tokens: int

    def attention(self, query: Query) -> Work:
        """Show every attention on a text, or compare two texts."""
        model, text = self._model(query), _text(query, "text")
        compare = _text(query, "compare") if query.get("compare") else None
        return partial(_json, partial(self._attention, model, text, compare))

    def senses(self, query: Query) -> Work:
        """Draw in which layers the senses of a word separate."""
        model, word = self._model(query), _text(query, "word")
        if word.strip() not in bundled():
            raise InputError(
                f"Expected one of the words that come with sentences, {', '.join(bundled())}, got "
                f"{word[:40]!r}. Type one of them."
            )
        return partial(_json, partial(_senses, model, word, _width(query)))

    def shift(self, query: Query) -> Work:
        """Draw what moved the vector of a word; {mud|cash} in the text compares two texts."""
        model, word, text = self._model(query), _text(query, "word"), _text(query, "text")
        pair = parse_pair(text, None)
        return partial(_json, partial(self._shift, model, word, text, pair, _width(query)))

    def _model(self, query: Query) -> Model:
        name = query.get("model")
        name = next(iter(self.models)) if name is None else name
        if not isinstance(name, str) or name not in self.models:
            raise InputError(f"Expected one of {', '.join(self.models)}, got {str(name)[:80]!r}.")
        return self.models[name]

    def _attention(self, model: Model, text: str, compare: str | None) -> dict[str, Any]:
        texts = [text] if compare is None else [text, compare]
        for each_text in texts:
            self._expect_short(model, each_text)
        results = [attend(t, model=model) for t in track(texts, "the model reads")]
        return view(results[0], compare=results[1] if compare else None).data()

    def _shift(
        self, model: Model, word: str, text: str, pair: tuple[str, str], width: float
    ) -> dict[str, Any]:
        for each_text in pair:
            self._expect_short(model, each_text)
        with part(0, 2, "the model reads"):
            result = shift(word, text, model=model)
        from attnviz.analyses.shift.plot import shift as draw

        with part(1, 2, "its figure is drawn"), _drawing():
            return _figure(result, draw(result, width=width))

    def _expect_short(self, model: Model, text: str) -> None:
        batch = encode(model.checkpoint, [text], truncate=True)
        readable = len(batch.axes["text"][0])
        count, limit = batch.cut_from[0] or readable, min(self.max_tokens, readable)
        if count > limit:
            raise InputError(
                f"Expected at most {limit} tokens, the most that is read here, got {count}. "
                "Shorten the text."
            )


def _senses(model: Model, word: str, width: float) -> dict[str, Any]:
    with part(0, 2, "the model reads"):
        result = senses(word, model=model)
    from attnviz.analyses.senses.plot import senses as draw

    with part(1, 2, "its figure is drawn"), _drawing():
        return _figure(result, draw(result, width=width))


@contextmanager
def _drawing() -> Iterator[None]:
    """Draw in a thread without a window, and close all figures, also of a cancelled job."""
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    try:
        yield
    finally:
        plt.close("all")


def _figure(result: SensesResult | ShiftResult, figure: Figure) -> dict[str, Any]:
    """Return a figure as SVG, with its verdict and notes."""
    from attnviz.figures.save import render

    agreement = result.agreement
    return {
        "svg": render(figure, ".svg").decode(),
        "verdict": agreement.verdict,
        "summary": agreement.summary(),
        "notes": list(result.notes),
    }


def _json(work: Callable[[], dict[str, Any]]) -> bytes:
    """Do the work; warnings may quote the text, so they are sent to the client and not logged."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = work()
    messages = [str(w.message) for w in caught if issubclass(w.category, AttnvizWarning)]
    return json.dumps({**data, "warnings": list(dict.fromkeys(messages))}).encode()


def _width(query: Query) -> float:
    """Return the width of a figure, in mm."""
    return COLUMN_WIDTH if query.get("narrow") is True else FULL_WIDTH


def _text(query: Query, name: str) -> str:
    text = query.get(name)
    if not isinstance(text, str):
        raise InputError(f"Expected a {name} as a string, got {type(text).__name__}. Type one.")
    if not text.strip():
        raise InputError(f"Expected a {name} with at least one word, got an empty one. Type one.")
    return text
