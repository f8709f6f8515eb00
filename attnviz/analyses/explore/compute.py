"""Explore the heads of a model: a survey, with examples, what each writes, and effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, Unpack

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from attnviz.analyses.explore.result import (
    DECILES,
    ExploreResult,
    HeadAxis,
    HeadExample,
    ShownMedium,
    WrittenTokens,
)
from attnviz.analyses.survey.compute import survey_corpus
from attnviz.analyses.survey.corpus import (
    Corpus,
    CorpusText,
    MediaCorpus,
    TextCorpus,
    check_corpus,
    inputs_of,
    parse_corpus,
)
from attnviz.analyses.survey.measure import Attention
from attnviz.analyses.survey.result import NOUNS
from attnviz.attribution.interventions import measure_without
from attnviz.attribution.methods import attempt
from attnviz.attribution.prediction import NextTokens, residual_stream
from attnviz.attribution.reference import is_causal, read
from attnviz.attribution.target import Target, base_of, unembedding_of
from attnviz.attribution.tracing import tracing
from attnviz.errors import InputError, ModelError
from attnviz.heads import OWN_ROLES, RESTING_ROLES, Positions
from attnviz.inputs import encode
from attnviz.inputs.text import tokenizer_of
from attnviz.inputs.tokens import decode
from attnviz.io import data_uri
from attnviz.pipeline.attend import Loadable, Model, Source
from attnviz.results import AttentionRecord, AttentionResult, Axis
from attnviz.results.arguments import checked_scalars
from attnviz.results.projection import parts_of_output
from attnviz.results.text import literal
from attnviz.runtime import part, say
from attnviz.runtime.libraries import silence_logs

STRONGEST = 8  # examples of a head, each of another text and with other tokens
_SAMPLE = 50  # texts of a head, drawn at random, from which deciles are taken
_SIDES = (224, 160, 112, 80, 56)  # pixels of a picture in the page


@checked_scalars
@torch.inference_mode(False)
@silence_logs()
def explore(
    texts: Corpus | None = None,
    *,
    sample: bool = False,
    model: Model | Loadable | None = None,
    column: str = "text",
    skip_bad: bool = False,
    seed: int = 0,
    **inputs: Unpack[Source],
) -> ExploreResult:
    """Explore every head of a model on a corpus: what it attends to and writes.

    `result.page().save("heads.html")` writes one page that works offline. The corpus is surveyed,
    and read once more for examples. Memory does not grow with it.

    Parameters
    ----------
    texts : str, Path or iterable
        A file of texts: .txt (one per line), .jsonl, .csv, .tsv or .parquet. For a model that reads
        images or sounds: a folder of them, a pattern of file names, or a .txt file with their
        names.

        Or a list of texts, images or sounds.
    sample : bool
        Read the sample corpus in place of texts: 200 short sentences, written for attnviz.
    model : Model or what `load` takes, optional
        A model that reads texts, images or sounds; by default the bundled one.
    column, skip_bad
        As in `survey`.
    seed : int
        Random seed of the survey, and of the texts from which typical examples are drawn.
    **inputs
        `truncate`, `pair`, `special_tokens`, `image` or `audio`, as in `survey`.

    Returns
    -------
    ExploreResult
        The survey, and for each head its strongest and its typical examples, the tokens whose
        logits it raises and lowers, and the log-probability that the next tokens lose without it.
        The last two need a model of texts that predicts next tokens.

    Raises
    ------
    InputError
        An empty corpus, or one that cannot be read.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog", "a man read the book"]
    >>> result = attnviz.explore(texts)
    >>> page = result.page()  # page.save("heads.html")
    """
    given = parse_corpus("explore", texts, inputs, seed, sample)
    source = given.source
    if isinstance(source, str) and source == "-":
        raise InputError("The corpus is read twice, so it has to be a file. Save it first.")
    check_corpus(source, column, media=True)
    if isinstance(source, Iterator):  # it is read again
        given = replace(given, source=list(source))
    corpus = given.read_by(model, media=True, skip_bad=skip_bad, column=column)
    model, kind = corpus.model, corpus.kind
    with part(0, 3, "survey"):
        surveyed, heads, verified, results = survey_corpus(corpus, seed)
    examples = Examples(surveyed.roles, seed)
    ids: dict[int, tuple[int, ...]] = {}
    done, count = 0, corpus.rows
    with part(1, 3, "examples"):
        for texts_of_part in corpus.parts():
            for batch in heads.batched(texts_of_part):
                heads.run(batch, partial(examples.add, [one.number for one in batch]))
                done += len(batch)
                say(f"{done:,} {NOUNS[kind]}", count and min(1, done / count))
            known = ids | {one.number: one.ids for one in texts_of_part}
            ids = {number: known[number] for number in known.keys() & examples.texts}
    strongest, deciles = examples.strongest, examples.deciles
    shown = sorted({one.text for several in (*strongest, *deciles) for one in several})
    with part(2, 3, "each head"):
        of_media: dict[str, Any] = {}
        if isinstance(corpus, TextCorpus):
            written, effects, notes = _of_predictions(model, verified, results)
            tokens = {str(number): _decoded(model, ids[number]) for number in shown}
        else:
            written, effects = (), None
            notes = (
                "what heads write, and what is lost without them, is shown for models of texts",
            )
            media, tokens = _shown_media(corpus, shown)
            axes, reads = _axes(heads.records)
            of_media = {"media": media, "axes": axes, "reads": reads}
    return ExploreResult(
        survey=surveyed,
        tokens=tokens,
        examples=strongest,
        deciles=deciles,
        written=written,
        effects=effects,
        notes=notes,
        agreement=replace(surveyed.agreement, digest=None),
        provenance=surveyed.provenance,
        **of_media,
    )


def _decoded(model: Model, ids: Sequence[int]) -> tuple[str, ...]:
    """Return tokens with their blanks."""
    tokenizer = tokenizer_of(model.checkpoint)
    return tuple(decode(tokenizer, [token]) for token in ids)


def _of_predictions(
    model: Model, texts: Sequence[CorpusText], sample: Sequence[AttentionResult]
) -> tuple[tuple[WrittenTokens, ...], Tensor | None, tuple[str, ...]]:
    """Return what every head writes, what is lost without it, and notes on what is left out."""
    if unembedding_of(model.module) is None:
        note = f"{model.name} predicts no tokens, so nothing shows what its heads write"
        return (), None, (note,)
    with tracing(model):
        written, no_words = attempt(lambda: _written(model, texts, sample))
        effects, no_effects = attempt(lambda: _effects(model, texts))
    reasons = {"what heads write is": no_words, "the effects of heads are": no_effects}
    notes = tuple(f"{what} left out: {why}" for what, why in reasons.items() if why)
    return written or (), effects, notes


def _written(
    model: Model, texts: Sequence[CorpusText], sample: Sequence[AttentionResult]
) -> tuple[WrittenTokens, ...]:
    """Return the tokens whose logits each head raises and lowers most.

    In each text, at the query where the head attends most to another token, its output is taken
    away from the last residual stream (direct logit attribution). The final norm and the
    unembedding are the model's own.
    """
    streams = []
    for text in texts:
        inputs = encode(model.checkpoint, inputs_of([text]), truncate=True).inputs
        streams.append(residual_stream(model, base_of(model.module), inputs))
    tokenizer = tokenizer_of(model.checkpoint)
    written = []
    for records in zip(*(one.records for one in sample), strict=True):
        changes = torch.stack([*map(_changed_logits, records, streams)])  # (texts, H, V)
        mean, raised = changes.mean(0), (changes > 0).sum(0)
        for of_head, counts in zip(mean, raised, strict=True):
            lists = []
            for sign in (1, -1):
                values, ids = (sign * of_head).topk(6)
                agreeing = counts[ids] if sign > 0 else len(texts) - counts[ids]
                tokens = [str(tokenizer.decode([token])) for token in ids.tolist()]
                changed = (sign * values).tolist(), agreeing.tolist()
                lists.append(tuple(zip(tokens, *changed, strict=True)))
            written.append(WrittenTokens(*lists))
    return tuple(written)


def _changed_logits(
    record: AttentionRecord, stream: tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]
) -> Tensor:
    """Return what each head adds to the logits where it attends most, unless it rests, (H, V)."""
    if record.projection is None or record.projection.output is None:
        raise ModelError("the output projection of its attention is not known")
    ordinary = torch.tensor([not special for special in record.query_axis.special], device="cpu")
    weights = record.weights().cpu()
    weights = weights.masked_fill(torch.eye(len(ordinary), dtype=torch.bool, device="cpu"), 0.0)
    keys = ordinary.clone()
    keys[0] &= bool(weights.triu(1).any())
    strength = (weights * keys).amax(-1).masked_fill(~ordinary, -1.0)
    rows = strength.argmax(-1).tolist()
    heads = record.mix(record.weights(dtype=torch.float32))
    parts_of_heads = torch.cat(list(parts_of_output(record, heads)))  # (H, T, d)
    added = parts_of_heads[torch.arange(len(rows), device=parts_of_heads.device), rows]
    states, logits, read_states = stream
    last = states[-1, rows]
    changes = logits[rows] - read_states(last - added.to(last))
    return (changes - changes.mean(-1, keepdim=True)).float().cpu()


def _effects(model: Model, texts: Sequence[CorpusText]) -> Tensor:
    """Return how much log-probability next tokens lose if a head has its mean output, (K,)."""
    sites: list[Target] = []
    for text in texts:
        reading, _ = attempt(partial(read, model, inputs_of([text])))
        if reading is None or reading.inputs["input_ids"].shape[1] < 2:
            continue  # too long to be read whole, or without a next token
        ids = reading.inputs["input_ids"][0].tolist()
        if not sites and not is_causal(model, reading.inputs):
            raise ModelError("it does not predict next tokens")
        readout = NextTokens(model.module, tuple(range(len(ids) - 1)), tuple(ids[1:]))
        sites.append(reading.target(model, readout))
    if not sites:
        raise ModelError("no text of the sample can be read whole and has a next token")
    before, after = measure_without(sites)
    return (before - after)[..., 0].mean(0)


# --- examples, in memory that does not grow


# With priorities, the largest first, and with what no two examples share.
_Kept: TypeAlias = list[tuple[float, HeadExample, tuple[int, int]]]


class Examples:
    """Keeps examples of heads with these roles while texts are read."""

    def __init__(self, roles: Sequence[str], seed: int) -> None:
        self._strongest: list[_Kept] = [[] for _ in roles]
        self._sample: list[_Kept] = [[] for _ in roles]
        self._reads_itself = torch.tensor([role in OWN_ROLES for role in roles], device="cpu")
        self._rests = torch.tensor([role in RESTING_ROLES for role in roles], device="cpu")
        self._seed, self._next = seed, 0  # the first head of the next attention

    def add(
        self,
        numbers: Sequence[int],
        attention: Attention,
        tokens: Positions,
        keys_of: Positions | None,
    ) -> None:
        """Add the weights of an attention in N texts, (N, H, T, T), one attention after the other.

        numbers : of the texts in the corpus. tokens : of the texts. keys_of : the keys of a
        cross-attention, whose queries are the tokens.
        """
        weights = attention.weights(slice(None))
        heads = slice(self._next, self._next + weights.shape[1])
        self._next = heads.stop % len(self._sample)
        key_tokens = keys_of or tokens
        itself = torch.eye(*weights.shape[-2:], dtype=torch.bool, device=weights.device)
        itself = itself & (keys_of is None)
        shown = (key_tokens.counted[:, None] & ~itself)[:, None]
        flags = self._reads_itself, self._rests
        reads_itself, rests = (one[heads].to(weights.device)[:, None, None] for one in flags)
        if keys_of is None and not weights.triu(1).any():  # the first token of a causal model
            shown = shown & ((torch.arange(shown.shape[-1], device=shown.device) > 0) | rests)
        shown = shown | (reads_itself & itself) | (rests & key_tokens.special[:, None, None])
        strengths, keys = weights.masked_fill(~shown, 0.0).max(-1)
        strengths = strengths.masked_fill(~tokens.counted[:, None], -1.0).cpu()
        strongest = strengths.argmax(-1)
        lengths = key_tokens.real.sum(-1).tolist()
        on_cpu, keys = weights.cpu(), keys.cpu()
        ids, key_ids = tokens.ids.tolist(), key_tokens.ids.tolist()  # 0 where there are no tokens
        for n, number in enumerate(numbers):
            rows = (strengths[n] > 0).any(0).nonzero()[:, 0].tolist()  # with another token to read
            if not rows:
                continue
            generator = np.random.default_rng([self._seed, number])
            priorities = generator.random(len(self._sample))
            drawn = generator.choice(rows, len(self._sample))
            for head, k in enumerate(range(heads.start, heads.stop)):
                best = int(strongest[n, head])
                strength = float(strengths[n, head, best])
                pair = ids[n][best], key_ids[n][keys[n, head, best]]
                own = -1, number
                for kept, most, priority, row, shared in (
                    (self._strongest[k], STRONGEST, strength, best, pair if any(pair) else own),
                    (self._sample[k], _SAMPLE, float(priorities[k]), int(drawn[k]), own),
                ):
                    alike = next((one for one in kept if one[2] == shared), None)
                    weakest = alike or (kept[-1] if len(kept) == most else None)
                    if weakest is not None and priority <= weakest[0]:
                        continue
                    example = HeadExample(
                        text=number,
                        row=row,
                        key=int(keys[n, head, row]),
                        weight=float(strengths[n, head, row]),
                        weights=tuple(on_cpu[n, head, row, : lengths[n]].tolist()),
                    )
                    if weakest is not None:
                        kept.remove(weakest)
                    kept.append((priority, example, shared))
                    kept.sort(key=lambda one: -one[0])

    @property
    def texts(self) -> set[int]:
        """The numbers of all texts that are kept, or may come to be shown."""
        return {one.text for kept in (*self._strongest, *self._sample) for _, one, _ in kept}

    @property
    def strongest(self) -> tuple[tuple[HeadExample, ...], ...]:
        """The strongest examples of each head, the strongest first."""
        return tuple(tuple(one for _, one, _ in kept) for kept in self._strongest)

    @property
    def deciles(self) -> tuple[tuple[HeadExample, ...], ...]:
        """Examples of each head at the 90, 80, …, 10 % quantiles of a random sample of queries."""
        of_heads = []
        for kept in self._sample:
            ordered = sorted((one for _, one, _ in kept), key=lambda one: one.weight)
            places = np.round(np.array(DECILES) / 100 * (len(ordered) - 1)).astype(int)
            of_heads.append(tuple(ordered[place] for place in places if ordered))
        return tuple(of_heads)


# --- images and sounds


def _axes(
    records: Sequence[AttentionRecord],
) -> tuple[tuple[HeadAxis, ...], tuple[tuple[int, int], ...]]:
    """Return the different axes, and which the queries and the keys of each head have."""
    axes: dict[HeadAxis, int] = {}
    reads: list[tuple[int, int]] = []
    for record in records:
        queries, keys = map(_shown_axis, (record.query_axis, record.key_axis))
        read = axes.setdefault(queries, len(axes)), axes.setdefault(keys, len(axes))
        reads += [read] * record.heads
    return tuple(axes), tuple(reads)


def _shown_axis(axis: Axis) -> HeadAxis:
    if axis.patches is not None:
        both = zip(axis.labels, axis.patches, strict=True)
        specials = tuple(label if patch is None else "" for label, patch in both)
        return HeadAxis("patches", patches=axis.patches, specials=specials)
    if axis.seconds is not None:
        return HeadAxis("frames", step=float(axis.seconds[1] or 0) if len(axis) > 1 else 1.0)
    return HeadAxis("tokens")


def _shown_media(
    corpus: MediaCorpus, numbers: Sequence[int]
) -> tuple[dict[str, ShownMedium], dict[str, tuple[str, ...]]]:
    """Return the media with these numbers for the page, and the tokens of their transcripts."""
    media: dict[str, ShownMedium] = {}
    tokens: dict[str, tuple[str, ...]] = {}
    pictures: dict[str, Image.Image] = {}
    for medium in corpus.some(numbers):
        number, wave, name = str(medium.number), medium.batch.waveform, literal(medium.name, 80)
        if wave is not None:
            parts = np.array_split(wave.extremes.numpy(), min(400, len(wave.extremes)))
            outline = tuple((round(float(p.min()), 3), round(float(p.max()), 3)) for p in parts)
            media[number] = ShownMedium(name, seconds=wave.seconds, outline=outline)
            tokens[number] = _decoded(corpus.model, medium.ids) if medium.ids else ()
        elif medium.batch.image is not None:
            pictures[number] = Image.fromarray(medium.batch.image.cpu().numpy())
            pictures[number].thumbnail((_SIDES[0], _SIDES[0]))
            media[number] = ShownMedium(name)
    encoded: dict[str, str] = {}
    for side in _SIDES:
        encoded = {
            number: data_uri(picture, "jpeg", side, quality=82, optimize=True)
            for number, picture in pictures.items()
        }
        if sum(map(len, encoded.values())) <= 4_000_000:  # bytes
            break
    media = {number: replace(one, image=encoded.get(number, "")) for number, one in media.items()}
    return media, tokens
