"""A survey of many sentences beside the obvious loop: one after the other, eager, all maps kept.

Both measure the same statistics of every head on each sentence, on the same sentence with its
tokens shuffled, and of even weights; the largest difference between the two is printed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import attnviz
from attnviz.analyses.survey.corpus import (
    Encoding,
    TokenizedText,
    read_corpus,
    tokenize_corpus,
)
from attnviz.analyses.survey.measure import HeadStatistics, shuffle
from attnviz.analyses.survey.statistics import largest
from benchmarks.measuring import alternate, console, peak, show, show_setting

_LOOP, _TABLE, _SURVEY = "eager, one sentence at a time", "attnviz, table alone", "attnviz.survey"
_PATIENCE = 1800.0  # seconds


def measure(corpus: Path, sentences: int, rounds: int) -> None:
    """Print the time of each way, and by how much memory a survey grows with its corpus."""
    model = attnviz.load()
    texts = _texts(corpus, sentences)
    reads = list(tokenize_corpus(model, read_corpus(texts), truncate=True, on_bad=None))
    heads = HeadStatistics(model.checkpoint, model.attend(texts[0]).records)
    _print_difference(model, heads, reads[:50])
    ways = {
        _LOOP: lambda: _loop(model, reads),
        _TABLE: lambda: heads.measure(reads),
        _SURVEY: lambda: attnviz.survey(texts, model=model, truncate=True),
    }
    times = alternate(ways, rounds, time.perf_counter)
    tokens = sum(len(each.encoding["input_ids"]) for each in reads) / len(reads)
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


def memory(way: str, corpus: str, sentences: str) -> float:
    """Return by how many MB a survey grows this process, over the loaded model."""
    from benchmarks.measuring import grown

    model = attnviz.load()
    model.attend("one two")
    texts = _texts(Path(corpus), int(sentences))
    return grown(lambda: attnviz.survey(texts, model=model, truncate=True))


def _texts(corpus: Path, count: int) -> list[str]:
    """Return so many texts of a corpus, which is read again where it has fewer."""
    found = [each.text for each in read_corpus(corpus)]
    return (found * (1 + count // len(found)))[:count]


def _print_difference(
    model: attnviz.Model, heads: HeadStatistics, reads: Sequence[TokenizedText]
) -> None:
    ours = heads.measure(reads)
    loop = _loop(model, reads)
    apart = 0.0
    for n, (each, theirs) in enumerate(zip(reads, loop, strict=True)):
        mine = torch.stack([ours.value[n], ours.shuffled[n], ours.even[n]])
        scaled = (mine - theirs).abs() / largest(len(each))
        assert torch.equal(mine.isnan(), theirs.isnan())
        apart = max(apart, float(scaled.nan_to_num(0).max()))
    console.print(
        f"largest difference between loop and survey, of the most they can be: {apart:.1e}"
    )


def _loop(model: attnviz.Model, reads: Sequence[TokenizedText]) -> list[Tensor]:
    """Return (3, K, S) of each sentence: as it is, shuffled, and of even weights."""
    stops = {model.tokenizer.convert_tokens_to_ids(each) for each in (".", ",")}
    before = model.module.config._attn_implementation
    model.module.set_attn_implementation("eager")
    found = []
    try:
        for each in reads:
            mixed = shuffle(each.encoding, f"0 {each.number}")
            maps, other = _maps(model, each.encoding), _maps(model, mixed)
            even = torch.full_like(maps, 1 / maps.shape[-1])
            some = (maps, each.encoding), (other, mixed), (even, each.encoding)
            found.append(torch.stack([_statistics(*one, stops) for one in some]))
    finally:
        model.module.set_attn_implementation(before)
    return found


@torch.inference_mode()
def _maps(model: attnviz.Model, encoding: Encoding) -> Tensor:
    """Return the weights of all heads, (K, T, T)."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: torch.tensor([encoding[name]]) for name in names}
    return torch.cat(model.module(**inputs, output_attentions=True).attentions, dim=1)[0]


def _statistics(maps: Tensor, encoding: Encoding, stops: set[int]) -> Tensor:
    """Return the statistics of all heads, (K, S), as one writes them down."""
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

    def on(keys: Tensor) -> Tensor:
        found = mean((maps * keys).sum(-1), keys.any(-1))
        return found

    return torch.stack(
        [
            mean((maps * behind.abs()).sum(-1)),
            mean(maps.diagonal(dim1=1, dim2=2)),
            on((behind == 1) & rows),
            on((behind == -1) & rows),
            mean(maps[:, :, 0]),
            on(special.expand(T, T)),
            on(same),
            on(follows),
            on(stop.expand(T, T)),
            mean(-(maps * maps.clamp(min=1e-30).log()).sum(-1)),
            maps[:, rows][:, :, rows].mean(1).amax(-1),
        ],
        dim=1,
    )
