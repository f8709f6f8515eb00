"""What moved a word's vector: from its static to its contextual place, and by which words.

The text is compared with a reference in which the word could read less, or other words. The
difference at the word is split exactly (attribution.secant), beside it stands what is lost where
each other word is changed (interventions): a measure that owes the split nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnviz.attribution import ledger, rollout, secant
from attnviz.capture import hidden_states
from attnviz.capture.unchanged import unchanged
from attnviz.displacement.causes import along, lose, possible
from attnviz.displacement.references import Reference, refer
from attnviz.displacement.regions import read_regions
from attnviz.errors import AttnvizError, ModelError
from attnviz.inputs import encode
from attnviz.interventions import Site, patch_heads
from attnviz.models import Loadable, Model, load
from attnviz.records import AttentionResult, Ledger, Secant, ShiftResult
from attnviz.words import Units, locate, merge, units

__all__ = ["shift"]

_EXACT = 1e-4  # of the length of the shift, far above rounding


def shift(
    word: str,
    text: str,
    *,
    toward: Mapping[str, Sequence[str]] | None = None,
    reference: str = "gate",
    verify_causally: bool = False,
    model: Model | Loadable | None = None,
) -> ShiftResult:
    """Split what moved the vector of a word over layers, heads and source words, exactly.

    Parameters
    ----------
    word : a word of the text; "the#2" is the second "the".
    toward : two regions by name, each with texts: the direction is the axis from the second to the
        first, between the means of what the model makes of the texts (of the word where it stands
        in them, else of all their tokens). By default the direction is that of the shift itself.
    reference : what the text is compared with. "gate": itself, where every token may read only
        itself and special tokens. "mask": itself, where all other words are masked. Else a text of
        as many tokens, such as a minimal pair.
    verify_causally : change each other word in four ways (mask it, replace it, let nobody read it,
        delete it) and patch every head. By default each word is only masked; where a model has no
        mask token, nobody may read it.
    model : from `load`, or what `load` takes; by default the bundled all-MiniLM-L6-v2.

    Returns
    -------
    The split (`secant`), the account from static to contextual (`ledger`), and what the word loses
    where others are changed (`causal`). `secant.error` and `ledger.error` say how nearly the parts
    add up.

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
    compared = refer(model, inputs, reference, rows=pieces, special=axis.special)
    regions = None if toward is None else read_regions(model, word, toward)
    direction = None if regions is None else regions.axis
    split, account = _split(model, inputs, compared, pieces, direction)
    causal = _causal(model, inputs, side, at, split.direction, every=verify_causally)
    patched = _patched(model, compared, pieces, split.direction) if verify_causally else None
    states = None if regions is None else _states(model, inputs, pieces)
    several = f"“{side.labels[at]}” is {len(pieces)} pieces, of which the mean is followed"
    return ShiftResult(
        word=side.labels[at],
        at=at,
        words=side.labels,
        positions=side.positions,
        special=side.special,
        tokens=axis.labels,
        reference=compared.said,
        secant=split,
        ledger=account,
        causal=causal,
        patched=patched,
        raw_attention=merge(result.records[-1].weights().mean(0), side, side)[at].cpu(),
        rollout=merge(_rolled(result), side, side)[at].cpu(),
        regions=() if regions is None else regions.names,
        path=None if regions is None or states is None else regions.path(states),
        distances=None if regions is None or states is None else regions.distances(states),
        notes=((several,) if len(pieces) > 1 else ()) + _missed(split, account),
        agreement=result.agreement,
        provenance=result.provenance,
    )


def _split(
    model: Model,
    inputs: Mapping[str, Tensor],
    compared: Reference,
    pieces: Sequence[int],
    direction: Tensor | None,
) -> tuple[Secant, Ledger]:
    """Return both accounts of the word."""
    both, gate = compared.inputs, compared.gate
    try:
        with unchanged(model.module):
            return (
                secant(model.module, both, rows=pieces, direction=direction, gate=gate),
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


def _causal(
    model: Model,
    inputs: Mapping[str, Tensor],
    side: Units,
    at: int,
    direction: Tensor,
    *,
    every: bool,
) -> dict[str, Tensor]:
    """Return what the word loses along the direction by each intervention, (W,)."""
    others = [i for i, special in enumerate(side.special) if not special and i != at]
    words = [side.positions[i] for i in others]
    ways = possible(model) if every else possible(model)[:1]
    with unchanged(model.module):
        lost = lose(model, Site.of(model.module, inputs, side.positions[at]), words, ways)
    return {
        way: along(vectors, direction, others, len(side.labels)) for way, vectors in lost.items()
    }


def _patched(model: Model, compared: Reference, pieces: Sequence[int], direction: Tensor) -> Tensor:
    """Return what the word loses directly where each head is swapped, (L, H)."""
    with unchanged(model.module):
        moved = patch_heads(model.module, compared.inputs, rows=pieces, gate=compared.gate)
    return moved.double().cpu() @ direction.double().cpu()


def _rolled(result: AttentionResult) -> Tensor:
    return rollout(record.weights() for record in result.records)


def _states(model: Model, inputs: Mapping[str, Tensor], pieces: Sequence[int]) -> Tensor:
    states = torch.stack(hidden_states(model.module, inputs)).double().cpu()
    return states[:, 0, list(pieces)].mean(1)
