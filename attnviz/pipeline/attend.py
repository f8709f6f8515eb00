"""Load a model, run it on inputs, and return its attention with the verdict on every head."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack, cast, overload

import torch

from attnviz.agreement import verify_saved
from attnviz.errors import InputError, refuse_given, true_or_false
from attnviz.inputs import ArgumentSource, Inputs, Many, parse_arguments, parse_inputs
from attnviz.inputs.audio import AudioSource
from attnviz.inputs.image import ImageSource
from attnviz.inputs.tokens import Chat, TextSource, TokensSource
from attnviz.models.checkpoint import Checkpoint, SpecialTokens, load_checkpoint
from attnviz.models.pretrained import DeviceMap
from attnviz.pipeline import AttendOptions, Mode, Positions, run
from attnviz.results import AgreementReport, AttentionResult, one_result
from attnviz.results.arguments import checked_scalars
from attnviz.runtime.libraries import dtype_of, silence_logs

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import (
        Pipeline,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        ProcessorMixin,
        SequenceFeatureExtractor,
        Trainer,
    )
    from transformers.image_processing_utils import BaseImageProcessor

    Processor: TypeAlias = (
        str | os.PathLike[str] | ProcessorMixin | BaseImageProcessor | SequenceFeatureExtractor
    )

# A module may be what holds the model: compiled, with adapters, of sentence-transformers.
Loadable: TypeAlias = (
    "str | os.PathLike[str] | PreTrainedModel | Module | Pipeline | Trainer | partial[Model]"
)


class _Reading(TypedDict, total=False):
    """The keywords of `attend` that all analyses take."""

    sampling_rate: int | None
    inputs: ArgumentSource | None
    queries: Sequence[str] | None
    keys: Sequence[str] | None
    truncate: bool
    special_tokens: SpecialTokens | None


class _Options(_Reading, total=False):
    """The keywords of `attend` that are the same for one text and for several."""

    generate: int | None
    mode: Mode
    layers: int | Sequence[int] | None
    heads: int | Sequence[int] | None
    cells: int | None
    top: int
    exact: int | Sequence[int] | None
    positions: Positions


class OneInput(_Options, total=False):
    """The keywords of `attend` that give one result."""

    image: ImageSource | None
    audio: AudioSource | None
    pair: str | None
    target: TokensSource | None


class Source(_Reading, total=False):
    """The inputs of `attend` in analyses, where `target` may be what is explained."""

    image: ImageSource | Many[ImageSource] | None
    audio: AudioSource | Many[AudioSource] | None
    pair: str | Many[str] | None


class SeveralInputs(_Options, Source, total=False):
    """The keywords of `attend` that may give a list of results."""

    target: TokensSource | Many[str] | Many[TokensSource] | None


def load(
    name_or_path_or_model: Loadable | None = None,
    *,
    tokenizer: str | os.PathLike[str] | PreTrainedTokenizerBase | None = None,
    processor: Processor | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
    device_map: DeviceMap | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
    special_tokens: SpecialTokens = "parse",
    target_tokenizer: str | os.PathLike[str] | PreTrainedTokenizerBase | None = None,
) -> Model:
    """Load a pretrained model with its tokenizer and its processors.

    No code of a checkpoint ever runs, and no option allows it. If you trust such code, load the
    model with transformers and pass the object.

    Parameters
    ----------
    name_or_path_or_model : str, path, PreTrainedModel, an object that holds one, or None
        A name on the Hugging Face hub ("bert-base-uncased"), a local folder, or a short name of
        scripts/fetch_models.py: smollm2, gemma3-270m, whisper-tiny.en, whisper-base, dinov2-small,
        rxnmapper, rxnfp, antiberty. By default the bundled all-MiniLM-L6-v2. A folder may hold only
        a LoRA adapter of peft: its base model is loaded, too.

        Or a model that is already loaded (it is not changed), of transformers, or any module of
        PyTorch, which reads `inputs` of `attend`. A model of transformers is taken out of
        ``torch.compile(model)``, a `PeftModel`, a `SentenceTransformer`, `DataParallel`, a pipeline
        or a `Trainer`; `Model.notes` says so. A `functools.partial` of this function is called once
        other arguments have been checked.
    tokenizer : str, path, PreTrainedTokenizerBase or None
        Another tokenizer; by default the one of the model.
    processor : str, path, processor, image processor, feature extractor or None
        Processes images or audio; by default the one of the model.
    device : str or torch.device
        Device to run on: "cpu", "cuda", "cuda:N", or "auto": CUDA if available, else the CPU.
    dtype : str, torch.dtype or None
        "float32", "float16", "bfloat16" or "float64"; by default as the weights were saved.
    device_map : str, device, mapping or None
        Instead of `device`, for a model too large for one (extra `large`): "auto" fills the GPUs,
        then the memory, then the disk; or "balanced", "balanced_low_0", "sequential", "disk".

        Or a device or "disk" for each module.
    offload_folder : str, path or None
        Where weights are written that go to the disk and lie in no file as the model has them.
    special_tokens : "parse" or "split"
        How special tokens that are typed in a text ("[MASK]", chat markers) are read: as the tokens
        that they name, which is how the tokenizer itself reads them, or as plain text.
    target_tokenizer : str, path, PreTrainedTokenizerBase or None
        The tokenizer of the decoder's text, where the decoder of an encoder–decoder has another
        vocabulary than its encoder.

    Raises
    ------
    ModelError
        The model is not found, needs remote code, its files do not fit together, its weights are
        not finite, or do not fit in memory.
    InputError
        The device or dtype is unknown, `device_map` does not fit the model, or the object is no
        transformers model.
    OutputError
        The folder for offloaded weights cannot be written.

    Examples
    --------
    >>> import attnviz
    >>> model = attnviz.load()  # or a name on the hub, a folder, a model object
    >>> model.name
    'all-MiniLM-L6-v2'
    >>> model.attend("the train left the station").agreement.verdict
    'verified'
    """
    if isinstance(name_or_path_or_model, partial):
        return name_or_path_or_model()
    checkpoint = load_checkpoint(
        name_or_path_or_model,
        tokenizer=tokenizer,
        processor=processor,
        device=device,
        dtype=dtype,
        device_map=device_map,
        offload_folder=offload_folder,
    )
    return Model(checkpoint.reading(special_tokens).writing(target_tokenizer))


@overload
def attend(
    text: TextSource | None = None,
    *,
    model: Model | Loadable | None = None,
    **inputs: Unpack[OneInput],
) -> AttentionResult: ...
@overload
def attend(
    text: Many[str] | Many[TextSource] | None = None,
    *,
    model: Model | Loadable | None = None,
    **inputs: Unpack[SeveralInputs],
) -> list[AttentionResult]: ...
@checked_scalars
def attend(
    text: TextSource | Many[str] | Many[TextSource] | None = None,
    *,
    image: ImageSource | Many[ImageSource] | None = None,
    audio: AudioSource | Many[AudioSource] | None = None,
    sampling_rate: int | None = None,
    pair: str | Many[str] | None = None,
    target: TokensSource | Many[str] | Many[TokensSource] | None = None,
    inputs: ArgumentSource | None = None,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    model: Model | Loadable | None = None,
    truncate: bool = False,
    special_tokens: SpecialTokens | None = None,
    generate: int | None = None,
    mode: Mode = "auto",
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
    cells: int | None = None,
    top: int = 0,
    exact: int | Sequence[int] | None = None,
    positions: Positions = "sample",
) -> AttentionResult | list[AttentionResult]:
    """Run a model and return the attention of every head, verified.

    The inputs follow from the model: text (BERT, Llama), images (ViT, DINOv2), audio (wav2vec2), or
    text with an image (CLIP, LLaVA).

    The maps of a long text are not stored whole: they are reduced exactly while the model runs, and
    the result holds a `MapSummary` of each head.

    Parameters
    ----------
    text : str, ids, BatchEncoding, messages, a list of these, or None
        The text for the model to read.

        Several texts run as one padded batch. A text may also be the ids of its tokens, special
        ones included (a list, an array or a tensor); the output of a tokenizer, whose padding is
        left out; or the messages of a chat, ``[{"role": "user", "content": …}]``, which the chat
        template of the tokenizer turns into a text, with a prompt for an answer where tokens are
        generated.
    image : path, PIL.Image, array, tensor, or a list of these
        An image file (.png, .jpg, …).

        Or a Pillow image, or an array or tensor (height, width, 3), (3, height, width) or (height,
        width), of uint8 or of floats between 0 and 1. With one more dimension before these, it is a
        video.
    audio : path, array, tensor, mapping, or a list of these
        A WAV, FLAC or OGG file.

        Or an array or tensor (samples,), (channels, samples) or (samples, channels) of floats
        between -1 and 1, or ``{"array": …, "sampling_rate": …}``.
    sampling_rate : int or None
        Samples a second of a sound that is no file.
    pair : str, list of str or None
        The second text of a sentence pair.

        Or one for each text.
    target : str, ids, BatchEncoding, a list of these, or None
        The text for the decoder of an encoder–decoder. A model that writes the text of a sound
        needs none: by default it is the model's own transcript.

        Or one for each input; or the ids that the tokenizer makes of it
        (``tokenizer(text_target=…)``). The decoder reads them shifted by one.
    inputs : mapping, path or None
        A file (.safetensors, .npz, .json) of arguments of the model's forward by their names, in
        place of all other inputs.

        Or a mapping of them, or a tuple in their order: whatever a processor or a data loader
        gives (``position_ids``, ``past_values``, boxes, masks of any shape, frames of a video).
        They reach the model as they are. A module that is no model of transformers reads these
        alone.
    queries, keys : sequence of str, optional
        Labels of the rows, and of the columns, of the maps of `inputs`.
    model : Model, str, path, PreTrainedModel, an object that holds one, or None
        From `load`, or what `load` takes; by default the bundled all-MiniLM-L6-v2.
    truncate : bool
        Cut an input that is longer than the model can read; otherwise it is an error.
    special_tokens : "parse", "split" or None
        As in `load`; by default as the model was loaded.
    generate : int or None
        Number of tokens to generate greedily; their attention to all earlier tokens is included.
    mode : "auto", "full" or "streamed"
        "full" stores whole maps, "streamed" reduces them while the model runs. "auto" streams a
        text whose maps would hold more than 160 million weights, and where `cells` or `top` are
        given.
    layers : int, sequence of int or None
        The layers to store; -1 is the last; by default all. The verdict is of all.
    heads : int, sequence of int or None
        The heads of a streamed text to store; by default all. Whole maps and linear attention have
        all heads of a layer.
    cells : int or None
        The most rows and columns to which a map of a streamed text is pooled; by default 500 for
        few heads, fewer for many, so that all maps take at most 64 MB.
    top : int
        The number of keys of a streamed text whose weights are stored exactly for each query.
    exact : int, sequence of int or None
        The layers of a streamed text whose Q, K and V are stored, so that exact parts of the maps
        can be computed later; by default those named in `layers`.
    positions : "sample" or "all"
        How to check which token, patch or frame each row of a map is. "sample" changes all in a few
        runs, by a code, but only three frames of a sound. "all" changes them one at a time and
        follows every attention. It reads an image or a sound up to 32,768 positions in total.

    Returns
    -------
    AttentionResult or list of AttentionResult
        A list if several inputs were given.

    Raises
    ------
    InputError
        A text is empty or longer than the model can read, a file holds no image or audio, the model
        does not read such an input or needs another one, or the maps do not fit in memory.
    ModelError
        The model's attention cannot be captured or verified, or the model fails on this input.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station")
    >>> result.words
    ('[CLS]', 'the', 'train', 'left', 'the', 'station', '[SEP]')
    >>> result.weights(layer=5, head=3).shape  # queries × keys
    torch.Size([7, 7])
    >>> result.agreement.verdict
    'verified'
    """
    parsed = parse_inputs(
        text,
        pair=pair,
        target=target,
        image=image,
        audio=audio,
        sampling_rate=sampling_rate,
        inputs=inputs,
        queries=queries,
        keys=keys,
        generate=generate,
    )
    options = AttendOptions.parse(
        truncate=truncate,
        mode=mode,
        layers=layers,
        heads=heads,
        cells=cells,
        top=top,
        exact=exact,
        positions=positions,
    )
    model = model if isinstance(model, Model) else load(model)
    checkpoint = model.checkpoint.reading(special_tokens).shadow()
    if checkpoint.lacks and inputs is not None:  # ids are a text where there is a tokenizer
        parsed = Inputs(generate=generate, arguments=parse_arguments(inputs, queries, keys))
    # Texts run as one batch. Padding would change the attention of an image or a sound, and
    # generated texts differ in length.
    alone = parsed.arguments is None and (parsed.pictures or parsed.sounds or parsed.generate)
    batches = parsed.one_by_one() if alone else [parsed]
    with silence_logs():
        results = [result for batch in batches for result in run(checkpoint, batch, options)]
    checkpoint.expect_unwritten()
    return results if parsed.several or len(results) > 1 else results[0]


def attended(
    source: TextSource | AttentionResult | None, model: Model | Loadable | None, inputs: OneInput
) -> AttentionResult:
    """Return a result as it is, or that of `attend`; raise InputError for both at once."""
    if isinstance(source, list) and any(isinstance(one, AttentionResult) for one in source):
        one_result(source)  # raises
    if not isinstance(source, AttentionResult):
        return one_result(attend(source, model=model, **inputs), streamed=True)
    why = "a result holds what was read, and no model runs. Leave it out, or give a text."
    refuse_given(why, model=model, **inputs)
    return source


def parse_source(
    reader: str,
    model: Model | Loadable | None,
    text: Any,
    source: Source,
    *,
    several: bool = False,
    media: bool = False,
) -> tuple[Model, Inputs, bool]:
    """Return a model of texts, what it reads, and whether this may be cut.

    InputError, with the `reader`'s name, for an image or a sound, unless `media` may be read, and
    for `several` texts. A chat ends with a prompt for an answer if the model generates tokens.
    """
    keywords: dict[str, Any] = dict(source)
    for name in keywords.keys() - Source.__annotations__.keys() - {"target"}:
        raise TypeError(f"{reader}() got an unexpected keyword argument {name!r}")
    for name in ("target", *(() if media else ("image", "audio", "sampling_rate"))):
        if keywords.pop(name, None) is not None:
            raise InputError(f"{reader} reads text only. Leave {name} out, or use attend.")
    truncate = true_or_false(keywords.pop("truncate", False), "truncate")
    special_tokens = keywords.pop("special_tokens", None)
    inputs = parse_inputs(text, generate=1, **keywords)  # which prompts a chat
    if inputs.several and not several:
        noun = "text" if inputs.texts else "input"
        raise InputError(f"{reader} reads one {noun} at a time. Call it for each of the list.")
    if sum(one is not None for one in (inputs.texts, inputs.pictures, inputs.sounds)) > 1:
        raise InputError(f"{reader} reads one text, one sound or one picture. Give one of them.")
    model = model if isinstance(model, Model) else load(model)
    model.checkpoint.expect_pretrained(reader)
    model = Model(model.checkpoint.reading(special_tokens).shadow())
    if inputs.texts is not None and not model.module.can_generate():
        texts = [replace(t, prompted=False) if isinstance(t, Chat) else t for t in inputs.texts]
        inputs = replace(inputs, texts=texts)
    return model, replace(inputs, generate=None), truncate


@checked_scalars
def verify(
    text: TextSource | AttentionResult | None = None,
    *,
    model: Model | Loadable | None = None,
    **inputs: Unpack[OneInput],
) -> AgreementReport:
    """Run a model and return how its attention agrees with the formula.

    Parameters
    ----------
    text : what `attend` reads, AttentionResult, or None
        A result, such as one from `load_result`, is recomputed from what it holds; no model runs.
    model, **inputs
        As in `attend`, with all its arguments.

    Returns
    -------
    AgreementReport
        The verdict, and the difference in each stage of each head. Several texts have one report.

    Raises
    ------
    InputError, ModelError
        As in `attend`; InputError also for a model or an input beside a result.

    Examples
    --------
    >>> import attnviz
    >>> report = attnviz.verify("the train left the station")
    >>> report.verdict
    'verified'
    >>> report.largest_difference() < 1e-5
    True
    """
    if isinstance(text, AttentionResult):
        return verify_saved(attended(text, model, inputs))
    result = cast("AttentionResult | list[AttentionResult]", attend(text, model=model, **inputs))
    if isinstance(result, AttentionResult):
        return result.agreement
    return AgreementReport.joined(one.agreement for one in result)  # of several texts


@dataclass(frozen=True, eq=False)
class Model:
    """A pretrained model with its tokenizer and processors; see `load`.

    Examples
    --------
    >>> import attnviz
    >>> model = attnviz.load(dtype="float64")
    >>> first, second = model.attend(["the train left", "the train left the station"])
    >>> first.tokens
    ('[CLS]', 'the', 'train', 'left', '[SEP]')
    >>> type(model.module).__name__  # the model of transformers
    'BertModel'
    """

    checkpoint: Checkpoint

    def __repr__(self) -> str:
        place = f"{self.checkpoint.device}, {dtype_of(self.module)}"
        return f"Model({self.name!r}, {type(self.module).__name__}, {place})"

    @property
    def name(self) -> str:
        """The name of the model in captions."""
        return self.checkpoint.name

    @property
    def module(self) -> PreTrainedModel:
        """The model of transformers, or the module that was given."""
        return self.checkpoint.module

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | Any:
        """The model's tokenizer; None if it reads no text."""
        return self.checkpoint.tokenizer

    @property
    def notes(self) -> tuple[str, ...]:
        """Which model was taken from an object that holds one."""
        return self.checkpoint.notes

    @overload
    def attend(
        self, text: TextSource | None = None, **inputs: Unpack[OneInput]
    ) -> AttentionResult: ...
    @overload
    def attend(
        self, text: Many[str] | Many[TextSource] | None = None, **inputs: Unpack[SeveralInputs]
    ) -> list[AttentionResult]: ...
    def attend(self, text: Any = None, **inputs: Any) -> AttentionResult | list[AttentionResult]:
        """Run this model; see `attnviz.attend`."""
        result: AttentionResult | list[AttentionResult] = attend(text, model=self, **inputs)
        return result
