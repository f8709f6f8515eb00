"""Measure in which layers a model separates the senses of a word.

Everything follows from the Gram matrix of the vectors, so that thousands of shuffled
senses are classified at once, exactly like the true senses.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from attnviz.agreement import check_hidden_states
from attnviz.analyses.senses import Sentence, read_sentences
from attnviz.analyses.senses.result import LEFT_TO_RIGHT, Occurrence, SenseScore, SensesResult
from attnviz.attribution.reference import is_causal
from attnviz.capture.capture import hidden_states
from attnviz.errors import InputError, ModelError
from attnviz.inputs import encode, expect_one_text
from attnviz.inputs.text import token_spans
from attnviz.inputs.tokens import pieces_in
from attnviz.pipeline.attend import Loadable, Model, Source, parse_source
from attnviz.results import AgreementReport, AttentionRecord, AttentionResult
from attnviz.results.arguments import checked_scalars
from attnviz.results.axis import content_words, expect_known, token_groups
from attnviz.results.text import literal
from attnviz.runtime.libraries import silence_logs

SHUFFLES = 2000  # permutations of the senses, and refits with weighted sentences
_SENTENCES = 32  # in one batch
_MEMBERSHIPS = 2_000_000  # numbers of shuffled memberships at once
_NORMAL = 1.959963984540054  # the 97.5th percentile of a standard normal distribution
_TIE = 1e-6  # cosines that differ by less are tied


@checked_scalars
@silence_logs()
def senses(
    word: str,
    sentences: Mapping[str, str | Sequence[str]] | None = None,
    *,
    model: Model | Loadable | None = None,
    raw: bool = False,
    **inputs: Unpack[Source],
) -> SensesResult:
    """Measure in which layers a model separates the senses of a word.

    Each occurrence is classified: is its vector nearest, by cosine, to the centroid of its
    sense, computed without its sentence? This is done for the input of each layer and for the
    output of the model. Baselines are 2,000 shuffles of the senses, and the mean static embedding
    of the *other* words, which needs no attention.

    Parameters
    ----------
    word : str
        The word to study, in any case. In sentences without the word itself, its regular English
        inflections count.
    sentences : mapping of str to str or sequence of str, optional
        At least two senses with two sentences each. By default bundled sentences, for bank, check,
        apple, bat, crane, spring, mouse, seal, light and pitcher.
    model : Model, str, path or module, optional
        From `load`, or what `load` takes. By default the bundled all-MiniLM-L6-v2.
    raw : bool, default False
        Leave the vectors as they are. By default each layer is centered, because the vectors of a
        model lie in a narrow cone (Ethayarajh 2019, arXiv:1909.00512).
    **inputs
        `special_tokens`, as in `attend`. Sentences are whole, and strings.

    Returns
    -------
    SensesResult
        For each layer the accuracy with its 95% interval, the accuracy of shuffled senses, recalls
        and silhouette; the best layer, which is chosen on the same sentences; how much nearer each
        occurrence is to its own sense; and the words that each occurrence attends to.

    Raises
    ------
    InputError
        There are no sentences, fewer than two senses, or fewer than two sentences for a sense that
        the model tells from the others; or a sentence does not have the word, or is longer than
        the model can read.
    ModelError
        The model does not read one text, or its attention cannot be captured.

    Examples
    --------
    >>> import attnviz
    >>> sentences = {
    ...     "river": ["the bank of the river", "a muddy bank by the water", "fish near the bank"],
    ...     "money": ["the bank lent money", "a loan from the bank", "the bank paid interest"],
    ... }
    >>> result = attnviz.senses("bank", sentences)
    >>> print(result.headline)
    6 sentences are too few to show that “bank” splits into river and money
    >>> [round(score.accuracy, 2) for score in result.scores]
    [0.17, 1.0, 0.83, 0.83, 0.83, 0.83, 1.0]
    """
    checked = read_sentences(word, sentences)
    word = word.strip()
    for name in ("pair", "truncate", "inputs"):
        if inputs.get(name):
            raise InputError(f"senses reads whole sentences, each by itself. Leave {name} out.")
    model, *_ = parse_source("senses", model, checked[0].text, inputs)
    read = _different(model, checked)
    repeated, checked = len(checked) - len(read), list(read.values())
    names = tuple(dict.fromkeys(sentence.sense for sentence in checked))
    longest = encode(model.checkpoint, [read[max(read, key=len)].text])
    causal = is_causal(model, longest.inputs)
    words = _collect_vectors(model, word, checked, causal=causal)
    labels = [names.index(checked[n].sense) for n in words.sentence]
    alike = _alike(words, list(read), labels) if causal else ()
    kept = [n for n in range(len(labels)) if n not in alike]
    for number, sense in enumerate(names):
        if len({words.sentence[n] for n in kept if labels[n] == number}) < 2:
            raise InputError(
                f"{model.name} tells fewer than two sentences of {sense!r} from the others"
                f"{' up to the word, and reads no further' if causal else ''}, but each is "
                "classified by the others. Add some."
            )
    design = Design.of([labels[n] for n in kept], [words.sentence[n] for n in kept])
    vectors = words.vectors[:, kept]
    kinds = [*vectors, words.context[kept]]  # the states, and the other words alone
    outcomes = [classify(kind, design, centered=not raw) for kind in kinds]
    right = torch.full((len(kinds), len(labels)), math.nan, device="cpu")
    right[:, kept] = torch.stack([outcome.right for outcome in outcomes])
    *scores, context = map(score, kinds, itertools.repeat(design), outcomes)
    best = max(range(len(scores)), key=lambda i: (round(scores[i].accuracy, 9), -i))
    occurrences, record = _occurrences(words, checked, max(best - 1, 0))
    shuffled = torch.stack([outcome.shuffled for outcome in outcomes[:-1]]).amax(0)
    center = 0 if raw else vectors.mean(1, keepdim=True)
    return SensesResult(
        word=word,
        senses=names,
        occurrences=tuple(occurrences),
        vectors=words.vectors - center,
        scores=tuple(scores),
        context=context,
        right=right[:-1],
        best=best,
        p_best=p_value(scores[best].accuracy, shuffled),
        shuffles=len(shuffled),
        attention_layer=record.layer,
        raw=raw,
        notes=tuple(_notes(word, occurrences, repeated, alike, causal=causal, raw=raw)),
        agreement=words.agreement,
        provenance=replace(words.results[0].provenance, text=None),
        context_right=right[-1],
        alike=alike,
    )


@dataclass(frozen=True, eq=False)
class _OccurrenceVectors:
    """The vectors of the N occurrences of the word."""

    vectors: Tensor  # means over pieces, by state, (L + 1, N, d_model), float64
    context: Tensor  # mean static embeddings of the other words that can be read, (N, d_model)
    sentence: tuple[int, ...]  # the index of the sentence of each occurrence
    pieces: tuple[tuple[int, ...], ...]  # the token positions of each occurrence
    results: tuple[AttentionResult, ...]  # the attention of each sentence
    agreement: AgreementReport  # of all sentences, and of the vectors


def _collect_vectors(
    model: Model, word: str, sentences: Sequence[Sentence], *, causal: bool
) -> _OccurrenceVectors:
    pieces = [word_pieces(model, sentence) for sentence in sentences]
    vectors, as_loaded, context, results = [], [], [], []
    for start in range(0, len(sentences), _SENTENCES):
        texts = [sentence.text for sentence in sentences[start : start + _SENTENCES]]
        results += model.attend(texts, mode="full")
        batch = encode(model.checkpoint, texts)
        states, loaded = (
            torch.stack(hidden_states(model.module, batch.inputs, as_loaded=flag)).double().cpu()
            for flag in (False, True)
        )
        with torch.no_grad():
            embeddings = model.module.get_input_embeddings()(batch.inputs["input_ids"])
        static = embeddings.double().cpu()
        for n, axis in enumerate(batch.axes["text"]):
            for rows in pieces[start + n]:
                expect_known(word, axis, rows)
                vectors.append(states[:, n, list(rows)].mean(1))
                as_loaded.append(loaded[:, n, list(rows)].mean(1))
                special = axis.special[: rows[-1] if causal else None]
                others = [i for i, flag in enumerate(special) if not flag and i not in rows]
                context.append(static[n][others].mean(0) if others else 0 * static[n][0])
    stacked = torch.stack(vectors, dim=1)
    if not stacked.isfinite().all():
        raise ModelError(
            f"Some vectors of {model.name} are nan or infinite. Choose another --dtype (dtype=), "
            "or another model."
        )
    report = AgreementReport.joined(result.agreement for result in results)
    return _OccurrenceVectors(
        vectors=stacked,
        agreement=check_hidden_states(report, stacked, torch.stack(as_loaded, dim=1)),
        context=torch.stack(context),
        sentence=tuple(n for n, occurrences in enumerate(pieces) for _ in occurrences),
        pieces=tuple(rows for occurrences in pieces for rows in occurrences),
        results=tuple(results),
    )


def _different(model: Model, sentences: Sequence[Sentence]) -> dict[tuple[int, ...], Sentence]:
    """Return the sentences of different tokens, by these tokens."""
    expect_one_text(model.checkpoint)
    different: dict[tuple[int, ...], Sentence] = {}
    for sentence in sentences:
        try:
            ids = encode(model.checkpoint, [sentence.text]).inputs["input_ids"]
        except InputError as error:
            raise InputError(f"In {_described(sentence)}: {error}") from None
        first = different.setdefault(tuple(ids[0].tolist()), sentence)
        if first.sense != sentence.sense:
            raise InputError(
                f"{model.name} reads the same tokens in {_described(first)} and in "
                f"{_described(sentence)}. Remove one."
            )
    return different


def _alike(
    words: _OccurrenceVectors, ids: Sequence[tuple[int, ...]], labels: Sequence[int]
) -> tuple[int, ...]:
    """Return the occurrences whose vector a causal model also gives to another.

    They end the same tokens. The first counts if all are of one sense; otherwise none does.
    """
    groups = defaultdict(list)
    for n, (sentence, rows) in enumerate(zip(words.sentence, words.pieces, strict=True)):
        groups[ids[sentence][: rows[-1] + 1]].append(n)
    alike = (group[len({labels[n] for n in group}) == 1 :] for group in groups.values())
    return tuple(sorted(itertools.chain.from_iterable(alike)))


def _described(sentence: Sentence) -> str:
    return f"{sentence.text[:40]!r}… ({sentence.sense})"


def word_pieces(model: Model, sentence: Sentence) -> list[tuple[int, ...]]:
    """Return the token positions of each occurrence of the word."""
    spans = token_spans(model.checkpoint, sentence.text)
    pieces = [pieces_in(spans, place) for place in sentence.places]
    if not all(pieces):
        raise InputError(
            f"The tokenizer of {model.name} leaves the word out of "
            f"{_described(sentence)}. Remove the sentence."
        )
    return pieces


def _occurrences(
    words: _OccurrenceVectors, sentences: Sequence[Sentence], layer: int
) -> tuple[list[Occurrence], AttentionRecord]:
    """Return occurrences, with words attended to in a layer or the last before, and a record."""
    spans = [span for sentence in sentences for span in sentence.places]
    listed = []
    for n, (start, end), rows in zip(words.sentence, spans, words.pieces, strict=True):
        records = words.results[n].stack().records
        record = next((r for r in reversed(records) if r.layer <= layer), records[0])
        text, sense = sentences[n].text, sentences[n].sense
        pieces = tuple(record.query_axis.labels[i] for i in rows)
        listed.append(Occurrence(text, sense, start, end, pieces, *_attended(record, rows)))
    return listed, record


def _attended(
    record: AttentionRecord, rows: Sequence[int]
) -> tuple[tuple[tuple[str, float], ...], str]:
    """Return the other words with their share of the attention of some rows, and the strongest.

    Weights are averaged over heads and rows. Special tokens, the word itself and punctuation are
    left out, and the rest is normalized to sum to 1.
    """
    weights = record.weights()[:, list(rows)].double().mean((0, 1)).cpu()
    groups = token_groups(record.key_axis)
    content = content_words(groups).tolist()
    words = zip(groups.shown, groups.positions, groups.special, content, strict=True)
    shares = [
        (label, float(weights[list(positions)].sum()), is_content)
        for label, positions, special, is_content in words
        if not special and not set(positions) & set(rows) and any(map(str.isalnum, label))
    ]
    total = sum(weight for _, weight, _ in shares) or 1.0
    shares.sort(key=lambda share: -share[1])
    strongest = next((label for label, weight, content in shares if content and weight > 0), "")
    return tuple((label, weight / total) for label, weight, _ in shares), strongest


def _notes(
    word: str, listed: list[Occurrence], copies: int, alike: Sequence[int], causal: bool, raw: bool
) -> list[str]:
    notes, total = [], len(listed)
    if copies:
        notes.append(f"sentences left out because the model reads the tokens of another: {copies}")
    written = Counter(occurrence.word.casefold() for occurrence in listed)
    inflected = [f"“{form}” ({n})" for form, n in written.items() if form != word.casefold()]
    if inflected:
        notes.append(f"also counted as “{word}”: {', '.join(inflected)}")
    if split := sum(len(occurrence.pieces) > 1 for occurrence in listed):
        notes.append(f"mean over the pieces of the word where it is split ({split} of {total})")
    notes.append("the best layer is chosen on the same sentences, the output is not")
    notes.append("vectors not centered" if raw else "vectors centered on the mean of all others")
    counts = Counter(one.sense for n, one in enumerate(listed) if n not in alike)
    if min(counts.values()) < max(counts.values()):
        most, count = counts.most_common(1)[0]
        notes.append(f"“{most}” makes up {count / counts.total():.0%} of the occurrences")
    if causal:
        reads = f"{LEFT_TO_RIGHT}: the word attends only to words before it"
        notes.append(f"{reads}, and the other words alone are these")
    if alike:
        ends = ((listed[n].sentence, listed[n].end) for n in alike)
        starts = dict.fromkeys(f"“{literal(sentence[:end], 40)} …”" for sentence, end in ends)
        notes.append(
            "occurrences in no score, because they are alike up to the word and the model reads no "
            f"further: {len(alike)} of {total} ({', '.join(starts)})"
        )
    return notes


@dataclass(frozen=True, eq=False)
class Design:
    """The sense and the sentence of each occurrence, with permutations and weights for refits."""

    senses: Tensor  # from 0 to k - 1, (N,)
    sentences: Tensor  # from 0 to S - 1, (N,)
    shuffled: Tensor  # the senses, permuted between whole sentences, (P, N)
    weights: Tensor  # of the sentence of each occurrence, random with mean 1, (P, N)

    @classmethod
    def of(cls, senses: list[int], sentences: list[int], *, shuffles: int = SHUFFLES) -> Design:
        """Return the design with its random numbers, which are the same every time."""
        listed = [*dict.fromkeys(sentences)]
        numbered = [listed.index(n) for n in sentences]
        labels, places = (torch.tensor(numbers, device="cpu") for numbers in (senses, numbered))
        of_sentence = torch.zeros(int(places.max()) + 1, dtype=torch.long, device="cpu")
        of_sentence[places] = labels
        generator = torch.Generator().manual_seed(0)
        order = torch.rand(shuffles, len(of_sentence), generator=generator, device="cpu").argsort(1)
        weights = torch.empty(order.shape, dtype=torch.double, device="cpu")
        weights.exponential_(generator=generator)
        return cls(labels, places, of_sentence[order][:, places], weights[:, places])


@dataclass(frozen=True, eq=False)
class Outcome:
    """How well one kind of vector is classified."""

    right: Tensor  # 1 for the own sense, a fraction for ties, (N,)
    shuffled: Tensor  # the accuracy of each permutation of the senses, (P,)
    refitted: Tensor  # the weighted accuracy with each weighting of the sentences, (P,)


def nearest(
    vectors: Tensor,
    labels: Tensor,
    sentences: Tensor,
    *,
    weights: Tensor | None = None,
    centered: bool = True,
) -> Tensor:
    """Return whether the nearest centroid of each occurrence is that of its sense, by cosine.

    The centroids, and the mean on which vectors are centered, are computed without its sentence. If
    vectors do not depend on the sense, the accuracy is therefore that of guessing.

    labels : assignments of senses, (P, N). In each, every sense has at least two sentences.
    sentences : the sentence of each occurrence, (N,). weights : of each occurrence in the centroids
    and in the mean, (P, N); by default 1. centered : whether to center the vectors, which lie in a
    narrow cone (Ethayarajh 2019, arXiv:1909.00512).

    Returns (P, N): 1 for the own sense, 0 for another, 1 / t if t senses tie.
    """
    k = int(labels.max()) + 1
    same = (sentences[:, None] == sentences).double()
    gram = vectors.double() @ vectors.double().T
    weights = torch.ones_like(labels, dtype=torch.double) if weights is None else weights
    size = max(1, _MEMBERSHIPS // (len(vectors) * k))
    parts = zip(torch.split(labels, size), torch.split(weights, size), strict=True)
    return torch.cat([_classify(gram, *part, same, k, centered=centered) for part in parts])


def _classify(
    gram: Tensor, labels: Tensor, weights: Tensor, same: Tensor, k: int, *, centered: bool
) -> Tensor:
    """Classify as `nearest`, (P, N). Every sum leaves out the sentence of the classified one."""
    member = torch.nn.functional.one_hot(labels, k).double() * weights.unsqueeze(-1)  # (P, N, k)
    member = torch.cat([member, weights.unsqueeze(-1)], -1)  # the last column is of all senses
    whole, own = gram @ member, (gram * same) @ member
    count = member.sum(1, keepdim=True) - same @ member
    dot = (whole - own) / count  # x · centroid, and x · mean

    def product(a: slice, b: slice) -> Tensor:
        """Return the product of the sums of columns a with those of columns b, (P, N, columns)."""
        (m, w, o), (n, v, _) = ((member[..., at], whole[..., at], own[..., at]) for at in (a, b))
        return (n * w).sum(1, keepdim=True) - same @ (n * w) - same @ (m * v) + same @ (n * o)

    every, last = slice(None), slice(k, k + 1)
    square = product(every, every) / count**2  # |centroid|², |mean|²
    length = gram.diagonal()[:, None].expand(len(member), -1, 1)  # |x|²
    if centered:
        cross = product(every, last) / (count * count[..., last])  # centroid · mean, |mean|²
        on_mean, middle = dot[..., last], square[..., last]
        dot = dot - on_mean - cross + middle
        square = square - 2 * cross + middle
        length = length - 2 * on_mean + middle
    dot, square = dot[..., :k], square[..., :k]
    smallest = 1e-12 * gram.diagonal().mean().clamp(min=1e-300)
    lengths = (square.clamp(min=0) * length.clamp(min=0)).sqrt()
    defined = (square > smallest) & (length > smallest)  # a vector at the mean has no direction
    cosine = torch.where(defined, dot / lengths.clamp(min=1e-300), 0.0)
    tied = cosine >= cosine.amax(-1, keepdim=True) - _TIE
    hit = tied.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return hit / tied.sum(-1)


def classify(vectors: Tensor, design: Design, *, centered: bool = True) -> Outcome:
    """Classify the occurrences: as they are, with shuffled senses, and with weighted sentences."""

    def hits(labels: Tensor, weights: Tensor | None = None) -> Tensor:
        return nearest(vectors, labels, design.sentences, weights=weights, centered=centered)

    weights = design.weights
    refitted = hits(design.senses.expand(len(weights), -1), weights)
    return Outcome(
        right=hits(design.senses[None])[0],
        shuffled=hits(design.shuffled).mean(1),
        refitted=(refitted * weights).sum(1) / weights.sum(1),
    )


def score(vectors: Tensor, design: Design, outcome: Outcome) -> SenseScore:
    """Return the score of a kind of vector; silhouettes by cosine distance (Rousseeuw 1987)."""
    from sklearn.metrics import silhouette_score

    centered = (vectors - vectors.mean(0)).numpy()
    accuracy, count = outcome.right.mean().item(), int(design.senses.max()) + 1
    low, high = interval(accuracy, outcome.refitted, int(design.sentences.max()) + 1)
    return SenseScore(
        accuracy=accuracy,
        low=low,
        high=high,
        p_value=p_value(accuracy, outcome.shuffled),
        shuffled=outcome.shuffled.quantile(0.95).item(),
        recalls=tuple(outcome.right[design.senses == n].mean().item() for n in range(count)),
        silhouette=float(silhouette_score(centered, design.senses.numpy(), metric="cosine")),
    )


def p_value(accuracy: float, shuffled: Tensor) -> float:
    """Return the p-value of a permutation test; never 0 (Phipson & Smyth 2010)."""
    return (1 + int((shuffled >= accuracy - 1e-9).sum())) / (1 + len(shuffled))


def interval(accuracy: float, refitted: Tensor, sentences: int) -> tuple[float, float]:
    """Return the 95% interval of an accuracy: Wilson's score interval (1927), wider by the refits.

    Sentences are not classified independently, because they share the centroids. A Bayesian
    bootstrap (Rubin 1981) weights the sentences at random and classifies with new centroids. Its
    variance, relative to that of independent sentences, is 1 plus the part that comes from the
    centroids. That part counts half, since exponential weights are worth half of the sentences
    (Kish 1965) and so double the noise of a centroid. The number of sentences is divided by the
    result, but at most by 2: vectors without any sense have 1.6 to 1.9 times the variance of
    independent sentences.
    """
    rounded = (sentences * accuracy + 1) / (sentences + 2)  # not 0 or 1, which have no variance
    independent = rounded * (1 - rounded) / (sentences + 1)
    from_centroids = float(refitted.var()) / independent - 1
    n = sentences / min(max(1 + from_centroids / 2, 1.0), 2.0)
    square = _NORMAL**2 / n
    middle = (accuracy + square / 2) / (1 + square)
    half = (accuracy * (1 - accuracy) * square + square**2 / 4) ** 0.5 / (1 + square)
    return max(0.0, min(middle - half, accuracy)), min(1.0, max(middle + half, accuracy))
