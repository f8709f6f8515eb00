"""Inputs for any model, from the signature of its forward and its configuration.

Two texts of unequal length (the second is padded), two images of different content, two sounds.
Where a signature does not say which of several shapes is meant, all are offered, likeliest first.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures import images, sounds
from architectures.media import BATCH, LENGTH, Request
from architectures.placeholders import place
from architectures.rules import TOKEN
from architectures.settings import find, parts
from architectures.special import LATE, SPECIAL

PADDED, TARGET = 4, 10


def offers(model: PreTrainedModel, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield dictionaries of keyword inputs that the model may take, likeliest first."""
    names = _names(model)
    words = text(_request(model, names, seed))
    for picture, sound in _media(model, names, seed):
        yield words | picture | sound
    without = {name: needed for name, needed in names.items() if name != "input_ids"}
    if (len(without) < len(names) and "pixel_values" in names) or "input_features" in names:
        # some take a text in place of these, not with them
        target = {name: words[name] for name in {"decoder_input_ids"} & set(words)}
        for picture, sound in _media(model, without, seed):
            yield target | picture | sound


def _media(model: PreTrainedModel, names: dict[str, bool], seed: int) -> Iterator[tuple]:
    """Yield pairs of images and sounds, either empty where the model takes none."""
    return product(
        images.offers(_request(model, names, seed)), sounds.offers(_request(model, names, seed))
    )


def complete(model: PreTrainedModel, architecture: str, offer: dict, seed: int = 0) -> dict:
    """Return an offer with placeholders for its images and sounds, and what only a few need."""
    names = _names(model)
    given = dict(offer)
    special = SPECIAL.get(architecture)
    if special:
        given |= special(_request(model, names, seed), given)
    given = {name: value for name, value in given.items() if value is not None}
    place(model, given)
    if architecture in LATE:
        given |= LATE[architecture](_request(model, names, seed), given)
    return {name: value for name, value in given.items() if value is not None}


def _names(model: PreTrainedModel) -> dict[str, bool]:
    """Return the arguments of forward, and whether each must be given."""
    return {
        name: parameter.default is parameter.empty
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }


def _request(model: PreTrainedModel, names: dict[str, bool], seed: int) -> Request:
    return Request(model, model.config, names, torch.Generator().manual_seed(seed))


def special_tokens(config: Any) -> set[int]:
    """Return the ids that mean something of their own, in any part of a configuration."""
    found: set[int] = set()
    for one in parts(config):
        for name, value in vars(one).items():
            if TOKEN.fullmatch(name):
                values = value if isinstance(value, (list, tuple)) else [value]
                found |= {v for v in values if type(v) is int}
    return found


def vocabulary(config: Any) -> int:
    """Return the number of text tokens of a model."""
    try:
        text_config = config.get_text_config()
    except ValueError:  # it has several: the encoder reads
        text_config = config.get_text_config(encoder=True)
    size = vars(text_config).get(type(text_config).attribute_map.get("vocab_size", "vocab_size"))
    return size if type(size) is int else find(config, "vocab_size", "src_vocab_size") or 64


def ids(request: Request, rows: int, length: int) -> Tensor:
    """Return random tokens of a text, none of them special."""
    special = special_tokens(request.config)
    plain = [i for i in range(3, min(vocabulary(request.config), 100)) if i not in special]
    chosen = torch.randint(len(plain), (rows, length), generator=request.generator)
    return torch.tensor(plain)[chosen]


def text(request: Request) -> dict[str, Any]:
    """Return tokens, their mask and what else a text needs."""
    names, config = request.names, request.config
    given: dict[str, Any] = {}
    if "decoder_input_ids" in names:
        given["decoder_input_ids"] = ids(request, BATCH, TARGET)
    if "input_ids" not in names:
        return given
    tokens = ids(request, BATCH, LENGTH)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, -PADDED:] = 0
    pad = find(config, "pad_token_id")
    if pad is not None and 0 <= pad < vocabulary(config) and "attention_mask" in names:
        tokens[1, -PADDED:] = pad
    given["input_ids"] = tokens
    if "attention_mask" in names:
        given["attention_mask"] = mask
    if "bbox" in names:
        corner = torch.randint(0, 400, (BATCH, LENGTH, 2), generator=request.generator)
        given["bbox"] = torch.cat([corner, corner + 100], -1)
    return given
