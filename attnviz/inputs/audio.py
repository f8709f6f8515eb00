"""Sounds → features: frames with the second at which each begins."""

from __future__ import annotations

import os
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.errors import InputError, ModelError
from attnviz.results import Axis
from attnviz.runtime.memory import Room

if TYPE_CHECKING:
    from attnviz.models.checkpoint import Checkpoint

Recording: TypeAlias = "str | os.PathLike[str] | np.ndarray[Any, Any]"

_PROJECTIONS = ("q_proj", "query", "qkv", "linear_q", "q_lin")  # where attention begins


@dataclass(frozen=True, eq=False)
class Sound:
    """One channel of samples between -1 and 1, `rate` of them a second, and its name."""

    samples: NDArray[np.float32]
    rate: int
    name: str

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return len(self.samples) / self.rate


def read_sound(given: Recording, sampling_rate: int | None = None) -> Sound:
    """Return the sound in a WAV file or an array, its channels averaged.

    Parameters
    ----------
    given : a path, or an array (samples,) or (samples, channels): floats between -1 and 1, or
        integers of which the full range is used.
    sampling_rate : of an array, in samples a second; a file says its own.

    Raises
    ------
    InputError : no such file, no uncompressed WAV, an array of another shape, an unknown rate, or
        no sound.
    """
    if isinstance(given, np.ndarray):
        return _from_array(given, sampling_rate)
    if not isinstance(given, str | os.PathLike):
        raise InputError(
            f"Expected a sound as a WAV file or an array of samples, got {type(given).__name__}."
        )
    path = Path(given)
    try:
        with wave.open(os.fspath(path), "rb") as file:
            width, rate = file.getsampwidth(), file.getframerate()
            channels, data = file.getnchannels(), file.readframes(file.getnframes())
    except FileNotFoundError as error:
        raise InputError(f"Expected a sound, but there is no file {path}.") from error
    except (OSError, EOFError, wave.Error) as error:
        reason = getattr(error, "strerror", None) or str(error) or "it ends too early"
        raise InputError(
            f"Expected a sound in {path}, but: {reason}. Give an uncompressed WAV (PCM)."
        ) from error
    whole = len(data) // (width * channels)
    samples = _integers(data[: whole * width * channels], width).reshape(-1, channels).mean(1)
    return _sound(samples.astype(np.float32), rate, path.name)


def _integers(data: bytes, width: int) -> NDArray[np.float64]:
    """Return little-endian samples of `width` bytes between -1 and 1."""
    if width == 1:  # the only width without a sign
        return (np.frombuffer(data, np.uint8) - 128.0) / 128
    places = np.zeros((len(data) // width, 4), np.uint8)
    places[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return places.view("<i4")[:, 0] / 2.0**31


def _from_array(given: NDArray[Any], rate: int | None) -> Sound:
    if given.ndim not in (1, 2) or given.dtype.kind not in "fi":
        raise InputError(
            "Expected a sound as an array (samples,) or (samples, channels) of floats or integers, "
            f"got {given.shape} of {given.dtype}."
        )
    if isinstance(rate, bool) or not isinstance(rate, int) or rate < 1:
        raise InputError(
            f"Expected the sampling rate of the array in samples a second, got {rate!r}. "
            "Give it as sampling_rate=16000."
        )
    if not given.size:
        raise InputError("Expected a sound, got an array without samples.")
    whole = 1.0 if given.dtype.kind == "f" else -float(np.iinfo(given.dtype).min)
    samples = given.reshape(len(given), -1).mean(1) / whole
    return _sound(samples.astype(np.float32), rate, "sound")


def _sound(samples: NDArray[np.float32], rate: int, name: str) -> Sound:
    if not len(samples) or not np.isfinite(samples).all():
        came = "some that are no numbers" if len(samples) else "none"
        raise InputError(f"Expected samples in {name}, got {came}. Give another sound.")
    return Sound(samples, rate, f"{name} ({len(samples) / rate:.2f} s at {rate:,} Hz)")


def resample(sound: Sound, rate: int) -> Sound:
    """Return the sound at another rate: its spectrum, cut or filled up with zeros."""
    if rate == sound.rate:
        return sound
    length = max(1, round(len(sound.samples) * rate / sound.rate))
    spectrum = np.fft.rfft(sound.samples.astype(np.float64))
    samples = np.fft.irfft(spectrum[: length // 2 + 1], length) * (length / len(sound.samples))
    name = sound.name.replace(" Hz)", f" Hz, resampled to {rate:,} Hz)")
    return Sound(samples.astype(np.float32), rate, name)


def encode_sound(
    checkpoint: Checkpoint, sound: Sound, *, truncate: bool = False
) -> dict[str, Tensor]:
    """Return what the model takes of a sound that has its sampling rate.

    Raises
    ------
    InputError : the sound is longer than the model can read, and not to be cut.
    """
    reader: Any = checkpoint.processors.audio
    longest = getattr(reader, "n_samples", None)
    if isinstance(longest, int) and len(sound.samples) > longest and not truncate:
        raise InputError(
            f"Expected a sound of at most {longest / sound.rate:g} s, the most that "
            f"{checkpoint.name} can read, got {sound.seconds:.2f} s. Shorten it, or cut it with "
            "--truncate (truncate=True)."
        )
    if isinstance(longest, int):  # to which some fill up all sounds
        ways = "Check its preprocessor_config.json, or pass another processor=."
        what = f"the sound that {checkpoint.name} hears"
        Room(what, torch.device("cpu"), ways, ModelError).expect(4 * longest)
    return dict(reader([sound.samples], sampling_rate=sound.rate, return_tensors="pt"))


def sound_axis(checkpoint: Checkpoint, sound: Sound, inputs: dict[str, Tensor]) -> Axis | None:
    """Describe the frames that the model's attention sees; None if their length is unknown.

    Frames that begin after the sound has ended are special: a processor added them.
    """
    taken = _steps(checkpoint, sound, inputs)
    if taken is None:
        return None
    count, step = taken
    for layer in _convolutions(checkpoint.module):
        size, stride, pad = layer.kernel_size[0], layer.stride[0], layer.padding
        count = (count + 2 * int(0 if isinstance(pad, str) else pad[0]) - size) // stride + 1
        step *= stride
    if count < 1:
        raise InputError(
            f"Expected a sound long enough for one frame of {checkpoint.name}, got "
            f"{sound.seconds:.3f} s. Give a longer one."
        )
    seconds = [frame * step for frame in range(count)]
    added = [second >= sound.seconds for second in seconds]
    labels = [
        "[silence]" if silent else f"{second:.2f} s"
        for second, silent in zip(seconds, added, strict=True)
    ]
    return Axis.plain(labels, special=added, seconds=seconds)


def _steps(
    checkpoint: Checkpoint, sound: Sound, inputs: dict[str, Tensor]
) -> tuple[int, float] | None:
    """Return how many time steps enter the model, and the seconds from one to the next."""
    reader = checkpoint.processors.audio
    if (samples := inputs.get("input_values")) is not None:
        return (samples.shape[-1], 1 / sound.rate) if samples.dim() == 2 else None
    features = inputs.get("input_features")
    if features is None or features.dim() != 3:
        return None
    is_last = features.shape[1] == getattr(reader, "feature_size", None)
    count = features.shape[2 if is_last else 1]
    hop = getattr(reader, "hop_length", None)
    return count, hop / sound.rate if hop else sound.seconds / count


def _convolutions(module: nn.Module) -> list[nn.Conv1d]:
    """Return the convolutions that shorten a sound before attention first sees it."""
    found: list[nn.Conv1d] = []
    for layer in module.modules():
        if any(hasattr(layer, name) for name in _PROJECTIONS):
            break
        if isinstance(layer, nn.Conv1d):
            found.append(layer)
    last = max((n for n, layer in enumerate(found) if layer.stride[0] > 1), default=-1)
    return found[: last + 1]
