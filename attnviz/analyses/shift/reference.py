"""The reference of a shift: the text without context, the text masked, or another text."""

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
_ROUNDING = 1e-6  # of the length of vectors: closer ones are one point


@dataclass(frozen=True, eq=False)
class Reference:
    """The two runs of a comparison.

    Attributes
    ----------
    inputs : mapping of str to Tensor
        What the model takes, (2, T) each: the reference, then the text.
    gate : Tensor or None
        The keys that each query may attend to in the reference, (T, T). None for all.
    description : str
        The reference in words.
    notes : tuple of str
        Notes for the caption.
    """

    inputs: Mapping[str, Tensor]
    gate: Tensor | None
    description: str
    notes: tuple[str, ...] = ()


def parse_pair(text: str, reference: str | None) -> tuple[str, str]:
    """Return the text and its reference. {mud|cash} in the text contains both.

    Raises
    ------
    InputError
        Braces do not have two sides, or the reference is given twice.
    """
    if not isinstance(reference, str | None):
        raise InputError(
            f"Expected gate, mask or a text as reference, got {type(reference).__name__}."
        )
    alternatives = _BRACES.findall(text)
    if not alternatives:
        return text, "gate" if reference is None else reference
    wrong = [pair for pair in alternatives if pair.count("|") > 1 or not all(pair.split("|"))]
    if wrong:
        raise InputError(
            f"Expected two sides in braces, {{reference|text}}, got {{{wrong[0]}}}. "
            "Write {mud|cash}, say."
        )
    if reference is not None:
        raise InputError(
            f"Expected {{{alternatives[0]}}} in the text or a reference, got both. Give one of "
            "them."
        )
    first, second = _BRACES.split(text), _BRACES.split(text)
    for index in range(1, len(first), 2):  # the parts in braces
        first[index], second[index] = first[index].split("|")
    return "".join(second), "".join(first)


def make_reference(
    model: Model,
    inputs: Mapping[str, Tensor],
    reference: str,
    *,
    rows: Sequence[int],
    special: Sequence[bool],
) -> Reference:
    """Return the reference of a text.

    Parameters
    ----------
    model : Model
        The model that reads both.
    inputs : mapping of str to Tensor
        What the model takes for the text, (1, T) each.
    reference : str
        "gate": every token may attend only to itself and to special tokens. "mask": every other
        token is [MASK]. Otherwise a text of as many tokens.
    rows : sequence of int
        The positions of the pieces of the word.
    special : sequence of bool
        Which tokens are special.

    Raises
    ------
    InputError
        The reference has another number of tokens, or the model has no mask token.
    """
    if reference == "gate":
        description = "the same text, where every token may read only itself and special tokens"
        gate = gate_of(special).to(model.checkpoint.device)
        return Reference(_stack_runs(inputs, inputs), gate, description)
    if reference == "mask":
        ids = mask_words(model, inputs["input_ids"], rows=rows, special=special)
        mask = getattr(model.tokenizer, "mask_token", "masked")
        description = f"the same text, where all other words are {mask}"
        return Reference(_stack_runs({**inputs, "input_ids": ids}, inputs), None, description)
    other = encode(model.checkpoint, [reference]).inputs
    if other["input_ids"].shape == inputs["input_ids"].shape and bool(
        (other["input_ids"] == inputs["input_ids"]).all()
    ):
        raise InputError("Expected a reference other than the text, got the same. Change a word.")
    lengths = [tokens["input_ids"].shape[1] for tokens in (other, inputs)]
    if lengths[0] != lengths[1]:
        raise InputError(
            f"Expected a reference of {lengths[1]} tokens, as many as the text, got {lengths[0]}. "
            + (did_you_mean(reference, ("gate", "mask")) if " " not in reference.strip() else "")
            + " Change single words only, for words of as many pieces; or use gate or mask."
        )
    pair = _stack_runs(other, inputs)
    first, second = pair["input_ids"][:, list(rows)]
    notes: tuple[str, ...] = ()
    if not bool((first == second).all()):
        notes = (
            "the reference has another word in this place: what differed at the start counts too",
        )
    return Reference(pair, None, f"“{reference}”", notes)


def gate_of(special: Sequence[bool]) -> Tensor:
    """Return which keys each query may attend to without context, (T, T): itself and special."""
    gate = torch.eye(len(special), dtype=torch.bool)
    gate[:, torch.tensor(special, dtype=torch.bool)] = True
    return gate


def mask_words(
    model: Model, ids: Tensor, *, rows: Sequence[int], special: Sequence[bool]
) -> Tensor:
    """Return token ids (1, T) with [MASK] for all but the word at `rows` and special tokens."""
    visible = torch.tensor(special, device=ids.device)
    visible[list(rows)] = True
    return ids.masked_fill(~visible, mask_token(model))


def mask_token(model: Model) -> int:
    """Return the id of the model's mask token.

    Raises
    ------
    InputError
        The model has none.
    """
    token = getattr(model.tokenizer, "mask_token_id", None)
    if token is None:
        raise InputError(
            f"Expected a model with a mask token, but {model.name} has none. Choose another "
            "reference or intervention."
        )
    return int(token)


def _stack_runs(reference: Mapping[str, Tensor], text: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.cat([reference[name], tensor]) for name, tensor in text.items()}


@dataclass(frozen=True, eq=False)
class Regions:
    """Two regions of vectors, which span an axis.

    Attributes
    ----------
    names : tuple of str
        Their names.
    centers : Tensor
        Their means as they enter each layer and at the end, (L + 1, 2, d).
    notes : tuple of str
        Notes on their texts.
    """

    names: tuple[str, str]
    centers: Tensor
    notes: tuple[str, ...] = ()

    @property
    def axis(self) -> Tensor:
        """The direction in the last hidden state, from the second region to the first, (d,)."""
        axis: Tensor = self.centers[-1, 0] - self.centers[-1, 1]
        return axis

    def path(self, states: Tensor) -> Tensor:
        """Return where states (L + 1, d) are between the second region (0) and the first (1).

        NaN where both regions are one point, as for the static vectors of one word.
        """
        first, second = self.centers.unbind(1)
        line = first - second
        return ((states - second) * line).sum(-1) / self._gap**2

    def distances(self, states: Tensor) -> Tensor:
        """Return distances (L + 1, 2) of states from both regions, in units of their distance."""
        distances: Tensor = (states[:, None] - self.centers).norm(dim=-1) / self._gap[:, None]
        return distances

    @property
    def _gap(self) -> Tensor:
        gap: Tensor = (self.centers[:, 0] - self.centers[:, 1]).norm(dim=-1)
        return gap.masked_fill(gap <= _ROUNDING * self.centers.norm(dim=-1).amax(1), torch.nan)


def read_regions(model: Model, word: str, toward: Mapping[str, Sequence[str]]) -> Regions:
    """Return the two regions of the vectors of some texts.

    Raises
    ------
    InputError
        There are not exactly two regions, one has no texts, or both are one point.
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
    states = {
        region: [_state(model, name, text) for text in texts] for region, texts in listed.items()
    }
    centers = [torch.stack([state for state, _ in pairs]).mean(0) for pairs in states.values()]
    missing = {
        region: [has_word for _, has_word in pairs].count(False) for region, pairs in states.items()
    }
    first, second = toward
    notes = tuple(
        f"“{name}” is not in {count} of {len(states[region])} texts of {region}: the mean of all "
        "their tokens counts there"
        for region, count in missing.items()
        if count > 0 and (count < len(states[region]) or not all(missing.values()))
    )
    regions = Regions((first, second), torch.stack(centers, dim=1), notes)
    if regions.distances(regions.centers[:, 0])[-1].isnan().any():
        raise InputError(
            f"Expected two regions in different places, but {first!r} and {second!r} are one. "
            "Give them other texts."
        )
    return regions


def _state(model: Model, word: str, text: str) -> tuple[Tensor, bool]:
    """Return the mean state (L + 1, d) of the word in a text, and whether the word is in it.

    The word counts in any case and regular inflection. Without it the mean is over all tokens.
    """
    batch = encode(model.checkpoint, [text])
    states = torch.stack(hidden_states(model.module, batch.inputs)).double().cpu()[:, 0]
    spans = token_spans(model.checkpoint, text)
    rows = [row for span in find_word(word, text) for row in pieces_in(spans, span)]
    special = batch.axes["text"][0].special
    ordinary = [row for row, is_special in enumerate(special) if not is_special]
    return states[:, rows or ordinary].mean(1), bool(rows)
