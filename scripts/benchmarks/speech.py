"""Whether cross-attention of Whisper tiny.en shows when each word is spoken.

espeak-ng speaks sentences, and so gives the exact onset of each word. The decoder reads the true
text. Onsets are read from the attention as in Whisper's own word timestamps: the weights are
cropped to the sound, normalized, median-filtered and averaged over heads; dynamic time warping
finds the monotone path with the largest weights, and a token begins where the path reaches the row
that predicts it. The first word of a sentence is left out: every path begins with it at 0.

The weights are those that transformers returns; tests/real/test_verify.py proves attnviz's equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray
from real_models.speech import Speech, speak
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

import attnviz
from attnviz.analyses.senses import bundled
from attnviz.capture.watch import restoring

VOICES = ("en-us", "en-us+f3", "en-us+m3", "en-gb-x-rp", "en-gb-scotland+f2")
SPEEDS = (140, 175, 210)  # words a minute
NEAR = 0.1  # seconds
_FILTER = 7  # frames of the median filter, as in Whisper
_RESAMPLES = 10_000


@dataclass(frozen=True, eq=False)
class Utterance:
    """A spoken sentence as Whisper reads it.

    weights : (heads of all layers, rows, frames of the sound); each row predicts a token, from the
    first of the text to the one after its last. tokens : the first token of each word, counted from
    the first of the text.
    """

    speech: Speech
    text: str
    weights: Tensor
    tokens: tuple[int, ...]


def sentences() -> list[str]:
    """Return the bundled sentences of `senses` in random order."""
    by_sense = [texts for senses in bundled().values() for texts in senses.values()]
    texts = list(dict.fromkeys(chain.from_iterable(by_sense)))
    return [str(text) for text in np.random.default_rng(0).permutation(texts)]


def listen(model: attnviz.Model, texts: Iterable[str]) -> list[Utterance]:
    """Let espeak-ng speak sentences, and the model read each with its true text."""
    module, tokenizer = model.module, model.tokenizer
    extractor = model.checkpoint.processors.audio
    utterances = []
    for number, text in enumerate(texts):
        speech = speak(
            text,
            voice=VOICES[number % len(VOICES)],
            words_per_minute=SPEEDS[number % len(SPEEDS)],
        )
        features = extractor(speech.samples, sampling_rate=speech.rate, return_tensors="pt")
        written = tokenizer(f" {text}", return_offsets_mapping=True, return_tensors="pt")
        with restoring(module), torch.no_grad():
            output = module(
                features.input_features,
                decoder_input_ids=written.input_ids,
                output_attentions=True,
            )
        frames = round(50 * speech.seconds)
        # The tokenizer writes two special tokens before the text, and one after it.
        weights = torch.cat([layer[0] for layer in output.cross_attentions])[:, :, :frames]
        starts = written.offset_mapping[0, 2:-1, 0] - 1  # in the text without its first blank
        tokens = [int((starts <= place).sum()) - 1 for place in speech.places]
        utterances.append(Utterance(speech, text, weights.clone(), tuple(tokens)))
    return utterances


def token_onsets(utterance: Utterance, heads: Sequence[int]) -> NDArray[np.float64]:
    """Return when each token of the text begins by the attention of some heads, in seconds."""
    weights = utterance.weights[list(heads)]
    weights = weights / weights.sum(-1, keepdim=True)
    weights = weights - weights.mean(-2, keepdim=True)
    weights = weights / weights.std(-2, keepdim=True, unbiased=False)
    mean = _median_filter(weights[None], _FILTER)[0].mean(0)
    rows, frames = _dynamic_time_warping(-mean[1:-1].double().numpy())
    return np.asarray(frames[np.flatnonzero(np.diff(rows, prepend=-1))] / 50)


def by_heads(utterance: Utterance, heads: Sequence[int]) -> NDArray[np.float64]:
    """Return when each word begins by the attention of some heads, in seconds."""
    return token_onsets(utterance, heads)[list(utterance.tokens)]


def evenly(utterance: Utterance) -> NDArray[np.float64]:
    """Return when each word begins if all words take the same time."""
    return np.linspace(0, utterance.speech.seconds, len(utterance.tokens), endpoint=False)


def by_letters(utterance: Utterance) -> NDArray[np.float64]:
    """Return when each word begins if all characters take the same time."""
    return np.array(utterance.speech.places) / len(utterance.text) * utterance.speech.seconds


def heads_in_agreement(utterances: Sequence[Utterance]) -> tuple[int, ...]:
    """Return the heads that place most tokens where the mean of all other heads does.

    It knows no onsets: heads that follow the speech agree, others do so only by chance.
    """
    count = len(utterances[0].weights)
    shares = np.zeros((len(utterances), count))
    for row, utterance in enumerate(utterances):
        for head in range(count):
            others = [other for other in range(count) if other != head]
            apart = token_onsets(utterance, [head]) - token_onsets(utterance, others)
            shares[row, head] = (np.abs(apart[1:]) <= NEAR).mean()
    return tuple(np.flatnonzero(shares.mean(0) > 0.5).tolist())


def errors(utterance: Utterance, onsets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how late each word but the first begins, in seconds."""
    return (onsets - np.array(utterance.speech.onsets))[1:]


def share_near(errors: Sequence[NDArray[np.float64]]) -> tuple[float, float, float]:
    """Return the share of words within 100 ms, with a 95% interval from resampled sentences."""
    near = np.array([(np.abs(error) <= NEAR).sum() for error in errors])
    words = np.array([len(error) for error in errors])
    drawn = np.random.default_rng(0).integers(len(words), size=(_RESAMPLES, len(words)))
    low, high = np.percentile(near[drawn].sum(1) / words[drawn].sum(1), (2.5, 97.5))
    return near.sum() / words.sum(), low, high


def measure(count: int, chosen_on: int) -> None:
    """Print the share of onsets within 100 ms of the truth, for several ways to place words."""
    console = Console(width=110)
    model = attnviz.load("whisper-tiny.en")
    texts = islice(sentences(), chosen_on + count)
    utterances = listen(model, track(list(texts), "speaking and reading", console=console))
    chosen = heads_in_agreement(utterances[:chosen_on])
    heads = model.module.config.decoder_attention_heads
    listed = [
        layer * heads + head for layer, head in model.module.generation_config.alignment_heads
    ]
    measured = utterances[chosen_on:]
    every = range(len(measured[0].weights))
    ways = {
        "as if all words took the same time": evenly,
        "as if all characters took the same time": by_letters,
        f"by the alignment heads of the model: {_names(listed, heads)}": lambda one: by_heads(
            one, listed
        ),
        f"by all {len(every)} heads": lambda one: by_heads(one, every),
        f"by the heads in agreement: {_names(chosen, heads)}": lambda one: by_heads(one, chosen),
    }
    columns = "words begin", "within 100 ms", "95% interval", "median distance", "median lateness"
    table = Table(*columns, box=None)
    for name, place in ways.items():
        late = [errors(one, place(one)) for one in measured]
        share, low, high = share_near(late)
        milliseconds = 1000 * np.concatenate(late)
        medians = np.median(np.abs(milliseconds)), np.median(milliseconds)
        table.add_row(
            name,
            f"{share:.1%}",
            f"{low:.1%} to {high:.1%}",
            *(f"{median:.0f} ms" for median in medians),
        )
    words = sum(len(one.tokens) - 1 for one in measured)
    console.print(
        f"{words} words of {count} sentences, {len(VOICES)} voices, {len(SPEEDS)} speeds; heads in "
        f"agreement chosen on {chosen_on} other sentences, without onsets"
    )
    console.print(table)


def _names(heads: Sequence[int], in_layer: int) -> str:
    return ", ".join(f"{head // in_layer}.{head % in_layer}" for head in heads)
