"""A loaded model that answers for its attention: input → capture → proof → result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack, overload

import torch

from attnviz.inputs import AudioSource, ImageSource, Inputs, Many, parse_inputs
from attnviz.models.checkpoint import Checkpoint, load_checkpoint
from attnviz.models.devices import DeviceMap
from attnviz.pipeline.run import Mode, run
from attnviz.pipeline.streamed import Wanted
from attnviz.results import AgreementReport, AttentionResult
from attnviz.runtime.logs import unlogged

if TYPE_CHECKING:
    from transformers import (
        PreTrainedModel,
        PreTrainedTokenizerBase,
        ProcessorMixin,
        SequenceFeatureExtractor,
    )
    from transformers.image_processing_utils import BaseImageProcessor

    Processor: TypeAlias = (
        str | os.PathLike[str] | ProcessorMixin | BaseImageProcessor | SequenceFeatureExtractor
    )

Loadable: TypeAlias = "str | os.PathLike[str] | PreTrainedModel"


class _Either(TypedDict, total=False):
    """What `attend` takes beside one text or several."""

    sampling_rate: int | None
    truncate: bool
    generate: int | None
    mode: Mode
    layers: int | Sequence[int] | None
    heads: int | Sequence[int] | None
    cells: int | None
    top: int
    exact: int | Sequence[int] | None


class One(_Either, total=False):
    """What `attend` takes beside a text for one result."""

    image: ImageSource | None
    audio: AudioSource | None
    pair: str | None
    target: str | None


class Several(_Either, total=False):
    """What `attend` takes beside texts for a list of results."""

    image: Many[ImageSource] | None
    audio: Many[AudioSource] | None
    pair: Many[str] | None
    target: Many[str] | None


def load(
    name_or_path_or_model: Loadable | None = None,
    *,
    tokenizer: str | os.PathLike[str] | PreTrainedTokenizerBase | None = None,
    processor: Processor | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
    device_map: DeviceMap | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
) -> Model:
    """Load a pretrained model with its tokenizer and its processors.

    No code of a checkpoint is ever run, and there is no option for it: who trusts such code loads
    the model with transformers and passes the object.

    Parameters
    ----------
    name_or_path_or_model : a hub name ("bert-base-uncased"), a local folder, a transformers model
        that is already loaded (it is left as it is), or None for the bundled all-MiniLM-L6-v2.
    tokenizer : by default the one that lies beside the model.
    processor : what reads images or sounds, by default the one that lies beside the model: a
        processor, an image processor or a feature extractor, its folder or its hub name.
    device : "auto" takes CUDA where there is one.
    dtype : "float32", "bfloat16", …; None keeps what the weights were saved in.
    device_map : in the place of `device`, for a model too large for one (extra `large`): "auto"
        fills the GPUs, then the memory, then the disk; or for each module a device or "disk".
    offload_folder : for weights that go to the disk, and are not in a file as the model has them.

    Raises
    ------
    ModelError : the model cannot be found or trusted, its files do not go together, its weights
        are no numbers, or there is no memory for them.
    InputError : an unknown device or dtype, a `device_map` that does not fit, or an object that
        is no transformers model.
    """
    return Model(
        load_checkpoint(
            name_or_path_or_model,
            tokenizer=tokenizer,
            processor=processor,
            device=device,
            dtype=dtype,
            device_map=device_map,
            offload_folder=offload_folder,
        )
    )


@overload
def attend(
    text: str | None = None, *, model: Model | Loadable | None = None, **given: Unpack[One]
) -> AttentionResult: ...
@overload
def attend(
    text: Many[str] | None = None,
    *,
    model: Model | Loadable | None = None,
    **given: Unpack[Several],
) -> list[AttentionResult]: ...
def attend(
    text: str | Many[str] | None = None,
    *,
    image: ImageSource | Many[ImageSource] | None = None,
    audio: AudioSource | Many[AudioSource] | None = None,
    sampling_rate: int | None = None,
    pair: str | Many[str] | None = None,
    target: str | Many[str] | None = None,
    model: Model | Loadable | None = None,
    truncate: bool = False,
    generate: int | None = None,
    mode: Mode = "auto",
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
    cells: int | None = None,
    top: int = 0,
    exact: int | Sequence[int] | None = None,
) -> AttentionResult | list[AttentionResult]:
    """Run a model on a text, an image or a sound; return every head's attention, with its proof.

    What a model reads is seen from the model: text (BERT, Llama), images (ViT, DINOv2), sounds
    (wav2vec2), or both a text and an image (CLIP, LLaVA).

    The maps of a long text are not kept whole: they are reduced exactly while the model runs, and
    the result tells of each head what `MapSummary` holds.

    Parameters
    ----------
    text : one text, or several to run as one padded batch.
    image : a file, a Pillow image, or an array (height, width, 3) of uint8; or a list of these.
    audio : a WAV, FLAC or OGG file, or an array (samples,) of floats between -1 and 1; or a list of
        these.
    sampling_rate : of an array of samples, in samples a second.
    pair : the second text of a sentence pair (or one for each text).
    target : for an encoder–decoder, what the decoder is to say (or one for each input).
    model : from `load`, or what `load` takes; by default the bundled all-MiniLM-L6-v2.
    truncate : cut what is longer than the model can read, instead of refusing it.
    generate : let the model go on by itself for so many tokens, always the likeliest, and show how
        each of them attended to all before it.
    mode : "full" keeps what whole maps follow from, "streamed" reduces them; "auto" streams a text
        whose maps would hold more than 160 million weights, and where `cells` or `top` are given.
    layers, heads : of a streamed text, which to keep; all by default.
    cells : of a streamed text, how many rows and columns a map is pooled to at most; by default 500
        where few heads are kept, and as many as 64 MB hold else.
    top : of a streamed text, of how many keys to keep the weight for each query.
    exact : of a streamed text, the layers of which exact parts of the maps can be had, since
        Q, K and V are kept of them; by default those that are named in `layers`.

    Returns
    -------
    One result, or a list of them where several inputs were given.

    Raises
    ------
    InputError : an empty text, or one longer than the model can read; a file that holds no image
        or sound; something that the model does not read, or the lack of what it needs; too little
        memory for the maps.
    ModelError : the model's attention cannot be seen or verified, or it fails on this input.
    """
    model = model if isinstance(model, Model) else load(model)
    given = parse_inputs(
        text,
        pair=pair,
        target=target,
        image=image,
        audio=audio,
        sampling_rate=sampling_rate,
        generate=generate,
    )
    wanted = Wanted.of(layers, heads, cells, top, exact)
    results = model.attend_all(given, truncate=truncate, mode=mode, wanted=wanted)
    return results if given.several else results[0]


def verify(
    text: str | None = None,
    *,
    image: ImageSource | None = None,
    audio: AudioSource | None = None,
    sampling_rate: int | None = None,
    pair: str | None = None,
    target: str | None = None,
    model: Model | Loadable | None = None,
    truncate: bool = False,
    generate: int | None = None,
    mode: Mode = "auto",
) -> AgreementReport:
    """Run a model on a text, an image or a sound and report how its attention agrees with ours.

    Parameters and errors are those of `attend`.
    """
    result = attend(
        text,
        image=image,
        audio=audio,
        sampling_rate=sampling_rate,
        pair=pair,
        target=target,
        model=model,
        truncate=truncate,
        generate=generate,
        mode=mode,
    )
    return result.agreement


@dataclass(frozen=True, eq=False)
class Model:
    """A pretrained model with what reads its inputs; made by `load`."""

    checkpoint: Checkpoint

    @property
    def name(self) -> str:
        """What captions call the model."""
        return self.checkpoint.name

    @property
    def module(self) -> PreTrainedModel:
        """The transformers model."""
        return self.checkpoint.module

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The model's tokenizer; None where it reads no text."""
        return self.checkpoint.tokenizer

    @overload
    def attend(self, text: str | None = None, **given: Unpack[One]) -> AttentionResult: ...
    @overload
    def attend(
        self, text: Many[str] | None = None, **given: Unpack[Several]
    ) -> list[AttentionResult]: ...
    def attend(self, text: Any = None, **given: Any) -> AttentionResult | list[AttentionResult]:
        """Do what `attnviz.attend` does, with this model."""
        found: AttentionResult | list[AttentionResult] = attend(text, model=self, **given)
        return found

    @unlogged()
    def attend_all(
        self,
        given: Inputs,
        *,
        truncate: bool = False,
        mode: Mode = "auto",
        wanted: Wanted | None = None,
    ) -> list[AttentionResult]:
        """Return a result for each input: texts run as one batch, all else one by one."""
        return [
            result
            for part in given.batches()
            for result in run(
                self.checkpoint, part, truncate=truncate, mode=mode, wanted=wanted or Wanted()
            )
        ]
