"""Inputs for any model, from the signature of its forward method and its configuration.

Two texts of different lengths (the second is padded), two different images, two audio clips. If
several shapes fit the signature, all of them are tried, the most likely first.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures import audio, images
from architectures.media import BATCH, LENGTH, Inputs, Request
from architectures.placeholders import place
from architectures.rules import TOKEN
from architectures.settings import find, parts
from architectures.special import CLASSES, LATE, SPECIAL
from architectures.special.texts import ended

PADDED, TARGET = 4, 10


def candidates(model: PreTrainedModel, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield candidate dictionaries of keyword inputs, the most likely first."""
    names = _names(model)
    words = text(_request(model, names, seed))
    for picture, sound in _media(model, names, seed):
        yield words | picture | sound
    without = {name: needed for name, needed in names.items() if name != "input_ids"}
    if (len(without) < len(names) and "pixel_values" in names) or "input_features" in names:
        # some models take a text instead of these inputs, not with them
        target = {name: words[name] for name in {"decoder_input_ids"} & set(words)}
        for picture, sound in _media(model, without, seed):
            yield target | picture | sound


def _media(model: PreTrainedModel, names: dict[str, bool], seed: int) -> Iterator[tuple]:
    """Yield pairs of image and audio inputs; either is empty if the model takes none."""
    return product(
        images.candidates(_request(model, names, seed)),
        audio.candidates(_request(model, names, seed)),
    )


def complete(model: PreTrainedModel, architecture: str, candidate: dict, seed: int = 0) -> dict:
    """Add placeholders for images and audio, and the extra inputs that some models need."""
    names = _names(model)
    inputs = dict(candidate)
    for special in _special(model, architecture):
        inputs |= special(_request(model, names, seed), inputs)
    inputs = {name: value for name, value in inputs.items() if value is not None}
    place(model, inputs)
    if "ForMultipleChoice" in type(model).__name__:  # of each text several, here one
        inputs = {name: value.unsqueeze(1) for name, value in inputs.items()}
    if "ForProteinFolding" in type(model).__name__:  # whose tokens are the 20 amino acids
        inputs["input_ids"] %= 20
    if architecture in LATE:
        inputs |= LATE[architecture](_request(model, names, seed), inputs)
    return {name: value for name, value in inputs.items() if value is not None}


def _special(
    model: PreTrainedModel, architecture: str
) -> list[Callable[[Request, Inputs], Inputs]]:
    """Return the functions that add what an architecture or a class with a head needs."""
    name = type(model).__name__
    found = [one for pattern, one in CLASSES.items() if re.fullmatch(pattern, name)]
    if "ForSequenceClassification" in name and model.config.is_encoder_decoder:
        found.append(ended)
    if architecture in SPECIAL:
        found.append(SPECIAL[architecture])
    return found


def _names(model: PreTrainedModel) -> dict[str, bool]:
    """Return the arguments of forward, and whether each one is required."""
    return {
        name: parameter.default is parameter.empty
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }


def _request(model: PreTrainedModel, names: dict[str, bool], seed: int) -> Request:
    return Request(model, model.config, names, torch.Generator().manual_seed(seed))


def special_tokens(config: Any) -> set[int]:
    """Return the ids of special tokens in any part of a configuration."""
    token_ids: set[int] = set()
    for component in parts(config):
        for name, value in vars(component).items():
            if TOKEN.fullmatch(name):
                values = value if isinstance(value, (list, tuple)) else [value]
                token_ids |= {v for v in values if type(v) is int}
    return token_ids


def vocabulary(config: Any) -> int:
    """Return the number of text tokens of a model."""
    try:
        text_config = config.get_text_config()
    except ValueError:  # several text configs: use the encoder's
        text_config = config.get_text_config(encoder=True)
    size = vars(text_config).get(type(text_config).attribute_map.get("vocab_size", "vocab_size"))
    return size if type(size) is int else find(config, "vocab_size", "src_vocab_size") or 64


def ids(request: Request, rows: int, length: int) -> Tensor:
    """Return random text tokens, none of them special."""
    special = special_tokens(request.config)
    plain = [i for i in range(3, min(vocabulary(request.config), 100)) if i not in special]
    chosen = torch.randint(len(plain), (rows, length), generator=request.generator)
    return torch.tensor(plain)[chosen]


def text(request: Request) -> dict[str, Any]:
    """Return token ids, their mask and the other inputs of a text."""
    names, config = request.names, request.config
    inputs: dict[str, Any] = {}
    if "decoder_input_ids" in names:
        inputs["decoder_input_ids"] = ids(request, BATCH, TARGET)
    if "input_ids" not in names:
        return inputs
    tokens = ids(request, BATCH, LENGTH)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, -PADDED:] = 0
    pad = find(config, "pad_token_id")
    if pad is not None and 0 <= pad < vocabulary(config) and "attention_mask" in names:
        tokens[1, -PADDED:] = pad
    inputs["input_ids"] = tokens
    if "attention_mask" in names:
        inputs["attention_mask"] = mask
    if "bbox" in names:
        corner = torch.randint(0, 400, (BATCH, LENGTH, 2), generator=request.generator)
        inputs["bbox"] = torch.cat([corner, corner + 100], -1)
    return inputs
