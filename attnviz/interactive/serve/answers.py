"""What is computed for a reader: attention as the page's view, senses and shift as figures."""

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

Asked: TypeAlias = Mapping[str, Any]
Work: TypeAlias = Callable[[], bytes]  # JSON


@dataclass(frozen=True)
class Answers:
    """What the models say; of each request first what is wrong with it, then the work to do.

    models : those that may be asked, by name. most : tokens of a text.
    """

    models: Mapping[str, Model]
    most: int

    def attention(self, asked: Asked) -> Work:
        """Show every attention on a text, or on two that are compared."""
        model, text = self._model(asked), _text(asked, "text")
        compare = _text(asked, "compare") if asked.get("compare") else None
        return partial(_json, partial(self._attention, model, text, compare))

    def senses(self, asked: Asked) -> Work:
        """Draw in which layers the senses of a word are told apart."""
        model, word = self._model(asked), _text(asked, "word")
        if word.strip() not in bundled():
            raise InputError(
                f"Expected one of the words that come with sentences, {', '.join(bundled())}, got "
                f"{word[:40]!r}. Type one of them."
            )
        return partial(_json, partial(_senses, model, word, _width(asked)))

    def shift(self, asked: Asked) -> Work:
        """Draw what moved a word of a text; {mud|cash} in it compares two texts."""
        model, word, text = self._model(asked), _text(asked, "word"), _text(asked, "text")
        read = parse_pair(text, None)
        width = _width(asked)
        return partial(_json, partial(self._shift, model, word, text, read, width))

    def _model(self, asked: Asked) -> Model:
        name = asked.get("model")
        name = next(iter(self.models)) if name is None else name
        if not isinstance(name, str) or name not in self.models:
            raise InputError(f"Expected one of {', '.join(self.models)}, got {str(name)[:80]!r}.")
        return self.models[name]

    def _attention(self, model: Model, text: str, compare: str | None) -> dict[str, Any]:
        texts = [each for each in (text, compare) if each is not None]
        for each in texts:
            self._expect_short(model, each)
        results = [attend(each, model=model) for each in track(texts, "the model reads")]
        return view(results[0], compare=results[1] if compare else None).data()

    def _shift(
        self, model: Model, word: str, text: str, read: tuple[str, str], width: float
    ) -> dict[str, Any]:
        for each in read:
            self._expect_short(model, each)
        with part(0, 2, "the model reads"):
            result = shift(word, text, model=model)
        from attnviz.analyses.shift.plot import shift as draw

        with part(1, 2, "its figure is drawn"), _drawing():
            return _figure(result, draw(result, width=width))

    def _expect_short(self, model: Model, text: str) -> None:
        batch = encode(model.checkpoint, [text], truncate=True)
        read = len(batch.axes["text"][0])
        count, most = batch.cut_from[0] or read, min(self.most, read)
        if count > most:
            raise InputError(
                f"Expected at most {most} tokens, the most that is read here, got {count}. "
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
    """Draw without a window, as in a thread, and keep no figure, also where a run is stopped."""
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    try:
        yield
    finally:
        plt.close("all")


def _figure(result: SensesResult | ShiftResult, figure: Figure) -> dict[str, Any]:
    """Return a figure as SVG, which is never a file here, with what must be said beside it."""
    from attnviz.figures.save import render

    agreement = result.agreement
    return {
        "svg": render(figure, ".svg").decode(),
        "verdict": agreement.verdict,
        "summary": agreement.summary(),
        "notes": list(result.notes),
    }


def _json(work: Callable[[], dict[str, Any]]) -> bytes:
    """Do the work; warnings, which may repeat what was typed, go to the reader and nowhere else."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = work()
    ours = [str(each.message) for each in heard if issubclass(each.category, AttnvizWarning)]
    return json.dumps({**found, "warnings": list(dict.fromkeys(ours))}).encode()


def _width(asked: Asked) -> float:
    """Return how wide a figure is, in mm."""
    return COLUMN_WIDTH if asked.get("narrow") is True else FULL_WIDTH


def _text(asked: Asked, name: str) -> str:
    text = asked.get(name)
    if not isinstance(text, str):
        raise InputError(f"Expected a {name} as a string, got {type(text).__name__}. Type one.")
    if not text.strip():
        raise InputError(f"Expected a {name} with at least one word, got an empty one. Type one.")
    return text
