"""Answer requests with the data of a page, and for senses and shift also with a figure."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from attnviz.analyses.explain.compute import explain_tokens
from attnviz.analyses.senses import bundled
from attnviz.analyses.senses.compute import senses
from attnviz.analyses.senses.result import SensesResult
from attnviz.analyses.shift.compute import parse_pair, shift
from attnviz.analyses.shift.result import ShiftResult
from attnviz.errors import AttnvizWarning, InputError, expect_words
from attnviz.inputs.batch import encode
from attnviz.interactive.page import describe_explanation, view
from attnviz.pipeline.attend import Model, attend
from attnviz.results.base import described, finite
from attnviz.results.text import raised
from attnviz.runtime import part, track

Query: TypeAlias = Mapping[str, Any]  # the JSON object of a request
_MAX_SENTENCES = 64  # of a word
_MAX_TOLD = 60  # occurrences that are written out
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
        sentences = _sentences(query, "sentences", "sense")
        if not sentences and word.strip().casefold() not in bundled():
            raise InputError(
                f"{word[:40]!r} has no bundled sentences. Type your own, or one of "
                f"{', '.join(bundled())}."
            )

        def work() -> dict[str, Any]:
            self._expect_short(model, [text for texts in sentences.values() for text in texts])
            return _figure(partial(senses, word, sentences or None, model=model), _threads)

        return work

    def shift(self, query: Query) -> Work:
        """Draw what moved the vector of a word; {mud|cash} in the text compares two texts."""
        model, word, text = self._model(query), _text(query, "word"), _text(query, "text")
        toward = _sentences(query, "toward", "region")
        texts = [*parse_pair(text, None), *itertools.chain(*toward.values())]

        def work() -> dict[str, Any]:
            self._expect_short(model, texts)
            compute = partial(shift, word, text, toward=toward or None, model=model)
            return _figure(compute, _bricks)

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


def _sentences(query: Query, name: str, group: str) -> dict[str, list[str]]:
    """Return the sentences of each group, typed as "group: sentence" on a line each."""
    typed = query.get(name) or ""
    if not isinstance(typed, str):
        raise InputError(f"The sentences must be a string, not {type(typed).__name__}. Type some.")
    sentences: dict[str, list[str]] = {}
    for number, line in enumerate(filter(str.strip, typed.splitlines()), 1):
        sense, colon, sentence = line.partition(":")
        if not (sense.strip() and colon and sentence.strip()):
            raise InputError(
                f"Sentence {number} has no {group}. Type the {group} and a colon before it, as in "
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


def _threads(result: SensesResult) -> dict[str, Any]:
    """Return the sentences, and how much nearer each is to one sense than another by state."""
    occurrences = [
        {**described(o, "sentence start end attends_to"), "sense": result.senses.index(o.sense)}
        for o in result.occurrences
    ]
    shown = described(result, "word senses headline details notes chance claimed is_causal")
    shown |= described(result, "hesitating alike strips") | {"occurrences": occurrences}
    own = torch.tensor([[one["sense"]] for one in occurrences]).expand(*result.right.shape, 1)
    nearest = result.cosines.nan_to_num(-2).scatter(-1, own, -3).argmax(-1)
    numbers = {"heights": result.heights, "right": result.right[-1], "nearest": nearest}
    shown |= {name: finite(some.tolist(), 5) for name, some in numbers.items()}
    shown["scores"] = [described(score, "accuracy low high") for score in result.scores]
    return {"threads": {**shown, "told": sorted(result.sample(_MAX_TOLD))}}


def _bricks(result: ShiftResult) -> dict[str, Any]:
    """Return the paths of the word, and what each word adds to the gap between their ends."""
    adds, takes = result.along(result.parts), result.along(result.tested)
    words = [
        {
            "text": text,
            "name": raised(result.names[n]),
            "kind": "special" if special else "explained" if n == result.at else "other",
            "is_source": n in result.sources,
            "is_unread": n in result.unread,
            "adds": finite(adds[n], 5),
            "takes": finite(takes[n], 5),
        }
        for n, (text, special) in enumerate(zip(result.words, result.special, strict=True))
    ]
    shown = described(result, "headline details notes without regions sign credited changing")
    shown |= {"claimed": result.strongest, "changed": next(iter(result.changed), None)}
    rails = None if result.rails is None else finite(result.rails.tolist(), 5)
    shown |= {"place": finite(result.place.tolist(), 5), "rails": rails, "words": words}
    return {"moved": {**shown, "gap": abs(result.share(result.decomposition.total))}}


def _figure(compute: Callable[[], Any], more: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Return the figure of a result as SVG, its verdict, and `more` of the result."""
    import matplotlib.pyplot as plt

    from attnviz.figures.layout import render

    with part(0, 2, "the model reads"):
        result = compute()
    plt.switch_backend("agg")  # this thread has no window
    try:
        with part(1, 2, "its figure is drawn"):
            svg = render(result.plot(), ".svg").decode()
    finally:
        plt.close("all")  # also the figures of a cancelled job
    return {
        "svg": svg,
        "verdict": result.agreement.verdict,
        "summary": result.agreement.summary(),
        **more(result),
    }


def _text(query: Query, name: str) -> str:
    return expect_words(query.get(name), f"The {name}")
