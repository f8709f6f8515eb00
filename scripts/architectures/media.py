"""The context for building inputs, and helpers that draw random values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

BATCH, LENGTH = 2, 16
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """A model and the arguments of its forward method; True marks a required argument."""

    model: PreTrainedModel
    config: PretrainedConfig
    names: dict[str, bool]
    generator: torch.Generator

    def normal(self, *shape: int) -> Tensor:
        """Return numbers from a standard normal distribution."""
        return torch.randn(*shape, generator=self.generator)

    def tokens(self, *shape: int, below: int = 90) -> Tensor:
        """Return random tokens."""
        return torch.randint(3, below, shape, generator=self.generator)
