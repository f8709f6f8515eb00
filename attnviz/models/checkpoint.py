"""Load a checkpoint: a model, its processors, and the SHA-256 of its weights."""

from __future__ import annotations

import copy
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attnviz.errors import InputError, ModelError, did_you_mean, is_unicode, one_line, refuse_given
from attnviz.models import BUNDLED, NAMED, NamedModel, pretrained
from attnviz.models.objects import ADAPTER, add_adapter, base_of_adapter, shadow_of, unwrap
from attnviz.models.pretrained import Processors
from attnviz.results.base import sums_of_words
from attnviz.runtime import libraries
from attnviz.runtime.compat import initialize, write_count

Location = str | os.PathLike[str]
SpecialTokens: TypeAlias = Literal["split", "parse"]
_TOKENIZER_FILES = (*pretrained.VOCABULARY_FILES, "*.json", "*.txt", "*.jinja")
_FOLDERS = "[!1]*/*"  # of a repository; not 1_Pooling, of sentence-transformers
_version_of = attrgetter("st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")  # of a file
_MODEL_FILES = (*_TOKENIZER_FILES, "model*.safetensors", ADAPTER)
_DTYPES = {
    "float32": torch.float32, "fp32": torch.float32, "float16": torch.float16,
    "fp16": torch.float16, "bfloat16": torch.bfloat16, "bf16": torch.bfloat16,
    "float64": torch.float64,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model, the processors of its inputs, and the fingerprint of its weights.

    The fingerprint is a SHA-256: of the safetensors file; of several shards, of their hexadecimal
    digests joined in the order of file names; of an adapter, of those of its base and of its own
    file; of an object, of name, dtype, shape and bytes of every tensor in its ``state_dict``, in
    the order of names, and of every other buffer that its class would compute otherwise.
    """

    name: str  # on the hub or of the folder; of an object, that in its config, or its class
    module: PreTrainedModel  # or any module of PyTorch, which reads `inputs=` alone
    processors: Processors
    sha256: str  # in hexadecimal
    versions: tuple[tuple[int, ...], ...]  # what changes when a tensor is written, when hashed
    special_tokens: SpecialTokens = "parse"  # as the tokens that are typed; "split": as plain text
    notes: tuple[str, ...] = ()  # which model was taken from an object
    loaded: Checkpoint | None = None  # of a shadow, the checkpoint with the model as it was loaded
    writes: int = 0  # of a shadow, how often the weights had been written when it was made
    lacks: str = ""  # which processor an object came without, and what to pass
    decodes: bool = False  # whether texts are those of its decoder

    def __repr__(self) -> str:
        return f"Checkpoint({self.name!r}, {type(self.module).__name__}, {self.sha256[:12]})"

    @property
    def device(self) -> torch.device:
        """The device on which the model takes its inputs."""
        return libraries.input_device(self.module)

    @property
    def is_pretrained(self) -> bool:
        """Whether it is a model of transformers, with a config, and not just any module."""
        return isinstance(self.module, PreTrainedModel)

    def expect_pretrained(self, reader: str) -> None:
        """Raise InputError for a module that transformers does not know; `reader` needs a text."""
        if not self.is_pretrained:
            raise InputError(
                f"{reader} reads texts with a model of transformers, and {self.name} is another "
                "module. Use attend, with inputs=, or record."
            )

    @cached_property
    def fits_vocabulary(self) -> bool | None:
        """Whether the embeddings are those of the tokenizer's vocabulary; None if not known."""
        if self.loaded is not None:
            return self.loaded.fits_vocabulary
        if self.tokenizer is None:
            return None
        try:
            return _fits_embeddings(self.module, self.tokenizer)
        except Exception:  # a tokenizer or a model of the user may lack any method
            return None

    def shadow(self) -> Checkpoint:
        """Return the same checkpoint with a shadow of its model, on which runs change nothing."""
        if self.loaded is not None:
            return self
        writes, (module, notes) = _writes(self.module), shadow_of(self.module)
        notes = (*self.notes, *notes)
        return replace(self, module=module, notes=notes, loaded=self, writes=writes)

    def expect_unwritten(self) -> None:
        """Raise ModelError if the weights were written since the shadow was made."""
        if self.loaded is not None and _writes(self.as_loaded) != self.writes:
            raise ModelError(
                f"The weights of {self.name} changed while attnviz read them, perhaps by an "
                "optimizer in another thread. Read them between its steps, or read a copy: "
                "copy.deepcopy(model)."
            )

    def expect_processors(self) -> None:
        """Raise InputError if the model came without what reads its inputs."""
        if self.lacks:
            raise InputError(self.lacks)

    @property
    def as_loaded(self) -> PreTrainedModel:
        """The model as it was loaded, also of a shadow."""
        return (self.loaded or self).module

    def reading(self, special_tokens: SpecialTokens | None) -> Checkpoint:
        """Return the same checkpoint that reads typed special tokens in this way, if one is."""
        if special_tokens in (None, self.special_tokens):
            return self
        if special_tokens not in ("split", "parse"):
            raise InputError(f"special_tokens must be split or parse, not {special_tokens!r}.")
        return replace(self, special_tokens=special_tokens)

    def writing(self, tokenizer: Location | PreTrainedTokenizerBase | None) -> Checkpoint:
        """Return the same checkpoint with the tokenizer of its decoder; None: the same for both."""
        if tokenizer is None:
            return self
        if not pretrained.has_text_decoder(self.module):
            why = f"{self.name} has no decoder that reads a text of its own. Leave it out."
            refuse_given(why, target_tokenizer=tokenizer)
        with pretrained.quiet():
            decoder = _read(tokenizer)
        _expect_vocabulary_fits(self.name, decoder, self.module.get_decoder())  # type: ignore[no-untyped-call]
        return replace(self, processors=replace(self.processors, decoder=decoder))

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer; None where the model takes no text, or came without one."""
        return self.processors.tokenizer

    @property
    def target_tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer of the decoder's text; None where its vocabulary is another, not given."""
        if self.processors.decoder is not None or not pretrained.has_text_decoder(self.module):
            return self.processors.decoder or self.tokenizer
        sides: Any = self.module.get_encoder, self.module.get_decoder
        rows = [pretrained.embedding_rows(side()) for side in sides]
        is_shared = None in rows or rows[0] == rows[1]
        # Some classes hold both vocabularies, and switch between them.
        switches = hasattr(self.tokenizer, "_switch_to_target_mode")
        return self.tokenizer if is_shared or switches else None

    @property
    def placeholders(self) -> dict[str, tuple[str, int]]:
        """The token, and its id, that stands in a text for each kind of input read within it."""
        processor, found = self.processors.multimodal, dict[str, tuple[str, int]]()
        for kind in ("image", "audio"):
            token = getattr(processor, f"{kind}_token", None)
            token_id = getattr(processor, f"{kind}_token_id", None)
            for name in ("id", "index"):
                token_id = getattr(self.module.config, f"{kind}_token_{name}", None) or token_id
            token = getattr(token, "content", token)
            if isinstance(token, str) and isinstance(token_id, int):
                found[kind] = token, token_id
        return found

    def current_sha256(self) -> str:
        """Return the SHA-256 of the current weights; they are hashed again if they changed."""
        module = self.as_loaded
        return self.sha256 if _versions(module) == self.versions else sha256_of_state(module)


def load_checkpoint(
    source: Location | nn.Module | Any = None,
    *,
    tokenizer: Location | PreTrainedTokenizerBase | None = None,
    processor: Any = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
    device_map: pretrained.DeviceMap | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
) -> Checkpoint:
    """Load a model, and check that every weight comes from its file: see `attnviz.load`."""
    if sys.flags.optimize > 1:
        raise InputError("python -OO removes docstrings, which transformers needs. Use python -O.")
    target, torch_dtype = libraries.one_device(device), _dtype(dtype)
    placement = pretrained.device_map_options(device_map, offload_folder, device)
    with pretrained.quiet():
        source, own_tokenizer, own_processor, notes = unwrap(source)
        if isinstance(source, nn.Module):
            why = "a model object is never changed. Give its folder or hub name."
            refuse_given(why, device_map=device_map)
            for used in libraries.devices(source):
                libraries.expect_float64(used)
            _expect_as_it_is(source, None if device == "auto" else target, torch_dtype)
            tokenizer = own_tokenizer if tokenizer is None else tokenizer
            processor = own_processor if processor is None else processor
            if not isinstance(source, PreTrainedModel):
                return _wrap_module(source, tokenizer, processor)
            return replace(_wrap(source, tokenizer, processor), notes=notes)
        name, folder = locate_checkpoint(source)
        if (base := base_of_adapter(name, folder)) is not None:
            refuse_given(f"{name} is a LoRA adapter. Leave it out.", device_map=device_map)
            if base_of_adapter(*locate_checkpoint(base)) is not None:
                raise ModelError(f"{name}: its base {base!r:.200} is an adapter, too. Merge it.")
            checkpoint = load_checkpoint(
                base, tokenizer=tokenizer, processor=processor, device=device, dtype=dtype
            )
            return _with_adapter(checkpoint, name, folder, own_tokenizer=tokenizer is None)
        config, model_class = pretrained.load_config(name, folder)
        files = pretrained.find_weights(name, folder, getattr(type(config), "extra_files", ()))
        with pretrained.translate(name, "the weights"):
            sha256 = _sha256_of_files(files)
        name = _title(name, None if source is None else folder, sha256)
        processors, _ = _processors((model_class, config), name, folder, tokenizer, processor)
        module = pretrained.load_model(
            name, folder, config, model_class, files, torch_dtype, placement
        )
        _expect_vocabulary_fits(name, processors.tokenizer, module)
        if not placement:
            module = pretrained.move(name, module, target)
        return Checkpoint(name, module, processors, sha256, _versions(module))


def _with_adapter(
    checkpoint: Checkpoint, name: str, folder: Path, *, own_tokenizer: bool
) -> Checkpoint:
    """Return a checkpoint with the adapter in a folder, which may have a tokenizer of its own."""
    with pretrained.translate(name, "the adapter"):
        sha256 = _sha256_of_files([folder / ADAPTER], checkpoint.sha256)
    module = add_adapter(name, folder, checkpoint.module)
    processors = checkpoint.processors
    if own_tokenizer and pretrained.has_vocabulary(folder):
        processors = replace(processors, tokenizer=pretrained.load_tokenizer(name, folder))
    _expect_vocabulary_fits(name, processors.tokenizer, module)
    notes = (f"the base model of the adapter is {checkpoint.name}",)
    return Checkpoint(name, module, processors, sha256, _versions(module), notes=notes)


def _title(name: str, folder: Path | None, sha256: str) -> str:
    """Return how figures name a model: one with a short name has a title, and known weights.

    folder : in which it is; None for the default model, which may come from the hub.
    """
    model = BUNDLED if name == BUNDLED.name else NAMED.get(name)
    if model is None or folder not in (None, model.folder):
        return name
    if sha256 != model.sha256:
        raise ModelError(
            f"{name}: the weights have SHA-256 {sha256}, not {model.sha256}: the file was changed. "
            f"{model.remedy}"
        )
    return model.title


def _wrap(
    module: PreTrainedModel, tokenizer: Location | PreTrainedTokenizerBase | None, processor: Any
) -> Checkpoint:
    name = str(module.config.name_or_path) or type(module).__name__
    folder = Path(name) if os.path.isdir(name) else None  # noqa: PTH112
    if folder is not None:
        name = folder.resolve().name
    if any(hasattr(parameter, "full_tensor") for parameter in module.parameters()):  # DTensors
        raise InputError(
            f"{name}: tensor parallelism is not supported, and several processes share the weights "
            "of this model. Load it in one process with device_map='auto'."
        )
    processors, lacks = _processors((module, module.config), name, folder, tokenizer, processor)
    _expect_vocabulary_fits(name, processors.tokenizer, module)
    sha256, versions = sha256_of_state(module), _versions(module)
    return Checkpoint(name, module, processors, sha256, versions, lacks=lacks)


def _wrap_module(module: Any, tokenizer: Any, processor: Any) -> Checkpoint:
    """Return a checkpoint of a module that transformers does not know."""
    name = type(module).__name__
    why = f"{name} is no model of transformers, and reads tensors. Leave it out."
    refuse_given(why, tokenizer=tokenizer, processor=processor)
    names = ", ".join(f"'{one}': …" for one in pretrained.forward_parameters(module)[:1])
    lacks = f"{name} reads tensors. Give them by the names of its forward: inputs={{{names}}}."
    digests = sha256_of_state(module), _versions(module)
    return Checkpoint(name, module, Processors(), *digests, lacks=lacks)


def _processors(
    model: tuple[Any, Any],
    name: str,
    folder: Path | None,
    tokenizer: Location | PreTrainedTokenizerBase | None,
    processor: Any,
) -> tuple[Processors, str]:
    """Return the processors of a model (its class or itself, and its config), and what it lacks."""
    kinds, is_object = pretrained.input_kinds(model[0]), isinstance(model[0], PreTrainedModel)
    processors = Processors()
    if isinstance(processor, str | os.PathLike):
        processors = pretrained.load_processors(*locate_checkpoint(processor), kinds)
    elif processor is not None:
        processors = Processors.of(processor)
    elif folder is not None:
        processors = pretrained.load_processors(name, folder, kinds)
    absent = [kind for kind in kinds if kind != "text" and getattr(processors, kind) is None]
    lacks = "" if not absent else (
        f"{name}: there is no processor that reads {absent[0]}. Pass processor= "
        "(a processor, image processor or feature extractor, its folder or its hub name)."
    )  # fmt: skip
    if lacks and (processor is not None or not is_object):
        raise (InputError if is_object else ModelError)(lacks)
    reads_text = "text" in kinds or pretrained.has_text_decoder(*model)
    if tokenizer is None and reads_text and processors.tokenizer is None:
        if folder is not None and (not is_object or pretrained.has_vocabulary(folder)):
            tokenizer = pretrained.load_tokenizer(name, folder)
        else:
            lacks = lacks or (
                f"{name}: this model object comes without a tokenizer. Pass tokenizer= (a "
                "tokenizer, its folder or its hub name)."
            )
    return processors if tokenizer is None else replace(
        processors, tokenizer=_read(tokenizer)
    ), lacks


def _read(tokenizer: Location | PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return tokenizer
    return pretrained.load_tokenizer(*locate_checkpoint(tokenizer, _TOKENIZER_FILES))


def _expect_vocabulary_fits(
    name: str, tokenizer: PreTrainedTokenizerBase | None, module: PreTrainedModel
) -> None:
    rows = pretrained.embedding_rows(module)
    if tokenizer is not None and rows is not None and len(tokenizer) > rows:
        raise ModelError(
            f"{name}: the tokenizer has {len(tokenizer)} entries, and the embedding only {rows} "
            "rows. Pass the tokenizer= of this model."
        )


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if isinstance(dtype, str) and dtype in _DTYPES:
        return _DTYPES[dtype]
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype in _DTYPES.values()):
        return dtype
    raise InputError(
        f"{dtype!r} is not a dtype: use None (as saved), {', '.join(_DTYPES)} or a torch.dtype of "
        "these."
    )


def _expect_as_it_is(
    module: nn.Module, device: torch.device | None, dtype: torch.dtype | None
) -> None:
    current, own = libraries.input_device(module), libraries.dtype_of(module)
    is_elsewhere = device is not None and (
        (device.type, device.index or 0) != (current.type, current.index or 0)
    )
    if is_elsewhere or (dtype is not None and dtype != own):
        raise InputError(
            f"The model object is on {current} in {own}, not on {device or current} in "
            f"{dtype or own}. It is never changed: call model.to(...) yourself."
        )


def _versions(module: nn.Module) -> tuple[tuple[int, ...], ...]:
    """Return what changes when a tensor is written; cheaper than a hash.

    Of each tensor: its address, and how often it was written; of all first rows and columns a sum
    of the words, because `.data` and numpy write without being counted. Packed ones never change.
    """
    state = module.state_dict()
    unsaved = (buffer for name, buffer in module.named_buffers() if name not in state)
    values = [*state.values(), *unsaved]
    parts = [part for value in values if isinstance(value, Tensor) for part in _parts(value)]
    tensors = [part for part in parts if not part.is_meta]
    writes = ((t.data_ptr(), 0 if t.is_inference() else write_count(t)) for t in tensors)
    edges: dict[object, list[Tensor]] = {}  # joined, for which a device is launched once
    for tensor in tensors:
        if tensor.numel() and not tensor.is_quantized:
            rows = tensor.detach().reshape(len(tensor) if tensor.dim() > 1 else 1, -1)
            edges.setdefault((tensor.device, tensor.dtype), []).extend((rows[0], rows[:, 0]))
    return (*writes, tuple(sums_of_words([torch.cat(some) for some in edges.values()])))


def _writes(module: nn.Module) -> int:
    return sum(write_count(one) for one in module.parameters() if not one.is_inference())


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors of bytes in which a tensor of another class, as a quantized one, lies."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _parts(getattr(tensor, name))


def changed_buffers(model: nn.Module) -> tuple[str, ...]:
    """Return the names of buffers in no ``state_dict`` that differ from what their class computes.

    The class computes them once more, in a copy of the module without its weights. Nothing is known
    of the buffers that it sets elsewhere.
    """
    modules, differ = dict(model.named_modules()), list[str]()
    owners = {path: one for path, one in modules.items() if isinstance(one, PreTrainedModel)}
    places = {name.rpartition(".")[0] for name, _ in model.named_buffers(remove_duplicate=False)}
    for path in filter(places.__contains__, modules):
        module = modules[path]
        owned = dict(module.named_buffers(recurse=False))
        if not (unsaved := owned.keys() - module.state_dict().keys()):
            continue
        # The innermost model around the module: modules come in the order of the tree.
        around = reversed(owners.items())
        owner = next((m for p, m in around if f"{path}.".startswith(f"{p}.".lstrip("."))), None)
        if owner is None:
            continue
        with suppress(Exception), torch.no_grad():  # a module of the user may do anything
            others = {id(t): torch.empty_like(t, device="meta") for t in module.parameters()}
            others |= {id(buffer): buffer.clone() for buffer in owned.values()}
            fresh = copy.deepcopy(module, {**others, id(owner.config): owner.config})
            initialize(owner, fresh)
            for name in unsaved:
                buffer, own = fresh.get_buffer(name), owned[name]
                if write_count(buffer) and not own.is_meta and not torch.equal(buffer, own):
                    differ.append(f"{path}.{name}".lstrip("."))
    return tuple(differ)


def sha256_of_state(module: nn.Module) -> str:
    """Return the SHA-256 of the weights of a module, as a `Checkpoint` has it."""
    digest = hashlib.sha256()
    buffers = dict(module.named_buffers())
    changed = ((name, buffers[name]) for name in sorted(changed_buffers(module)) if name in buffers)
    for key, tensor in (*libraries.whole_weights(module), *changed):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        whole = tensor.to_dense().cpu().contiguous().reshape(-1)
        tensor_bytes: Any = whole.view(torch.uint8).numpy()
        digest.update(tensor_bytes)
    return digest.hexdigest()


def _sha256_of_files(files: Sequence[Path], *before: str) -> str:
    """Return the SHA-256 of one file; of several, or after others, of the joined hex digests."""
    digests = [*before, *(_sha256_of_file(file, _version_of(file.stat())) for file in files)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


@lru_cache(64)
def _sha256_of_file(file: Path, version: tuple[int, ...]) -> str:
    """Return the SHA-256 of a file, read once; version : what changes when it is written."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


_SHORTEST = 4  # letters of a token that another one continues
_LONGEST = 2  # letters of its ending
_FEWEST, _MOST = 50, 2000  # pairs, and tokens of a vocabulary
_SURE = 5  # standard errors
_SPREAD = 2  # times that of norms in an embedding that was drawn at random


def _fits_embeddings(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> bool | None:
    """Return whether tokens that are spelled alike ("walk", "walks") have similar embeddings.

    Not if the tokenizer numbers them in another way. None for a model that was not trained, or has
    no table of tokens, or where few tokens are spelled alike.
    """
    if (embedding := pretrained.embedding_of(module)) is None:
        return None
    weight = embedding.weight
    if weight.is_meta:
        return None
    norms = weight.detach()[:: 1 + len(weight) // _MOST].double().norm(dim=1)
    at_random = (2 * weight.shape[1]) ** -0.5  # the standard deviation, relative to the mean
    if not norms.std() > _SPREAD * at_random * norms.mean():
        return None
    pairs = [pair for pair in _spelled_alike(tokenizer) if max(pair) < len(weight)]
    if len(pairs) < _FEWEST:
        return None
    first, second = (weight.detach()[list(ids)].double().cpu() for ids in zip(*pairs, strict=True))
    others = second.roll(len(second) // 2, 0)  # the partners of other pairs
    cosine = torch.nn.functional.cosine_similarity
    gains = cosine(first, second) - cosine(first, others)
    return bool(gains.mean() > _SURE * gains.std() / len(gains) ** 0.5)


def _spelled_alike(tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, int]]:
    """Return ids of sampled tokens, one of which is the other with one or two letters more."""
    sample = range(0, len(tokenizer), 1 + len(tokenizer) // _MOST)
    tokens = tokenizer.convert_ids_to_tokens(list(sample))
    endings = [
        (token[:-length], number)
        for number, token in zip(sample, tokens, strict=True)
        for length in range(1, _LONGEST + 1)
        if token and len(token) >= _SHORTEST + length and token[-length:].isalpha()
    ]
    stems: Any = tokenizer.convert_tokens_to_ids([stem for stem, _ in endings])
    return [
        (stem, number)
        for stem, (_, number) in zip(stems, endings, strict=True)
        if stem not in (None, tokenizer.unk_token_id)
    ]


def locate_checkpoint(
    source: Location | None, patterns: tuple[str, ...] = _MODEL_FILES
) -> tuple[str, Path]:
    """Return name and folder of a checkpoint; `patterns` are the files to fetch from the hub."""
    if source is None:
        return _expect_here(BUNDLED, patterns)
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            f"{type(source).__name__} is not a checkpoint: give a folder, a hub name, or a model "
            "or tokenizer of transformers."
        )
    text = os.fspath(source)
    path = os.path.expanduser(text)  # noqa: PTH111  os.path takes any text, even with a NUL
    if os.path.isdir(path):  # noqa: PTH112
        if not os.access(path, os.R_OK | os.X_OK):
            raise ModelError(f"{text!r} cannot be read: change its permissions, or copy it.")
        if not is_unicode(str(path)):
            raise ModelError(f"The name of the folder {text!r} is not UTF-8. Rename the folder.")
        return Path(path).resolve().name or path, Path(path)
    if os.path.isfile(path):  # noqa: PTH113
        raise ModelError(f"{text!r} is a file{_of_a_file(Path(path))}")
    if not isinstance(source, str) or text.startswith((".", "/", "~")) or text.count(os.sep) > 1:
        raise ModelError(f"There is no folder {text!r}: check the path.")
    if text in NAMED:
        return _expect_here(NAMED[text], patterns)
    return text, _fetch(text, patterns)


def _expect_here(model: NamedModel, patterns: tuple[str, ...]) -> tuple[str, Path]:
    """Return name and folder of a named model; that of a package is on the hub, too."""
    if model.is_here:
        return model.name, model.folder
    where = "on this machine"
    if model.package:
        with suppress(ModelError):
            return model.name, _fetch(model.repository, patterns)
        where += f", and {model.repository} is not reachable on the hub"
    raise ModelError(f"{model.name} is not {where}. {model.remedy}")


def _of_a_file(file: Path) -> str:
    """Return what to give in place of a file."""
    if file.suffix == ".gguf":
        return f" of llama.cpp. {pretrained.gguf_advice(file)}"
    if (file.parent / "config.json").is_file() or "tokenizer" in file.name:
        return ": give the folder that it lies in."
    load = "torch.load({}, weights_only=True)"
    if file.suffix == ".safetensors":
        load = "safetensors.torch.load_file({})"
    return (
        " without a config.json beside it, which would name its model. Build the model in Python, "
        f"call model.load_state_dict({load.format(repr(file.name))}), and pass the model."
    )


def _fetch(name: str, patterns: tuple[str, ...]) -> Path:
    """Return the local copy of a hub repository, brought up to date if the hub answers."""
    from huggingface_hub import errors, snapshot_download, try_to_load_from_cache

    similar = did_you_mean(name, list(NAMED))
    try:
        return Path(snapshot_download(name, allow_patterns=[*patterns], ignore_patterns=[_FOLDERS]))
    except errors.HFValidationError:
        reason = "this is not a hub name. Give a folder or 'owner/name'."
    except errors.GatedRepoError:
        reason = "it is gated. Ask for access on its page, then run 'hf auth login'."
    except errors.RepositoryNotFoundError:
        reason = f"there is no such public model. {similar or 'Check the spelling.'}"
    except Exception as error:  # no network, a proxy, a timeout: use an older copy
        if isinstance(cached := try_to_load_from_cache(name, "config.json"), str):
            return Path(cached).parent
        has_none = isinstance(error, errors.LocalEntryNotFoundError)
        problem = "no connection, and no copy in the cache" if has_none else one_line(error)
        reason = f"{problem}. {similar or 'Check name and network, or give a folder.'}"
    raise ModelError(f"{name!r} is neither a folder nor reachable on the hub: {reason}")
