"""Answer requests: attention as the data of a page, senses and shift as figures."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from attnviz.analyses.explain.compute import explain_tokens
from attnviz.analyses.senses.compute import senses
from attnviz.analyses.senses.result import SensesResult
from attnviz.analyses.senses.sentences import bundled
from attnviz.analyses.shift.compute import parse_pair, shift
from attnviz.analyses.shift.result import ShiftResult
from attnviz.errors import AttnvizWarning, InputError, expect_words
from attnviz.figures.style import COLUMN_WIDTH, FULL_WIDTH
from attnviz.inputs.batch import encode
from attnviz.interactive.page import describe_explanation, view
from attnviz.pipeline.attend import Model, attend
from attnviz.results.base import described
from attnviz.runtime.progress import part, track

Query: TypeAlias = Mapping[str, Any]  # the JSON object of a request
_MAX_SENTENCES = 64  # of a word
MAX_GENERATED = 64  # tokens after a text
Work: TypeAlias = Callable[[], dict[str, Any]]


class Handlers:
    """Checks each request at once, and returns the work that answers it.

    A stranger's text is plain text: special tokens that are typed in it are split. The first model
    is the default.
    """

    def __init__(self, models: Mapping[str, Model], max_tokens: int) -> None:
        self.models = {name: Model(m.checkpoint.reading("split")) for name, m in models.items()}
        self.max_tokens = max_tokens

    def attention(self, query: Query) -> Work:
        """Show every attention on a text, or compare two texts."""
        names = ("text", "compare") if query.get("compare") else ("text",)
        model, texts = self._model(query), [_text(query, name) for name in names]
        generate = _count(query, "generate", MAX_GENERATED) if query.get("generate") else None
        if generate is not None and len(texts) > 1:
            raise InputError("Two texts are compared without generated tokens. Leave one out.")

        def work() -> dict[str, Any]:
            self._expect_short(model, texts)
            results = [
                attend(text, generate=generate, model=model)
                for text in track(texts, "the model reads")
            ]
            return view(results[0], compare=results[1] if len(results) > 1 else None).data()

        return work

    def explain(self, query: Query) -> Work:
        """Explain the token that the model generates at a position after a text."""
        model, text = self._model(query), _text(query, "text")
        position = _count(query, "position", self.max_tokens + MAX_GENERATED)

        def work() -> dict[str, Any]:
            self._expect_short(model, [text])
            number = position - len(encode(model.checkpoint, [text]).axes["text"][0])
            explained = explain_tokens(model, text, number + 1, only=number) if number >= 0 else []
            if not explained:
                raise InputError("The model generates no token there. Show the text again.")
            return describe_explanation(explained[0], position)

        return work

    def senses(self, query: Query) -> Work:
        """Draw in which layers the senses of a word separate."""
        model, word = self._model(query), _text(query, "word")
        sentences = _sentences(query)
        if not sentences and word.strip().casefold() not in bundled():
            raise InputError(
                f"{word[:40]!r} has no bundled sentences. Type your own, or one of "
                f"{', '.join(bundled())}."
            )

        def work() -> dict[str, Any]:
            self._expect_short(model, [text for texts in sentences.values() for text in texts])
            compute = partial(senses, word, sentences or None, model=model)
            return _figure(compute, query, _occurrences)

        return work

    def shift(self, query: Query) -> Work:
        """Draw what moved the vector of a word; {mud|cash} in the text compares two texts."""
        model, word, text = self._model(query), _text(query, "word"), _text(query, "text")
        texts = parse_pair(text, None)

        def work() -> dict[str, Any]:
            self._expect_short(model, texts)
            return _figure(partial(shift, word, text, model=model), query, _words)

        return work

    def _model(self, query: Query) -> Model:
        name = query.get("model")
        name = next(iter(self.models)) if name is None else name
        if not isinstance(name, str) or name not in self.models:
            names = ", ".join(self.models)
            raise InputError(f"{str(name)[:80]!r} is not served. Choose one of {names}.")
        return self.models[name]

    def _expect_short(self, model: Model, texts: Sequence[str]) -> None:
        for text in texts:
            batch = encode(model.checkpoint, [text], truncate=True)
            readable = len(batch.axes["text"][0])
            count, limit = batch.details[0].cut_from or readable, min(self.max_tokens, readable)
            if count > limit:
                raise InputError(
                    f"The text has {count} tokens, and at most {limit} are read here. Shorten it."
                )


def answer(work: Work) -> bytes:
    """Do the work, and return its JSON.

    Warnings may quote the text: they are sent to the client and not logged.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = work()
    messages = [str(w.message) for w in caught if issubclass(w.category, AttnvizWarning)]
    return json.dumps({**data, "warnings": list(dict.fromkeys(messages))}).encode()


def _sentences(query: Query) -> dict[str, list[str]]:
    """Return the sentences of each sense, typed as "sense: sentence" on a line each."""
    typed = query.get("sentences") or ""
    if not isinstance(typed, str):
        raise InputError(f"The sentences must be a string, not {type(typed).__name__}. Type some.")
    sentences: dict[str, list[str]] = {}
    for number, line in enumerate(filter(str.strip, typed.splitlines()), 1):
        sense, colon, sentence = line.partition(":")
        if not (sense.strip() and colon and sentence.strip()):
            raise InputError(
                f"Sentence {number} has no sense. Type the sense and a colon before it, as in "
                "“river: We sat on the bank.”"
            )
        sentences.setdefault(sense.strip(), []).append(sentence.strip())
    if (count := sum(map(len, sentences.values()))) > _MAX_SENTENCES:
        raise InputError(f"{count} sentences are too many here. Type at most {_MAX_SENTENCES}.")
    return sentences


def _count(query: Query, name: str, most: int) -> int:
    value = str(query.get(name))
    if not value.isdecimal() or len(value) > len(str(most)) or not 1 <= int(value) <= most:
        raise InputError(f"The {name} must be a whole number from 1 to {most}. Type one.")
    return int(value)


def _occurrences(result: SensesResult) -> dict[str, Any]:
    """Return the sentences, and where their words lie in the plane of each state."""
    occurrences = [
        {**described(o, "sentence start end"), "sense": result.senses.index(o.sense)}
        for o in result.occurrences
    ]
    states = [
        {
            "name": result.state_name(state),
            "places": result.plane[state].tolist(),
            "right": [None if share != share else share for share in result.right[state].tolist()],
            "accuracy": score.accuracy,
        }
        for state, score in enumerate(result.scores)
    ]
    shown = {"senses": result.senses, "occurrences": occurrences, "states": states}
    return {"occurrences": {**shown, "best": result.best}}


def _words(result: ShiftResult) -> dict[str, Any]:
    """Return the words of the text, with the effect of changing each and its contribution."""
    kind, contributions = result.contributions
    numbers = zip(
        result.words, result.special, result.tested.tolist(), contributions.tolist(), strict=True
    )
    words = [
        {
            "text": word,
            "special": special,
            "explained": index == result.at,
            "lost": None if math.isnan(lost) else result.share(lost),
            "credited": None if math.isnan(credited) else result.share(credited),
        }
        for index, (word, special, lost, credited) in enumerate(numbers)
    ]
    return {
        "moved": {
            "headline": result.headline,
            "details": result.details,
            "lost": f"lost by {result.changing} it" if result.causal else None,
            "credited": "credited by the split" if kind == "all paths" else "read from it",
            "unit": "of the way",
            "words": words,
        }
    }


def _figure(
    compute: Callable[[], Any], query: Query, more: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    """Return the figure of a result as SVG, its verdict and notes, and `more` of the result."""
    import matplotlib.pyplot as plt

    from attnviz.figures.layout import render

    with part(0, 2, "the model reads"):
        result = compute()
    width = COLUMN_WIDTH if query.get("narrow") is True else FULL_WIDTH
    plt.switch_backend("agg")  # this thread has no window
    try:
        with part(1, 2, "its figure is drawn"):
            svg = render(result.plot(width=width), ".svg").decode()
    finally:
        plt.close("all")  # also the figures of a cancelled job
    return {
        "svg": svg,
        "verdict": result.agreement.verdict,
        "summary": result.agreement.summary(),
        "notes": list(result.notes),
        **more(result),
    }


def _text(query: Query, name: str) -> str:
    return expect_words(query.get(name), f"The {name}")
