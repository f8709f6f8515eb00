"""Two regions of the space, and the axis from one to the other in every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.capture import hidden_states
from attnviz.errors import InputError
from attnviz.inputs import encode
from attnviz.models import Model
from attnviz.records import Axis
from attnviz.words import units


@dataclass(frozen=True, eq=False)
class Regions:
    """Two regions by name, and their centres (L + 1, 2, d) entering each layer and in the end."""

    names: tuple[str, str]
    centres: Tensor

    @property
    def axis(self) -> Tensor:
        """The direction in the end, from the second region to the first, (d,)."""
        axis: Tensor = self.centres[-1, 0] - self.centres[-1, 1]
        return axis

    def path(self, states: Tensor) -> Tensor:
        """Return where (L + 1, d) states stand between the second region (0) and the first (1)."""
        first, second = self.centres.unbind(1)
        line = first - second
        return ((states - second) * line).sum(-1) / line.square().sum(-1)

    def distances(self, states: Tensor) -> Tensor:
        """Return how far (L + 1, d) states are from both, whose own distance is 1, (L + 1, 2)."""
        apart = (self.centres[:, 0] - self.centres[:, 1]).norm(dim=-1, keepdim=True)
        away: Tensor = (states[:, None] - self.centres).norm(dim=-1) / apart
        return away


def read_regions(model: Model, word: str, toward: Mapping[str, Sequence[str]]) -> Regions:
    """Return the regions that the model makes of some texts.

    Raises
    ------
    InputError : not two regions, or one without texts.
    """
    if len(toward) != 2:
        raise InputError(
            f"Expected two regions to span an axis, got {len(toward)}. Give tech and fruit, say, "
            "each with texts."
        )
    for name, texts in toward.items():
        if isinstance(texts, str) or not texts or not all(text.strip() for text in texts):
            raise InputError(f"Expected texts for the region {name!r}, got {texts!r}. List some.")
    centres = [_centre(model, word.partition("#")[0], texts) for texts in toward.values()]
    first, second = toward
    return Regions((first, second), torch.stack(centres, dim=1))


def _centre(model: Model, word: str, texts: Sequence[str]) -> Tensor:
    """Return the mean over texts of the word's states, else of all their tokens', (L + 1, d)."""
    found = []
    for text in texts:
        batch = encode(model.checkpoint, [text])
        states = torch.stack(hidden_states(model.module, batch.inputs)).double().cpu()[:, 0]
        found.append(states[:, _positions(batch.axes["text"][0], word)].mean(1))
    return torch.stack(found).mean(0)


def _positions(axis: Axis, word: str) -> list[int]:
    side = units(axis)
    own = [
        at
        for label, positions in zip(side.labels, side.positions, strict=True)
        if label.casefold() == word.casefold()
        for at in positions
    ]
    return own or [at for at, special in enumerate(axis.special) if not special]
