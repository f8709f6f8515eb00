"""Find where a word is spoken: sounds of espeak-ng, whose words begin at known times.

Whisper writes what it hears. For each word that it writes right, each way names one window of the
sound, of those of `explain`. It is right if the middle of the window lies in the spoken word, or
half a window beside it. The weights are those of cross-attention in a run that reads what the model
wrote, from the position that predicts a token, summed over the frames of a window.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.speech import SPEEDS, VOICES, sentences
from real_models.speech import Speech, speak
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import attnviz
from attnviz.capture.watch import restoring

ATTENTION = ("all heads", "alignment heads")
WAYS = ("explain", *ATTENTION, "chance")
_RATE = 50  # frames of Whisper a second
_RESAMPLES = 10_000


def hits(speech: Speech, word: int, edges: Sequence[float]) -> list[bool]:
    """Return whether each window is where a spoken word is."""
    begin, end = [*speech.onsets, speech.seconds][word : word + 2]
    return [begin - (b - a) / 2 <= (a + b) / 2 <= end + (b - a) / 2 for a, b in pairwise(edges)]


def matched(written: Sequence[str], spoken: Sequence[str]) -> list[tuple[int, int]]:
    """Return the pairs of written and spoken words that are the same."""
    both = ([re.sub(r"\W", "", word).casefold() for word in words] for words in (written, spoken))
    blocks = SequenceMatcher(None, *both, autojunk=False).get_matching_blocks()
    return [(m.a + n, m.b + n) for m in blocks for n in range(m.size)]


def attention_of(
    model: attnviz.Model, speech: Speech, answer: Sequence[str], edges: Sequence[float]
) -> dict[str, Tensor]:
    """Return the weight of each window for each written word, (A, W), by the heads of a way."""
    tokenizer, module = model.tokenizer, model.module
    assert tokenizer is not None
    features = model.checkpoint.processors.audio(
        speech.samples, sampling_rate=speech.rate, return_tensors="pt"
    )
    encoded = tokenizer(" " + " ".join(answer), return_offsets_mapping=True, return_tensors="pt")
    with restoring(module), torch.no_grad():
        weights = module(
            features.input_features, decoder_input_ids=encoded.input_ids, output_attentions=True
        ).cross_attentions
    layers = torch.stack([layer[0] for layer in weights])  # (L, H, T, frames)
    listed = module.generation_config.alignment_heads
    means = {
        ATTENTION[0]: layers.flatten(0, 1).mean(0),
        ATTENTION[1]: torch.stack([layers[layer, head] for layer, head in listed]).mean(0),
    }
    ends = np.cumsum([1 + len(word) for word in answer])  # in the text with its first blank
    places = encoded.offset_mapping[0, 2:-1, 1].tolist()
    words = [int((ends < place).sum()) for place in places]
    frames = [round(edge * _RATE) for edge in edges]
    table = {}
    for name, mean in means.items():
        by_window = torch.stack([mean[:, a:b].sum(-1) for a, b in pairwise(frames)], dim=-1)
        sums = torch.zeros(len(answer), len(frames) - 1)
        table[name] = sums.index_add_(0, torch.tensor(words), by_window[1 : 1 + len(words)])
    return table


def judge(model: attnviz.Model, text: str, number: int) -> dict[str, Any]:
    """Explain one spoken sentence; return whether each way is right, for each word."""
    voice, speed = VOICES[number % len(VOICES)], SPEEDS[number % len(SPEEDS)]
    speech = speak(text, voice=voice, words_per_minute=speed)
    why = attnviz.explain(audio=speech.samples, sampling_rate=speech.rate, generate=40, model=model)
    (edges,) = why.edges
    assert why.by_answer is not None
    tables = {"explain": why.by_answer, **attention_of(model, speech, why.answer, edges)}
    right: dict[str, list[float]] = {way: [] for way in WAYS}
    pairs = matched(why.answer, speech.words)
    for written, spoken in pairs:
        inside = hits(speech, spoken, edges)
        for way, table in tables.items():
            right[way].append(inside[int(table[written].argmax())])
        right["chance"].append(float(np.mean(inside)))
    said = {"text": text, "written": why.target, "spoken": len(speech.words)}
    return {**said, "verdict": why.agreement.verdict, "right": right}


def evaluate(name: str, count: int, *, store: Path | None = None) -> list[dict[str, Any]]:
    """Judge spoken sentences, those of `senses` in random order."""
    done = []
    if store is not None and store.exists():
        done = [json.loads(line) for line in store.read_text().splitlines()]
    model, texts = attnviz.load(name), sentences()[:count]
    for number, text in track([*enumerate(texts)][len(done) :], f"words in {name}"):
        done.append(judge(model, text, number))
        if store is not None:
            with store.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
    return done[:count]


def share(judged: Sequence[Mapping[str, Any]], way: str) -> tuple[float, float, float]:
    """Return the share of words that are right, with a 95 % interval over sentences."""
    kept = [one["right"][way] for one in judged if one["right"][way]]
    sums, words = (np.array([function(one) for one in kept]) for function in (sum, len))
    drawn = np.random.default_rng(0).integers(len(kept), size=(_RESAMPLES, len(kept)))
    low, high = np.percentile(sums[drawn].sum(1) / words[drawn].sum(1), (2.5, 97.5))
    return float(sums.sum() / words.sum()), float(low), float(high)


def show(judged: Sequence[Mapping[str, Any]], name: str, console: Console) -> None:
    """Print the share of words by way."""
    words = sum(len(one["right"]["chance"]) for one in judged)
    spoken = sum(one["spoken"] for one in judged)
    title = f"{len(judged)} sentences, {name}: {words} of {spoken} words are written right"
    table = Table("the window of a word, by", "in the word", "95 % interval", title=title)
    for way in WAYS:
        mean, low, high = share(judged, way)
        table.add_row(way, f"{mean:.1%}", f"{low:.1%} to {high:.1%}")
    console.print(table)
