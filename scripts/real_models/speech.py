"""Speech of espeak-ng, with the exact onset of every word."""

from __future__ import annotations

import ctypes
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from attnviz.inputs.audio import Sound, resample
from real_models.source import SourceError

_WORD, _PHONEME, _END = 1, 7, 0  # kinds of events
_SYNCHRONOUS, _UTF8, _PHONEME_EVENTS, _RATE = 2, 1, 1, 1
_PAUSE = 0.005  # seconds without sound
_QUIET = 1e-3  # of the largest sample


@dataclass(frozen=True)
class Speech:
    """A spoken text.

    samples, rate : the sound, and its samples per second. words, places, onsets : the words, where
    each begins in the text, in characters, and in the sound, in seconds.
    """

    samples: NDArray[np.float32]
    rate: int
    words: tuple[str, ...]
    places: tuple[int, ...]
    onsets: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Duration."""
        return len(self.samples) / self.rate


class _Event(ctypes.Structure):
    """An event of libespeak-ng; the last field is a union of 8 bytes."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # in milliseconds
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("value", ctypes.c_char * 8),  # of a phoneme: its name
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


@cache
def _library() -> tuple[ctypes.CDLL, int]:
    name = find_library("espeak-ng")
    if name is None:
        raise SourceError("espeak-ng is not installed. Run 'apt-get install espeak-ng'.")
    library = ctypes.CDLL(name)
    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, None, _PHONEME_EVENTS)
    return library, rate


def speak(
    text: str, *, rate: int = 16_000, voice: str = "en-us", words_per_minute: int = 175
) -> Speech:
    """Speak an English text. voice : of espeak-ng, with a variant or without: "en-us+f3".

    Some voices change the pauses of the next one; onsets are always those of the sound.
    """
    library, own_rate = _library()
    if library.espeak_SetVoiceByName(voice.encode()):
        raise SourceError(f"espeak-ng has no voice {voice!r}. List them: espeak-ng --voices.")
    library.espeak_SetParameter(_RATE, words_per_minute, 0)
    blocks: list[NDArray[np.int16]] = []
    words: dict[int, tuple[int, int]] = {}  # by place: the length, and the sample reported
    phonemes: list[int] = []  # the samples with which they begin

    @_Callback
    def collect(samples: object, count: int, events: object) -> int:
        if count:
            blocks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        for event in events:
            if event.kind == _END:
                break
            if event.kind == _WORD and event.length:
                words[event.text_position - 1] = event.length, event.sample
            if event.kind == _PHONEME and not event.value.startswith(b"_"):  # no pause
                phonemes.append(event.sample)
        return 0

    library.espeak_SetSynthCallback(collect)
    data = text.encode()
    library.espeak_Synth(data, len(data) + 1, 0, 0, 0, _UTF8, None, None)
    library.espeak_Synchronize()
    samples = (np.concatenate(blocks) / 32768).astype(np.float32)
    spoken = resample(Sound(samples, own_rate, text), rate)
    onsets = {
        place: _onset(samples, reported, phonemes, own_rate) / own_rate
        for place, (_, reported) in sorted(words.items())
    }
    names = [text[place : place + words[place][0]] for place in onsets]
    return Speech(spoken.samples, rate, tuple(names), tuple(onsets), tuple(onsets.values()))


def _onset(samples: NDArray[np.float32], reported: int, phonemes: list[int], rate: int) -> int:
    """Return the sample with which a word begins.

    espeak-ng reports a word before the pause in front of it, where its first phoneme has not begun.
    It reports a vowel after its transition from a consonant, so without a pause the word counts.
    """
    first = next(sample for sample in phonemes if sample >= reported)
    between, size = np.abs(samples[reported:first]), round(_PAUSE * rate)
    blocks = between[: len(between) // size * size].reshape(-1, size).max(1)
    has_pause = bool((blocks < _QUIET * np.abs(samples).max()).any())
    return first if has_pause else reported
