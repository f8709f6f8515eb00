"""The models in which faults are planted, and what they read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "mutation"))

from families import TEXTS, TWO_SIDED, tiny
from media import picture, seeing

import attnviz
from attnviz.capture.capture import Capture, capture
from attnviz.inputs import Batch, encode, parse_inputs

ROOT = Path(__file__).parents[2]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Each place, and the places of the tests whose faults are planted there.
PLACES = {
    "minilm": ("minilm",),
    "bert": ("bert",),
    "gpt2": ("gpt2",),
    "llama": ("llama",),
    "mistral": ("mistral", "llama"),
    "gemma2": ("gemma2", "llama"),
    "gpt-oss": ("gpt-oss", "llama"),
    "t5/encoder": ("t5/encoder",),
    "t5/decoder": ("t5/decoder",),
    "t5/cross": ("t5/cross",),
    "bart/cross": ("bart/cross", "t5/cross"),
    "vit": ("vit", "bert"),
}
# Matrices that are not square have no wrong transpose, BART scales its scores, ViT has no mask.
IMPOSSIBLE = {
    **dict.fromkeys(
        ("mistral", "gemma2", "gpt-oss"), ("query_matrix_transposed", "output_matrix_transposed")
    ),
    "bart/cross": ("scale_that_there_is_not",),
    "vit": ("causal_where_it_is_not", "last_real_key_hidden"),
}


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, and the input that it reads: two texts, the second one padded, or an image."""

    model: attnviz.Model
    arguments: dict[str, Any]  # of `attend`

    @classmethod
    def of(cls, family: str, dtype: str) -> Subject:
        """Return a fresh model of a family."""
        precision, tokenizer = DTYPES[dtype], tokenizer_()
        if family == "minilm":
            return cls(bundled(dtype), {"text": TEXTS[1:]})
        if family == "vit":
            sharp = seeing("vit", tokenizer)
            module, processors = sharp.module.to(precision), sharp.checkpoint.processors
            model = attnviz.load(module, processor=processors.image)
            return cls(model, {"image": [picture()]})
        module = tiny(family, precision)
        targets = {"target": TEXTS[1:][::-1]} if family in TWO_SIDED else {}
        return cls(attnviz.load(module, tokenizer=tokenizer), {"text": TEXTS[1:], **targets})

    @property
    def batch(self) -> Batch:
        """The encoded input."""
        return encode(self.model.checkpoint, parse_inputs(**self.arguments))

    def output_in_float64(self) -> Any:
        """Return the output of a copy in float64, under the same attention implementation.

        Flex attention and torch's grouped products of experts take no float64 on a CPU: there it
        is torch's fused attention, and one product for each expert.
        """
        module = deepcopy(self.model.module).double()
        module.config._experts_implementation = "eager"
        if module.config._attn_implementation == "flex_attention":
            module.set_attn_implementation("sdpa")
        inputs = {
            name: tensor.double() if tensor.is_floating_point() else tensor
            for name, tensor in self.batch.inputs.items()
        }
        with torch.no_grad():
            return module(**inputs)

    def captures(self) -> list[Capture]:
        """Return the attentions of each text."""
        batch = self.batch
        return capture(self.model.module, batch.inputs, batch.axes)


@cache
def tokenizer_() -> Any:
    """Return the bundled tokenizer."""
    return attnviz.load().tokenizer


def bundled(dtype: str) -> attnviz.Model:
    """Return a copy of the bundled model, which may be changed."""
    model = attnviz.load(dtype=dtype)
    return attnviz.load(deepcopy(model.module), tokenizer=model.tokenizer)


def families(places: Sequence[str] = tuple(PLACES)) -> list[str]:
    """Return the families of some places, each once."""
    return list(dict.fromkeys(place.partition("/")[0] for place in places))
