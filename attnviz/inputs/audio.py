"""Audio: reading, resampling, and the frames of a sound, each with the second of its beginning."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.errors import InputError, ModelError
from attnviz.io import is_file
from attnviz.models.checkpoint import Checkpoint
from attnviz.results import Axis, Waveform
from attnviz.runtime.libraries import MemoryBudget

AudioSource: TypeAlias = (
    "str | os.PathLike[str] | np.ndarray[Any, Any] | Tensor | Mapping[str, Any]"
)

_HIGHEST_RATE = 1_000_000  # samples a second
_MOST_CHANNELS = 32
_PROJECTIONS = ("q_proj", "query", "qkv", "linear_q", "q_lin")  # where attention begins


@dataclass(frozen=True, eq=False)
class Sound:
    """A sound of one channel."""

    samples: NDArray[np.float32]  # between -1 and 1
    rate: int  # samples a second
    name: str  # in captions
    notes: tuple[str, ...] = ()  # how an array was read, if its shape leaves a choice

    @property
    def seconds(self) -> float:
        """Duration."""
        return len(self.samples) / self.rate


@dataclass(frozen=True, eq=False)
class TimeSteps:
    """The time steps of a sound as a model reads it, and which of them a frame is computed from."""

    argument: str  # the tensor of the model's inputs
    dim: int  # its dimension that is time
    seconds: float  # from one step to the next
    stride: int = 1  # steps from one frame to the next
    before: int = 0  # how many steps before its beginning a frame reads first
    size: int = 1  # how many steps a frame reads

    @property
    def reach(self) -> int:
        """How many frames before, and after, a frame read some of the steps that it reads."""
        return (self.size - 1) // self.stride

    def after(self, layer: nn.Conv1d) -> TimeSteps:
        """Return the steps with one more convolution before the frames."""
        pad = 0 if isinstance(layer.padding, str) else int(layer.padding[0])
        return replace(
            self,
            stride=self.stride * layer.stride[0],
            before=self.before + self.stride * pad,
            size=self.size + self.stride * (layer.kernel_size[0] - 1),
        )

    def frames(self, count: int) -> int:
        """Return how many frames are computed from `count` steps."""
        return (count + 2 * self.before - self.size) // self.stride + 1


def read_sound(source: AudioSource, sampling_rate: int | None = None) -> Sound:
    """Return the sound in an audio file or an array, its channels averaged.

    An array or a tensor is (samples,), (samples, channels) or (channels, samples): floats between
    -1 and 1, or integers that use their full range. It needs the sampling rate; a file holds it,
    and so does a mapping {"array": …, "sampling_rate": …}, as the package datasets gives it.
    """
    own_rate = None  # of a mapping or a file
    if isinstance(source, Mapping) and {"array", "sampling_rate"} <= source.keys():
        own_rate, source = source["sampling_rate"], source["array"]
    if isinstance(source, Tensor):
        source = source.detach().cpu().numpy()
    notes: tuple[str, ...] = ()
    if isinstance(source, np.ndarray):
        rate: Any = sampling_rate if own_rate is None else own_rate
        if isinstance(rate, bool) or not isinstance(rate, int | np.integer):
            raise InputError(
                f"The sampling rate of the array is {rate!r}: give the samples a second, such as "
                "sampling_rate=16000."
            )
        full_range = 1.0 if source.dtype.kind == "f" else -float(np.iinfo(source.dtype).min)
        samples, notes = _samples_first(source)
        samples, rate, name = samples / full_range, int(rate), "sound"
    elif isinstance(source, str | os.PathLike):
        samples, rate = _read_file(Path(source))
        own_rate, name = rate, Path(source).name
    else:
        raise InputError(
            f"{type(source).__name__} is not a sound: give an audio file or an array of samples."
        )
    if own_rate is not None and sampling_rate not in (None, own_rate):
        raise InputError(
            f"The sound has a sampling rate of {own_rate!r}, not {sampling_rate!r}. Leave "
            "sampling_rate= out."
        )
    if not samples.size or not np.isfinite(samples).all():
        problem = "samples that are not finite" if samples.size else "no samples"
        what = "The sound" if name == "sound" else name
        raise InputError(f"{what} has {problem}. Give another one.")
    if not 1 <= rate <= _HIGHEST_RATE:
        raise InputError(
            f"{name} has a sampling rate of {rate:,}: it must be from 1 to {_HIGHEST_RATE:,}."
        )
    samples = samples.reshape(len(samples), -1).mean(1)
    name = f"{name} ({len(samples) / rate:.2f} s at {rate:,} Hz)"
    return Sound(samples.astype(np.float32), rate, name, notes)


def _samples_first(array: NDArray[Any]) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return an array as (samples, channels), and how it was read; InputError if unclear."""
    is_sound = array.ndim in (1, 2) and array.dtype.kind in "fi"
    short, long = min(array.shape, default=0), max(array.shape, default=0)
    if not is_sound or (array.ndim == 2 and (short > _MOST_CHANNELS or short == long)):
        raise InputError(
            f"An array {array.shape} of {array.dtype} is not a sound: give (samples,), "
            f"(samples, channels) or (channels, samples) of floats or integers, with at most "
            f"{_MOST_CHANNELS} channels and more samples than channels."
        )
    if array.ndim == 1:
        return array, ()
    order = "(channels, samples)" if array.shape[0] == short else "(samples, channels)"
    mean = "" if short == 1 else f", the mean of {short} channels"
    note = f"the array {array.shape} was read as {order}{mean}"
    return (array.T if array.shape[0] == short else array), (note,)


def _read_file(path: Path) -> tuple[NDArray[np.float64], int]:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: libsndfile is missing
        raise InputError(
            "Reading audio files needs soundfile, which cannot be imported. "
            "Run pip install soundfile, or give an array of samples."
        ) from error
    if not is_file(path):  # a pipe would be waited for
        raise InputError(f"There is no audio file {path}: check the path.")
    try:
        with path.open("rb") as file:
            samples, rate = soundfile.read(file, dtype="float64", always_2d=True)
    except (OSError, ValueError, soundfile.SoundFileError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "error_string", None)
        reason = str(reason or error).rstrip(".")
        raise InputError(
            f"{path} cannot be read as a sound ({reason}). Give a WAV, FLAC or OGG file."
        ) from error
    return samples, int(rate)


def waveform(sound: Sound) -> Waveform:
    """Return the least and the largest sample of each of at most 1,000 equal parts of a sound."""
    count = len(sound.samples)
    parts = min(count, 1000)
    starts = np.arange(parts) * count // parts
    extremes = [extreme.reduceat(sound.samples, starts) for extreme in (np.minimum, np.maximum)]
    return Waveform(sound.seconds, torch.from_numpy(np.stack(extremes, axis=1)))


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
    return Sound(samples.astype(np.float32), rate, name, sound.notes)


def encode_sound(
    checkpoint: Checkpoint, sound: Sound, *, truncate: bool = False
) -> tuple[dict[str, Tensor], str | None]:
    """Return the model's inputs for a sound at its sampling rate, and a note where it was cut."""
    processor: Any = checkpoint.processors.audio
    longest = getattr(processor, "n_samples", None)
    note = None
    if isinstance(longest, int):
        if len(sound.samples) > longest:
            most = f"{longest / sound.rate:g} s"
            if not truncate:
                raise InputError(
                    f"The sound is too long: {checkpoint.name} can read {most}, not "
                    f"{sound.seconds:.2f} s. Shorten it, or cut it with --truncate (truncate=True)."
                )
            note = f"sound cut from {sound.seconds:.2f} s to {most}"
        # Some processors pad every sound to this length.
        ways = "Check its preprocessor_config.json, or pass another processor=."
        what = f"the audio input of {checkpoint.name}"
        MemoryBudget(what, torch.device("cpu"), ways, ModelError).expect(4 * longest)
    inputs = processor([sound.samples], sampling_rate=sound.rate, return_tensors="pt")
    return dict(inputs), note


def sound_axis(
    checkpoint: Checkpoint, sound: Sound, steps: TimeSteps, inputs: dict[str, Tensor]
) -> Axis:
    """Return the axis of the frames; those after the end of the sound are special."""
    count = steps.frames(inputs[steps.argument].shape[steps.dim])
    if count < 1:
        raise InputError(
            f"The sound of {sound.seconds:.3f} s is too short for one frame of {checkpoint.name}. "
            "Give a longer one."
        )
    seconds = [frame * steps.stride * steps.seconds for frame in range(count)]
    is_added = [second >= sound.seconds for second in seconds]
    labels = [
        "[silence]" if added else f"{second:.2f} s"
        for second, added in zip(seconds, is_added, strict=True)
    ]
    return Axis.plain(labels, special=is_added, seconds=seconds)


def time_steps(checkpoint: Checkpoint, sound: Sound, inputs: dict[str, Tensor]) -> TimeSteps | None:
    """Return the time steps of a sound as the model reads it; None if they are unknown."""
    processor = checkpoint.processors.audio
    features = inputs.get("input_features")
    if (samples := inputs.get("input_values")) is not None:
        if samples.dim() != 2:
            return None
        steps = TimeSteps("input_values", 1, 1 / sound.rate)
    elif features is not None and features.dim() == 3:
        dim = 2 if features.shape[1] == getattr(processor, "feature_size", None) else 1
        hop = getattr(processor, "hop_length", None)
        seconds = hop / sound.rate if hop else sound.seconds / features.shape[dim]
        steps = TimeSteps("input_features", dim, seconds)
    else:
        return None
    for layer in _convolutions(checkpoint.module):
        steps = steps.after(layer)
    return steps


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
