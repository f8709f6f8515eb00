"""What moved a word's vector: from its static to its contextual place, and by which words.

The text is compared with a reference in which the word could read less, or other words. The
difference at the word is split exactly (attribution.secant), beside it stands what is lost where
each word is masked: a measure that owes the split nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnviz.attribution import ledger, secant
from attnviz.capture import hidden_states
from attnviz.capture.unchanged import unchanged
from attnviz.displacement.regions import read_regions
from attnviz.errors import AttnvizError, InputError, ModelError
from attnviz.inputs import encode
from attnviz.models import Loadable, Model, load
from attnviz.records import Ledger, Secant, ShiftResult
from attnviz.words import locate, units

__all__ = ["shift"]

_AT_ONCE = 32  # texts in which one token is masked
_EXACT = 1e-4  # of the length of the shift, far above rounding
GATE = "the same text, where every token may read only itself and special tokens"


def shift(
    word: str,
    text: str,
    *,
    toward: Mapping[str, Sequence[str]] | None = None,
    reference: str | None = None,
    model: Model | Loadable | None = None,
) -> ShiftResult:
    """Split what moved the vector of a word over layers, heads and source words, exactly.

    Parameters
    ----------
    word : a word of the text; "the#2" is the second "the".
    toward : two regions by name, each with texts: the direction is the axis from the second to the
        first, between the means of what the model makes of the texts (of the word where it stands
        in them, else of all their tokens). By default the direction is that of the shift itself.
    reference : a text of as many tokens to compare with, such as a minimal pair; by default the
        same text with its attention gated: every token reads only itself and special tokens.
    model : from `load`, or what `load` takes; by default the bundled all-MiniLM-L6-v2.

    Returns
    -------
    The split (`secant`), the account from static to contextual (`ledger`), and what masking each
    word loses. `secant.error` and `ledger.error` say how nearly the parts add up.

    Raises
    ------
    InputError : the word is not in the text, the reference has another number of tokens, or there
        are not two regions.
    ModelError : a model whose blocks cannot be followed.
    """
    model = model if isinstance(model, Model) else load(model)
    result = model.attend(text)
    axis = result.records[0].query_axis
    side = units(axis)
    at = locate(word, side)
    pieces = side.positions[at]
    inputs = encode(model.checkpoint, [text]).inputs
    pair, gate, said = _reference(model, inputs, reference, axis.special)
    regions = None if toward is None else read_regions(model, word, toward)
    direction = None if regions is None else regions.axis
    split, account = _split(model, inputs, pair, pieces, direction, gate)
    several = f"“{side.labels[at]}” is {len(pieces)} pieces, of which the mean is followed"
    return ShiftResult(
        word=side.labels[at],
        tokens=axis.labels,
        pieces=pieces,
        special=axis.special,
        reference=said,
        secant=split,
        ledger=account,
        causal=_masked(model, inputs, pieces, axis.special, split.direction),
        regions=() if regions is None else regions.names,
        path=None if regions is None else regions.path(_states(model, inputs, pieces)),
        notes=((several,) if len(pieces) > 1 else ()) + _missed(split, account),
        agreement=result.agreement,
        provenance=result.provenance,
    )


def _split(
    model: Model,
    inputs: Mapping[str, Tensor],
    pair: Mapping[str, Tensor],
    pieces: Sequence[int],
    direction: Tensor | None,
    gate: Tensor | None,
) -> tuple[Secant, Ledger]:
    """Return both accounts of the word."""
    try:
        with unchanged(model.module):
            return (
                secant(model.module, pair, rows=pieces, direction=direction, gate=gate),
                ledger(model.module, inputs, rows=pieces, direction=direction),
            )
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, AttnvizError):
            raise
        why = str(error).partition("\n")[0]
        raise ModelError(
            f"Expected a model whose blocks can be followed from start to end, but {model.name} "
            f"cannot: {why}. Choose one of another kind."
        ) from error


def _missed(split: Secant, account: Ledger) -> tuple[str, ...]:
    """Say where the parts do not add up, and what that means."""
    worst = max(split.error, split.credit_error, account.error)
    if worst <= _EXACT:
        return ()
    return (f"the parts miss the whole by {worst:.0%}: some functions here have no exact rule",)


def _reference(
    model: Model, inputs: Mapping[str, Tensor], reference: str | None, special: Sequence[bool]
) -> tuple[dict[str, Tensor], Tensor | None, str]:
    """Return the inputs of both runs, the gate of the reference, and what it is in words."""
    if reference is None:
        gate = torch.eye(len(special), dtype=torch.bool)
        gate[:, torch.tensor(special)] = True
        twice = {name: torch.cat([each, each]) for name, each in inputs.items()}
        return twice, gate.to(model.module.device), GATE
    other = encode(model.checkpoint, [reference]).inputs
    lengths = [each["input_ids"].shape[1] for each in (other, inputs)]
    if lengths[0] != lengths[1]:
        raise InputError(
            f"Expected a reference of {lengths[1]} tokens, as many as the text, got {lengths[0]}. "
            "Change single words only, for words of as many pieces."
        )
    both = {name: torch.cat([other[name], each]) for name, each in inputs.items()}
    return both, None, f"“{reference}”"


def _masked(
    model: Model,
    inputs: Mapping[str, Tensor],
    pieces: Sequence[int],
    special: Sequence[bool],
    direction: Tensor,
) -> Tensor | None:
    """Return what masking each token takes from the end of the word along the direction, (T,)."""
    mask = getattr(model.tokenizer, "mask_token_id", None)
    tried = [at for at, is_special in enumerate(special) if not is_special and at not in pieces]
    lost = torch.full((len(special),), torch.nan, dtype=torch.float64)
    if mask is None:
        return None
    if not tried:
        return lost
    ids = inputs["input_ids"].repeat(1 + len(tried), 1)
    for run, at in enumerate(tried, start=1):
        ids[run, at] = mask
    ends = []
    for several in torch.split(ids, _AT_ONCE):
        batch = {name: each.expand(len(several), -1) for name, each in inputs.items()}
        states = hidden_states(model.module, {**batch, "input_ids": several})[-1]
        ends.append(states[:, list(pieces)].mean(1))
    along = torch.cat(ends).double().cpu() @ direction.double()
    lost[tried] = along[0] - along[1:]
    return lost


def _states(model: Model, inputs: Mapping[str, Tensor], pieces: Sequence[int]) -> Tensor:
    states = torch.stack(hidden_states(model.module, inputs)).double().cpu()
    return states[:, 0, list(pieces)].mean(1)
