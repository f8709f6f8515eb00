"""Measure where a model tells the senses of a word apart, on pairs of WordNet's sentences.

Both sentences of a pair have the word, in one sense or in two. A vector tells them apart if its
cosine is larger where the sense is the same. The area under the ROC curve (AUC) is the probability
of that for two random pairs, one of each kind. Layers and heads are chosen on some words and
measured on the others, and so is the mean on which vectors are centered.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.markdown import Markdown
from rich.progress import track
from torch import Tensor
from torch.nn.functional import normalize
from wordnet_pairs import DATA, PAIRS, other_words, similarity

import attnviz
from attnviz.analyses.senses import Sentence
from attnviz.analyses.senses.compute import word_pieces
from attnviz.capture.capture import capture, hidden_states
from attnviz.errors import ModelError
from attnviz.inputs import encode
from attnviz.models import NAMED
from attnviz.results import AgreementReport, AttentionRecord
from benchmarks.measuring import console, show_setting, versions

TABLE = DATA / "wordnet_senses.json"
GUIDE = DATA.parent / "guides" / "senses.md"
MARKS = ("<!-- table -->", "<!-- end of table -->")
RESAMPLES = 2000  # of the words
_SENTENCES = 32  # in one batch
_TIE = 1e-6  # scores that differ by less are tied


def measure(models: Sequence[str], *, write: bool) -> None:
    """Print the table of some models; store it, and write it in the guide."""
    pairs = Pairs.read()
    rows = list(rows_of_text(pairs))
    for name in models or ("minilm", *(["smollm2"] if NAMED["smollm2"].is_here else [])):
        rows += rows_of_model(attnviz.load(None if name == "minilm" else name), pairs)
    table = {
        "held_out_pairs": int(pairs.held_out.sum()),
        "held_out_words": len(set(pairs.words[pairs.held_out].tolist())),
        "pairs": len(pairs.same),
        "words": len(set(pairs.words.tolist())),
        "sha256": hashlib.sha256(PAIRS.read_bytes()).hexdigest(),
        "versions": versions(("attnviz", "torch", "transformers")),
        "rows": [asdict(row) for row in rows],
    }
    console.print(Markdown(markdown(table)))
    show_setting("attnviz", "torch", "transformers")
    if write:
        store(table)


# --- the pairs, and how well a number tells them apart


@dataclass(frozen=True, eq=False)
class Pairs:
    """P pairs of sentences, of which some are held out.

    sentences : 2 P, those of a pair one after the other. words : an index for each pair, (P,).
    same, held_out : (P,) bool.
    """

    sentences: tuple[Sentence, ...]
    words: Tensor
    same: Tensor
    held_out: Tensor

    @classmethod
    def read(cls, path: Path = PAIRS) -> Pairs:
        """Return the stored pairs."""
        pairs = json.loads(path.read_text(encoding="utf-8"))["pairs"]
        lemmas = list(dict.fromkeys(pair["lemma"] for pair in pairs))
        return cls(
            tuple(
                Sentence(one["text"], one["synset"], ((one["start"], one["end"]),))
                for pair in pairs
                for one in pair["sentences"]
            ),
            torch.tensor([lemmas.index(pair["lemma"]) for pair in pairs]),
            torch.tensor([pair["same"] for pair in pairs]),
            torch.tensor([pair["part"] == "held-out" for pair in pairs]),
        )

    @cached_property
    def weights(self) -> Tensor:
        """How often each held-out pair counts: once, then as its word is drawn with others."""
        words = self.words[self.held_out].unique(return_inverse=True)[1]
        count = int(words.max()) + 1
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(count, (RESAMPLES, count), generator=generator)
        times = torch.zeros(RESAMPLES, count, dtype=torch.double)
        times.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.double))
        return torch.cat([torch.ones(1, count, dtype=torch.double), times])[:, words]

    def held_out_areas(self, scores: Tensor) -> Tensor:
        """Return the AUC of scores (P,) on the held-out words, then those of all resamples."""
        part = self.held_out
        return areas(scores[part], self.same[part], self.weights)

    def choose(self, scores: Tensor) -> int:
        """Return which of K scores (K, P) tells the pairs of the choosing part apart best."""
        part = ~self.held_out
        once = torch.ones(1, int(part.sum()), dtype=torch.double)
        found = [areas(row[part], self.same[part], once).item() for row in scores]
        return found.index(max(found))

    def cosines(self, vectors: Tensor) -> Tensor:
        """Return the cosine of the vectors of each pair, centered, from (…, 2 P, d) to (…, P)."""
        to_center = (~self.held_out).repeat_interleave(2)
        unit = normalize(vectors - vectors[..., to_center, :].mean(-2, keepdim=True), dim=-1)
        return (unit[..., ::2, :] * unit[..., 1::2, :]).sum(-1)

    def standardized(self, scores: Tensor) -> Tensor:
        """Return scores (P,) with mean 0 and standard deviation 1 in the choosing part."""
        to_choose = scores[~self.held_out]
        return (scores - to_choose.mean()) / to_choose.std()


def areas(scores: Tensor, same: Tensor, weights: Tensor) -> Tensor:
    """Return the area under the ROC curve of scores (P,) with each row of weights (B, P).

    It is the probability that a pair of the same sense has the larger score; ties count half.

    >>> same = torch.tensor([True, True, False])
    >>> areas(torch.tensor([0.9, 0.2, 0.2]), same, torch.ones(1, 3)).item()
    0.75
    """
    above = scores[same][:, None] - scores[~same]
    wins = torch.where(above.abs() < _TIE, 0.5, (above > 0).double()).to(weights)
    positive, negative = weights[:, same], weights[:, ~same]
    return ((positive @ wins) * negative).sum(1) / (positive.sum(1) * negative.sum(1))


# --- the rows of the table


@dataclass(frozen=True)
class Row:
    """The AUC of one kind of score on the held-out words, with 95% intervals over words.

    model : None if the score needs none. twice : whether the sentence was repeated, and the word
    measured in its second half; None if this changes nothing. layer : which layer a vector enters
    (the output enters one after the last), or that of the best head. heads : among how many it is
    the best. gain : the AUC minus that of the other words, static.
    """

    score: str
    auc: float
    low: float
    high: float
    model: str | None = None
    twice: bool | None = None
    layer: int | None = None
    head: int | None = None
    heads: int | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None


def make_row(score: str, found: Tensor, others: Tensor | None = None, **place: Any) -> Row:
    """Return the row of a score with its AUC and resamples, beside those of the other words."""

    def rounded(values: Tensor) -> list[float]:
        ends = values[1:].quantile(torch.tensor([0.025, 0.975], dtype=torch.double))
        return [round(value, 4) for value in (values[0].item(), *ends.tolist())]

    row = dict(zip(("auc", "low", "high"), rounded(found), strict=True))
    if others is not None:
        gain = rounded(found - others)
        row |= dict(zip(("gain", "gain_low", "gain_high"), gain, strict=True))
    return Row(score, **row, **place)


def rows_of_text(pairs: Pairs) -> Iterator[Row]:
    """Yield the rows of scores that need no model."""
    places = [(sentence.text, *sentence.places[0]) for sentence in pairs.sentences]
    others = [other_words(*place) for place in places]
    shared = [similarity(a, b) for a, b in zip(others[::2], others[1::2], strict=True)]
    yield make_row("shared words", pairs.held_out_areas(torch.tensor(shared)))
    lengths = torch.tensor([float(len(text.split())) for text, *_ in places])
    positions = torch.tensor([float(len(text[:start].split())) for text, start, _ in places])
    for score, numbers in (("similar length", lengths), ("similar position", positions)):
        difference = numbers[::2] - numbers[1::2]
        yield make_row(score, pairs.held_out_areas(-difference.abs()))


def rows_of_model(model: attnviz.Model, pairs: Pairs) -> Iterator[Row]:
    """Yield the rows of a model; a causal one reads the sentences also twice."""
    once = WordVectors.of(model, pairs.sentences, heads=True)
    context, alone = pairs.cosines(once.others), pairs.cosines(once.static)
    others = pairs.held_out_areas(context)
    place: dict[str, Any] = {"model": model.name}
    yield make_row("word, static", pairs.held_out_areas(alone), others, **place)
    yield make_row("other words, static", others, **place)
    place["twice"] = False
    yield from _rows_of_states(pairs, once.states, context, place)
    assert once.heads is not None
    scores = pairs.cosines(once.heads)
    best = pairs.choose(scores)
    layer, head = once.names[best]
    place |= {"layer": layer, "head": head, "heads": len(scores)}
    yield make_row("best head", pairs.held_out_areas(scores[best]), others, **place)
    if once.causal:
        repeated = [_repeat(sentence) for sentence in pairs.sentences]
        twice = WordVectors.of(model, repeated, heads=False)
        place = {"model": model.name, "twice": True}
        yield from _rows_of_states(pairs, twice.states, context, place)


def _rows_of_states(
    pairs: Pairs, states: Tensor, context: Tensor, place: dict[str, Any]
) -> Iterator[Row]:
    """Yield the rows of all layers, of the best alone and with the other words, of the output."""
    scores, others = pairs.cosines(states), pairs.held_out_areas(context)
    found = [pairs.held_out_areas(row) for row in scores]
    for layer, values in enumerate(found):
        yield make_row("vector", values, others, layer=layer, **place)
    best = pairs.choose(scores)
    yield make_row("best layer", found[best], others, layer=best, **place)
    both = pairs.held_out_areas(pairs.standardized(scores[best]) + pairs.standardized(context))
    yield make_row("best layer and other words", both, others, layer=best, **place)
    yield make_row("output", found[-1], others, **place)


def _repeat(sentence: Sentence) -> Sentence:
    """Return a sentence repeated, with the word in its second half."""
    (start, end), moved = sentence.places[0], len(sentence.text) + 1
    text = f"{sentence.text} {sentence.text}"
    return Sentence(text, sentence.sense, ((start + moved, end + moved),))


# --- the vectors


@dataclass(frozen=True, eq=False)
class WordVectors:
    """The vectors of a word in N sentences, means over its pieces.

    states : of each layer's input and of the output, (L + 1, N, d_model). static : the embedding of
    the word, and others : the mean of those of the other words, (N, d_model). heads : what each of
    K heads adds for the word, before W^O, (K, N, d_v), if measured; names : their layer and head.
    causal : whether the word reads only what is before it.
    """

    states: Tensor
    static: Tensor
    others: Tensor
    heads: Tensor | None
    names: tuple[tuple[int, int], ...]
    causal: bool

    @classmethod
    def of(cls, model: attnviz.Model, sentences: Sequence[Sentence], *, heads: bool) -> WordVectors:
        """Run a model on sentences that each have the word once; verify it on the first ones."""
        results = model.attend([s.text for s in sentences[:_SENTENCES]], mode="full")
        report = AgreementReport.joined(result.agreement for result in results)
        if report.verdict != "verified":
            raise ModelError(f"{model.name}: {report.summary()}")
        records = results[0].records
        states, static, others, by_head = [], [], [], []
        starts = range(0, len(sentences), _SENTENCES)
        for start in track(starts, f"{model.name}, batches", console=console, transient=True):
            some = sentences[start : start + _SENTENCES]
            pieces = [list(word_pieces(model, sentence)[0]) for sentence in some]
            batch = encode(model.checkpoint, [sentence.text for sentence in some])
            hidden = torch.stack(hidden_states(model.module, batch.inputs)).cpu()
            with torch.no_grad():
                embedded = model.module.get_input_embeddings()(batch.inputs["input_ids"]).cpu()
            for n, (axis, rows) in enumerate(zip(batch.axes["text"], pieces, strict=True)):
                states.append(hidden[:, n, rows].mean(1))
                static.append(embedded[n, rows].mean(0))
                beside = [i for i, no in enumerate(axis.special) if not no and i not in rows]
                vectors = embedded[n]
                others.append(vectors[beside].mean(0) if beside else 0 * vectors[0])
            if heads:
                captures = capture(model.module, batch.inputs, batch.axes)
                for captured, rows in zip(captures, pieces, strict=True):
                    added = [head_output(record, rows).mean(1) for record in captured.records]
                    by_head.append(torch.cat(added).cpu())
        return cls(
            torch.stack(states, 1).double(),
            torch.stack(static).double(),
            torch.stack(others).double(),
            torch.stack(by_head, 1).double() if heads else None,
            tuple((record.layer, head) for record in records for head in range(record.heads)),
            not any(record.weights().triu(1).any() for record in records),
        )


def head_output(record: AttentionRecord, rows: Sequence[int]) -> Tensor:
    """Return what the heads of a layer add for some queries, before W^O, (H, R, d_v)."""
    weights = record.weights()[:, list(rows)]
    joined = record.join_shared(weights) @ record.value.to(weights)
    return joined.view(record.heads, len(rows), -1)


# --- the tables, printed, stored, and in the guide


def markdown(table: dict[str, Any]) -> str:
    """Return two tables in Markdown: the scores that are compared, and those of all layers."""
    rows = [Row(**row) for row in table["rows"]]
    vectors = (row for row in rows if row.score == "vector")
    columns = list(dict.fromkeys((row.model, bool(row.twice)) for row in vectors))
    compared: dict[str, dict[tuple[str | None, bool], str]] = defaultdict(dict)
    layers: dict[str, dict[tuple[str | None, bool], str]] = defaultdict(dict)
    for row in rows:
        lines, name = (layers, row.layer) if row.score == "vector" else (compared, row.score)
        of_columns = [
            (model, twice)
            for model, twice in columns
            if row.model in (None, model) and row.twice in (None, twice)
        ]
        lines[str(name)] |= dict.fromkeys(of_columns, _cell(row))
    heads = [f"{model}{', read twice' * twice}" for model, twice in columns]
    return "\n\n".join(
        "\n".join(
            f"| {' | '.join(line)} |"
            for line in (
                [title, *heads],
                ["---"] * (1 + len(heads)),
                *([name, *(cells.get(of, "–") for of in columns)] for name, cells in lines.items()),
            )
        )
        for title, lines in (("score", compared), ("entering layer", layers))
    )


def _cell(row: Row) -> str:
    """Return the AUC and where it is from; in bold if it is above that of the other words.

    The layers are too many for bold: some are above by chance.
    """
    is_above = row.score != "vector" and (row.gain_low or 0) > 0
    auc = f"**{row.auc:.2f}**" if is_above else f"{row.auc:.2f}"
    place = {
        "best layer": f", entering layer {row.layer}",
        "best layer and other words": f", entering layer {row.layer}",
        "best head": f", layer {row.layer}, head {row.head} of {row.heads}",
    }.get(row.score, "")
    return f"{auc} ({row.low:.2f} to {row.high:.2f}){place}"


def store(table: dict[str, Any]) -> None:
    """Write the table for the figure, and its Markdown in the guide."""
    rows = ",\n".join(json.dumps(row) for row in table["rows"])
    head = json.dumps({name: value for name, value in table.items() if name != "rows"}, indent=1)
    TABLE.write_text(f'{head[:-2]},\n "rows": [\n{rows}\n]}}\n', encoding="utf-8")
    text = GUIDE.read_text(encoding="utf-8")
    before, _, rest = text.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    made = f"{before}{MARKS[0]}\n\n{markdown(table)}\n\n{MARKS[1]}{after}"
    GUIDE.write_text(made, encoding="utf-8")
