"""What a text is compared with: itself without its context, itself masked, or another text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.analyses.senses.sentences import find_word
from attnviz.capture import hidden_states
from attnviz.errors import InputError, did_you_mean
from attnviz.inputs import encode, pieces_in, token_spans
from attnviz.pipeline.attend import Model

_BRACES = re.compile(r"\{([^{}]*\|[^{}]*)\}")


@dataclass(frozen=True, eq=False)
class Reference:
    """Two runs to compare: inputs (2, T), the reference first; its gate (T, T); it in words."""

    inputs: Mapping[str, Tensor]
    gate: Tensor | None
    said: str
    notes: tuple[str, ...] = ()


def read_pair(text: str, reference: str | None) -> tuple[str, str]:
    """Return the text and its reference; {mud|cash} in the text names both at once.

    Raises
    ------
    InputError : braces without two sides, or a reference given twice.
    """
    if not isinstance(reference, str | None):
        raise InputError(
            f"Expected gate, mask or a text as reference, got {type(reference).__name__}."
        )
    found = _BRACES.findall(text)
    if not found:
        return text, "gate" if reference is None else reference
    if wrong := [each for each in found if each.count("|") > 1 or not all(each.split("|"))]:
        raise InputError(
            f"Expected two sides in braces, {{reference|text}}, got {{{wrong[0]}}}. "
            "Write {mud|cash}, say."
        )
    if reference is not None:
        raise InputError(
            f"Expected {{{found[0]}}} in the text or a reference, got both. Give one of them."
        )
    first, second = _BRACES.split(text), _BRACES.split(text)
    for at in range(1, len(first), 2):  # what stands in braces
        first[at], second[at] = first[at].split("|")
    return "".join(second), "".join(first)


def refer(
    model: Model,
    inputs: Mapping[str, Tensor],
    reference: str,
    *,
    rows: Sequence[int],
    special: Sequence[bool],
) -> Reference:
    """Return what the text is compared with.

    Parameters
    ----------
    inputs : of the text, (1, T). rows : the pieces of the word. special : which tokens are special.
    reference : "gate", every token may read only itself and special tokens; "mask", every other
        token is [MASK]; or a text of as many tokens.

    Raises
    ------
    InputError : a text of another number of tokens, or no token to mask with.
    """
    if reference == "gate":
        said = "the same text, where every token may read only itself and special tokens"
        return Reference(_both(inputs, inputs), gate_of(special).to(model.checkpoint.device), said)
    if reference == "mask":
        ids = inputs["input_ids"].clone()
        kept = torch.tensor(special, device=ids.device)
        kept[list(rows)] = True
        ids[:, ~kept] = mask_token(model)
        said = f"the same text, where all other words are {_name(model)}"
        return Reference(_both({**inputs, "input_ids": ids}, inputs), None, said)
    other = encode(model.checkpoint, [reference]).inputs
    if other["input_ids"].shape == inputs["input_ids"].shape and bool(
        (other["input_ids"] == inputs["input_ids"]).all()
    ):
        raise InputError("Expected a reference other than the text, got the same. Change a word.")
    lengths = [each["input_ids"].shape[1] for each in (other, inputs)]
    if lengths[0] != lengths[1]:
        raise InputError(
            f"Expected a reference of {lengths[1]} tokens, as many as the text, got {lengths[0]}. "
            + (did_you_mean(reference, ("gate", "mask")) if " " not in reference.strip() else "")
            + " Change single words only, for words of as many pieces; or take gate or mask."
        )
    both = _both(other, inputs)
    at = both["input_ids"][:, list(rows)]
    notes = (
        ()
        if bool((at[0] == at[1]).all())
        else (
            "the reference has another word in this place: what differed at the start counts too",
        )
    )
    return Reference(both, None, f"“{reference}”", notes)


def gate_of(special: Sequence[bool]) -> Tensor:
    """Return which tokens each may read where context is taken away, (T, T)."""
    gate = torch.eye(len(special), dtype=torch.bool)
    gate[:, torch.tensor(special, dtype=torch.bool)] = True
    return gate


def mask_token(model: Model) -> int:
    """Return the id of [MASK], or whatever the model calls it.

    Raises
    ------
    InputError : it has none.
    """
    token = getattr(model.tokenizer, "mask_token_id", None)
    if token is None:
        raise InputError(
            f"Expected a model with a mask token, but {model.name} has none. Take another "
            "reference or intervention."
        )
    return int(token)


def _name(model: Model) -> str:
    return str(getattr(model.tokenizer, "mask_token", "masked"))


def _both(reference: Mapping[str, Tensor], text: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.cat([reference[name], each]) for name, each in text.items()}


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
