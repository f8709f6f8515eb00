"""What is known when inputs are made, and a few ways to draw them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Request:
    """A model and the arguments of its forward, by name: True where one must be given."""

    model: PreTrainedModel
    config: PretrainedConfig
    names: dict[str, bool]
    generator: torch.Generator

    def normal(self, *shape: int) -> Tensor:
        """Return numbers from a standard normal distribution."""
        return torch.randn(*shape, generator=self.generator)
