"""Compare a survey of many sentences with a simple loop: one sentence at a time, eager, full maps.

Both measure the same statistics of every head on each sentence, on the same sentence with shuffled
tokens, and on uniform weights. The largest difference between the two is printed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import attnviz
from attnviz.analyses.survey.corpus import CorpusText, Encoding, TextCorpus
from attnviz.analyses.survey.measure import HeadStatistics, shuffle
from attnviz.heads import Positions, largest
from attnviz.results import Axis
from benchmarks.measuring import alternate, console, peak, show, show_setting

_LOOP, _TABLE, _SURVEY = "eager, one sentence at a time", "attnviz, table alone", "attnviz.survey"
_PATIENCE = 1800.0  # seconds


def measure(corpus: Path, sentences: int, rounds: int) -> None:
    """Print the time of each variant, and how the memory of a survey grows with its corpus."""
    model = attnviz.load()
    texts = _texts(model, corpus, sentences)
    reads = list(TextCorpus(model, texts, truncate=True))
    heads = HeadStatistics(model.checkpoint, model.attend(texts[0]).records)
    _print_difference(model, heads, reads[:50])
    variants = {
        _LOOP: lambda: _loop(model, reads),
        _TABLE: lambda: heads.measure(reads),
        _SURVEY: lambda: attnviz.survey(texts, model=model, truncate=True),
    }
    times = alternate(variants, rounds, time.perf_counter)
    tokens = sum(len(text.encoding["input_ids"]) for text in reads) / len(reads)
    threads = torch.get_num_threads()
    title = f"{len(texts):,} sentences of {tokens:.0f} tokens, {threads} threads: seconds"
    show(title, times, against=_LOOP)
    grown = {
        count: peak("survey", _SURVEY, str(corpus), str(count), seconds=_PATIENCE)
        for count in (sentences, 10 * sentences)
    }
    one, ten = grown.values()
    console.print(
        f"memory over the loaded model: {one:,.0f} MB for {sentences:,} sentences, {ten:,.0f} MB "
        f"for ten times as many: {ten / one:.2f} ×\n"
    )
    show_setting("attnviz", "torch", "transformers", "pyarrow")


def memory(variant: str, corpus: str, sentences: str) -> float:
    """Return the memory growth of this process during a survey, over the loaded model, in MB."""
    from benchmarks.measuring import grown

    model = attnviz.load()
    model.attend("one two")
    texts = _texts(model, Path(corpus), int(sentences))
    return grown(lambda: attnviz.survey(texts, model=model, truncate=True))


def _texts(model: attnviz.Model, corpus: Path, count: int) -> list[str]:
    """Return this number of texts from a corpus, repeating it if it is too short."""
    texts = [text.text for text in TextCorpus(model, corpus).texts()]
    return (texts * (1 + count // len(texts)))[:count]


def _print_difference(
    model: attnviz.Model, heads: HeadStatistics, reads: Sequence[CorpusText]
) -> None:
    ours = heads.measure(reads)
    loop = _loop(model, reads)
    difference = 0.0
    for n, (text, expected) in enumerate(zip(reads, loop, strict=True)):
        measured = torch.stack([ours.value[n], ours.shuffled[n], ours.even[n]])
        scaled = (measured - expected).abs() / largest(Positions.of(Axis.numbered(len(text))))
        assert torch.equal(measured.isnan(), expected.isnan())
        difference = max(difference, float(scaled.nan_to_num(0).max()))
    console.print(
        f"largest difference between loop and survey, relative to the maximum: {difference:.1e}"
    )


def _loop(model: attnviz.Model, reads: Sequence[CorpusText]) -> list[Tensor]:
    """Return (3, K, S) for each sentence: original, shuffled, and uniform weights."""
    stops = {model.tokenizer.convert_tokens_to_ids(text) for text in (".", ",")}
    before = model.module.config._attn_implementation
    model.module.set_attn_implementation("eager")
    results = []
    try:
        for text in reads:
            mixed = shuffle(text.encoding, f"0 {text.number}")
            maps, other = _maps(model, text.encoding), _maps(model, mixed)
            even = torch.full_like(maps, 1 / maps.shape[-1])
            variants = (maps, text.encoding), (other, mixed), (even, text.encoding)
            results.append(torch.stack([_statistics(*variant, stops) for variant in variants]))
    finally:
        model.module.set_attn_implementation(before)
    return results


@torch.inference_mode()
def _maps(model: attnviz.Model, encoding: Encoding) -> Tensor:
    """Return the weights of all heads, (K, T, T)."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: torch.tensor([encoding[name]]) for name in names}
    return torch.cat(model.module(**inputs, output_attentions=True).attentions, dim=1)[0]


def _statistics(maps: Tensor, encoding: Encoding, stops: set[int]) -> Tensor:
    """Return the statistics of all heads, (K, S), written out from their definitions."""
    ids = torch.tensor(encoding["input_ids"])
    special = torch.tensor(encoding["special_tokens_mask"]).bool()
    stop = torch.tensor([id in stops for id in encoding["input_ids"]]) & ~special
    T = maps.shape[-1]
    i = torch.arange(T)
    behind = i[:, None] - i
    same = (ids[:, None] == ids) & (behind != 0)
    follows = torch.zeros_like(same)
    follows[:, 1:] = (same & (behind > 0))[:, :-1]
    follows &= behind != 0
    rows = ~special

    def mean(weights: Tensor, counted: Tensor = rows) -> Tensor:
        return weights[:, counted & rows].mean(1)

    def share_on(keys: Tensor) -> Tensor:
        return mean((maps * keys).sum(-1), keys.any(-1))

    return torch.stack(
        [
            mean((maps * behind.abs()).sum(-1)),
            mean(maps.diagonal(dim1=1, dim2=2)),
            share_on((behind == 1) & rows),
            share_on((behind == -1) & rows),
            mean(maps[:, :, 0]),
            share_on(special.expand(T, T)),
            share_on(same),
            share_on(follows),
            share_on(stop.expand(T, T)),
            mean(-(maps * maps.clamp(min=1e-30).log()).sum(-1)),
            maps[:, rows][:, :, rows].mean(1).amax(-1),
        ],
        dim=1,
    )
