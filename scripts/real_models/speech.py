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

_WORD, _END = 1, 0  # kinds of events
_SYNCHRONOUS, _UTF8 = 2, 1


@dataclass(frozen=True)
class Speech:
    """Samples, their number per second, and when each word of the text begins, in seconds."""

    samples: NDArray[np.float32]
    rate: int
    words: tuple[str, ...]
    onsets: tuple[float, ...]


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
        ("value", ctypes.c_char * 8),
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
    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, None, 0)
    library.espeak_SetVoiceByName(b"en-us")
    return library, rate


def speak(text: str, *, rate: int = 16_000) -> Speech:
    """Speak an English text."""
    library, own_rate = _library()
    blocks, onsets = [], {}

    @_Callback
    def collect(samples: object, count: int, events: object) -> int:
        if count:
            blocks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        for event in events:
            if event.kind == _END:
                break
            if event.kind == _WORD:
                place = event.text_position - 1
                onsets[place] = (text[place : place + event.length], event.audio_position / 1000)
        return 0

    library.espeak_SetSynthCallback(collect)
    data = text.encode()
    library.espeak_Synth(data, len(data) + 1, 0, 0, 0, _UTF8, None, None)
    library.espeak_Synchronize()
    spoken = Sound((np.concatenate(blocks) / 32768).astype(np.float32), own_rate, text)
    words, starts = zip(*(onsets[place] for place in sorted(onsets)), strict=True)
    return Speech(resample(spoken, rate).samples, rate, words, starts)
