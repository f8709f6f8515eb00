"""Two regions of the space, and the axis from one to the other in every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.analyses.senses.find_word import find_word
from attnviz.capture import hidden_states
from attnviz.errors import InputError
from attnviz.inputs import encode, pieces_in, token_spans
from attnviz.pipeline.attend import Model

_SAME = 1e-6  # of the length of vectors: no distance, but rounding


@dataclass(frozen=True, eq=False)
class Regions:
    """Two regions by name, and their centres (L + 1, 2, d) entering each layer and in the end.

    notes : what is to be said of their texts.
    """

    names: tuple[str, str]
    centres: Tensor
    notes: tuple[str, ...] = ()

    @property
    def axis(self) -> Tensor:
        """The direction in the end, from the second region to the first, (d,)."""
        axis: Tensor = self.centres[-1, 0] - self.centres[-1, 1]
        return axis

    def path(self, states: Tensor) -> Tensor:
        """Return where (L + 1, d) states stand between the second region (0) and the first (1).

        NaN where both are one point, as the static vectors of one word at one position are.
        """
        first, second = self.centres.unbind(1)
        line = first - second
        return ((states - second) * line).sum(-1) / self._apart**2

    def distances(self, states: Tensor) -> Tensor:
        """Return how far (L + 1, d) states are from both, whose own distance is 1, (L + 1, 2)."""
        away: Tensor = (states[:, None] - self.centres).norm(dim=-1) / self._apart[:, None]
        return away

    @property
    def _apart(self) -> Tensor:
        apart: Tensor = (self.centres[:, 0] - self.centres[:, 1]).norm(dim=-1)
        return apart.masked_fill(apart <= _SAME * self.centres.norm(dim=-1).amax(1), torch.nan)


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
    listed = {name: [texts] if isinstance(texts, str) else texts for name, texts in toward.items()}
    for name, texts in listed.items():
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise InputError(f"Expected texts for the region {name!r}, got {texts!r}. List some.")
    name = word.rpartition("#")[0] if word.rpartition("#")[2].isdecimal() else word
    found = {
        region: [_state(model, name, text) for text in texts] for region, texts in listed.items()
    }
    centres = [torch.stack([state for state, _ in each]).mean(0) for each in found.values()]
    lacking = {region: [has for _, has in each].count(False) for region, each in found.items()}
    first, second = toward
    notes = tuple(
        f"“{name}” is not in {count} of {len(found[region])} texts of {region}: the mean of all "
        "their tokens counts there"
        for region, count in lacking.items()
        if count > 0 and (count < len(found[region]) or not all(lacking.values()))
    )
    regions = Regions((first, second), torch.stack(centres, dim=1), notes)
    if regions.distances(regions.centres[:, 0])[-1].isnan().any():
        raise InputError(
            f"Expected two regions in different places, but {first!r} and {second!r} are one. "
            "Give them other texts."
        )
    return regions


def _state(model: Model, word: str, text: str) -> tuple[Tensor, bool]:
    """Return the mean state of the word in a text, else of all its tokens, and whether it is in it.

    The word counts in any case and regular inflection; the state is (L + 1, d).
    """
    batch = encode(model.checkpoint, [text])
    states = torch.stack(hidden_states(model.module, batch.inputs)).double().cpu()[:, 0]
    spans = token_spans(model.checkpoint, text)
    own = [at for place in find_word(word, text) for at in pieces_in(spans, place)]
    special = batch.axes["text"][0].special
    return states[:, own or [at for at, each in enumerate(special) if not each]].mean(1), bool(own)
