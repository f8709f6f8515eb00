"""What a text is compared with: itself without its context, itself masked, or another text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.inputs import encode
from attnviz.models import Model


@dataclass(frozen=True, eq=False)
class Reference:
    """Two runs to compare: inputs (2, T), the reference first; its gate (T, T); it in words."""

    inputs: Mapping[str, Tensor]
    gate: Tensor | None
    said: str


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
        return Reference(_both(inputs, inputs), gate_of(special).to(model.module.device), said)
    if reference == "mask":
        ids = inputs["input_ids"].clone()
        kept = torch.tensor(special, device=ids.device)
        kept[list(rows)] = True
        ids[:, ~kept] = mask_token(model)
        said = f"the same text, where all other words are {_name(model)}"
        return Reference(_both({**inputs, "input_ids": ids}, inputs), None, said)
    other = encode(model.checkpoint, [reference]).inputs
    lengths = [each["input_ids"].shape[1] for each in (other, inputs)]
    if lengths[0] != lengths[1]:
        raise InputError(
            f"Expected a reference of {lengths[1]} tokens, as many as the text, got {lengths[0]}. "
            "Change single words only, for words of as many pieces; or take gate or mask."
        )
    return Reference(_both(other, inputs), None, f"“{reference}”")


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
