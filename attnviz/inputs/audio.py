"""Audio: reading, resampling, and the frames of a sound, each with the second of its beginning."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.errors import InputError, ModelError
from attnviz.results import Axis
from attnviz.runtime.memory import MemoryBudget

if TYPE_CHECKING:
    from attnviz.models.checkpoint import Checkpoint

AudioSource: TypeAlias = "str | os.PathLike[str] | np.ndarray[Any, Any]"

_HIGHEST_RATE = 1_000_000  # samples a second
_PROJECTIONS = ("q_proj", "query", "qkv", "linear_q", "q_lin")  # where attention begins


@dataclass(frozen=True, eq=False)
class Sound:
    """One channel of samples between -1 and 1, the samples a second, and the name in captions."""

    samples: NDArray[np.float32]
    rate: int
    name: str

    @property
    def seconds(self) -> float:
        """Duration."""
        return len(self.samples) / self.rate


def read_sound(source: AudioSource, sampling_rate: int | None = None) -> Sound:
    """Return the sound in an audio file or an array, its channels averaged.

    Parameters
    ----------
    source : str, path or array
        A file that libsndfile reads (WAV, FLAC, OGG, MP3), or an array (samples,) or
        (samples, channels): floats between -1 and 1, or integers that use their full range.
    sampling_rate : int or None
        Samples a second of an array; a file holds its own rate.

    Raises
    ------
    InputError
        There is no such file, it holds no audio, the array has another shape, the rate is unknown,
        or there are no samples; soundfile is not installed.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source, sampling_rate)
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            f"Expected a sound as an audio file or an array of samples, got "
            f"{type(source).__name__}."
        )
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: libsndfile is missing
        raise InputError(
            "Reading audio files needs soundfile, which cannot be imported. "
            "Run pip install soundfile, or give an array of samples."
        ) from error
    path = Path(source)
    try:
        with path.open("rb") as file:
            samples, rate = soundfile.read(file, dtype="float64", always_2d=True)
    except FileNotFoundError as error:
        raise InputError(f"Expected a sound, but there is no file {path}.") from error
    except (OSError, ValueError, soundfile.SoundFileError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "error_string", None)
        reason = str(reason or error).rstrip(".")
        raise InputError(
            f"Expected a sound in {path}, but: {reason}. Give a WAV, FLAC or OGG file."
        ) from error
    return _sound(samples.mean(1), rate, path.name)


def _from_array(samples: NDArray[Any], rate: int | None) -> Sound:
    if samples.ndim not in (1, 2) or samples.dtype.kind not in "fi":
        raise InputError(
            "Expected a sound as an array (samples,) or (samples, channels) of floats or integers, "
            f"got {samples.shape} of {samples.dtype}."
        )
    if isinstance(rate, bool) or not isinstance(rate, int) or rate < 1:
        raise InputError(
            f"Expected the sampling rate of the array in samples a second, got {rate!r}. "
            "Give it as sampling_rate=16000."
        )
    if not samples.size:
        raise InputError("Expected a sound, got an array without samples.")
    full_range = 1.0 if samples.dtype.kind == "f" else -float(np.iinfo(samples.dtype).min)
    return _sound(samples.reshape(len(samples), -1).mean(1) / full_range, rate, "sound")


def _sound(samples: NDArray[np.float64], rate: int, name: str) -> Sound:
    if not len(samples) or not np.isfinite(samples).all():
        found = "some that are no numbers" if len(samples) else "none"
        raise InputError(f"Expected samples in {name}, got {found}. Give another sound.")
    if rate > _HIGHEST_RATE:
        raise InputError(
            f"Expected at most {_HIGHEST_RATE:,} samples a second in {name}, got {rate:,}. "
            "Check its sampling rate."
        )
    name = f"{name} ({len(samples) / rate:.2f} s at {rate:,} Hz)"
    return Sound(samples.astype(np.float32), rate, name)


def resample(sound: Sound, rate: int) -> Sound:
    """Return the sound at another sampling rate (polyphase filter of scipy)."""
    if rate == sound.rate:
        return sound
    from scipy.signal import resample_poly

    divisor = gcd(rate, sound.rate)
    samples = resample_poly(
        sound.samples.astype(np.float64), rate // divisor, sound.rate // divisor
    )
    name = sound.name.replace(" Hz)", f" Hz, resampled to {rate:,} Hz)")
    return Sound(samples.astype(np.float32), rate, name)


def encode_sound(
    checkpoint: Checkpoint, sound: Sound, *, truncate: bool = False
) -> dict[str, Tensor]:
    """Return the model's input tensors for a sound at the model's sampling rate.

    Raises
    ------
    InputError
        The sound is longer than the model can read, and `truncate` is false.
    """
    processor: Any = checkpoint.processors.audio
    longest = getattr(processor, "n_samples", None)
    if isinstance(longest, int) and len(sound.samples) > longest and not truncate:
        raise InputError(
            f"Expected a sound of at most {longest / sound.rate:g} s, the most that "
            f"{checkpoint.name} can read, got {sound.seconds:.2f} s. Shorten it, or cut it with "
            "--truncate (truncate=True)."
        )
    if isinstance(longest, int):  # some processors pad every sound to this length
        ways = "Check its preprocessor_config.json, or pass another processor=."
        what = f"the audio input of {checkpoint.name}"
        MemoryBudget(what, torch.device("cpu"), ways, ModelError).expect(4 * longest)
    return dict(processor([sound.samples], sampling_rate=sound.rate, return_tensors="pt"))


def sound_axis(checkpoint: Checkpoint, sound: Sound, inputs: dict[str, Tensor]) -> Axis | None:
    """Describe the frames that the model attends to; None if their number is unknown.

    Frames that begin after the end of the sound are special: the processor added them.
    """
    steps = _steps(checkpoint, sound, inputs)
    if steps is None:
        return None
    count, duration = steps
    for layer in _convolutions(checkpoint.module):
        size, stride, pad = layer.kernel_size[0], layer.stride[0], layer.padding
        count = (count + 2 * int(0 if isinstance(pad, str) else pad[0]) - size) // stride + 1
        duration *= stride
    if count < 1:
        raise InputError(
            f"Expected a sound long enough for one frame of {checkpoint.name}, got "
            f"{sound.seconds:.3f} s. Give a longer one."
        )
    seconds = [frame * duration for frame in range(count)]
    is_added = [second >= sound.seconds for second in seconds]
    labels = [
        "[silence]" if added else f"{second:.2f} s"
        for second, added in zip(seconds, is_added, strict=True)
    ]
    return Axis.plain(labels, special=is_added, seconds=seconds)


def _steps(
    checkpoint: Checkpoint, sound: Sound, inputs: dict[str, Tensor]
) -> tuple[int, float] | None:
    """Return how many time steps enter the model, and the seconds from one to the next."""
    processor = checkpoint.processors.audio
    if (samples := inputs.get("input_values")) is not None:
        return (samples.shape[-1], 1 / sound.rate) if samples.dim() == 2 else None
    features = inputs.get("input_features")
    if features is None or features.dim() != 3:
        return None
    is_time_last = features.shape[1] == getattr(processor, "feature_size", None)
    count = features.shape[2 if is_time_last else 1]
    hop = getattr(processor, "hop_length", None)
    return count, hop / sound.rate if hop else sound.seconds / count


def _convolutions(module: nn.Module) -> list[nn.Conv1d]:
    """Return the convolutions that shorten a sound before the first attention."""
    convolutions: list[nn.Conv1d] = []
    for layer in module.modules():
        if any(hasattr(layer, name) for name in _PROJECTIONS):
            break
        if isinstance(layer, nn.Conv1d):
            convolutions.append(layer)
    strided = [n for n, layer in enumerate(convolutions) if layer.stride[0] > 1]
    return convolutions[: strided[-1] + 1] if strided else []
