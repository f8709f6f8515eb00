"""Which token a row of a map is, by experiment: another token there changes that key.

Labels come from the tokenizer, and nothing in the weights of a map shows whether they stand at the
right rows. So some tokens are replaced, and the keys of the first attention tell which row moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.capture.attention_interface import AttentionCallArgs
from attnviz.capture.watch import AttentionWatcher, EndRunError, minimal_run, watch
from attnviz.results import Axis


def changed_keys(
    model: nn.Module, inputs: Mapping[str, Tensor], axes: Sequence[Axis], positions: int
) -> list[tuple[Tensor, Tensor] | None]:
    """Replace some tokens of N texts, one at a time, and return how far each key moved.

    Every replacement is one more row of a single batch, which runs up to its first attention.

    positions : how many tokens of each text to replace.

    Returns
    -------
    For each text the replaced positions (P,), and the distances (P, T) that the keys of the first
    attention moved, relative to the norm of the longest; None where the interface does not show
    them, or where there is no key for each token.
    """
    ids = inputs.get("input_ids")
    if ids is None or len(ids) != len(axes) or any(len(axis) != ids.shape[1] for axis in axes):
        return [None] * len(axes)
    chosen = [_choose(axis, positions) for axis in axes]
    rows = torch.cat([torch.full((1 + len(p),), n) for n, p in enumerate(chosen)]).to(ids.device)
    batch = {
        name: tensor[rows] if len(tensor) == len(ids) else tensor for name, tensor in inputs.items()
    }
    starts, row = [], 0
    for text_index, replaced in enumerate(chosen):
        starts.append(row)
        for number, position in enumerate(replaced.tolist()):
            batch["input_ids"][row + 1 + number, position] = _other(ids[text_index], position)
        row += 1 + len(replaced)
    keys = watch(model, minimal_run(model, batch), _FirstKeys).keys
    if keys is None or keys.shape[0] != row or keys.shape[2] != ids.shape[1]:
        return [None] * len(axes)
    moved: list[tuple[Tensor, Tensor] | None] = []
    for start, replaced in zip(starts, chosen, strict=True):
        original, others = keys[start], keys[start + 1 : start + 1 + len(replaced)]
        distances = (others - original).double().norm(dim=(1, 3))
        longest = original.double().norm(dim=(0, 2)).amax().clamp(min=1e-30)
        moved.append((replaced, (distances / longest).cpu()))
    return moved


def _choose(axis: Axis, positions: int) -> Tensor:
    """Return some of the tokens of a text, spread over it."""
    ordinary = [n for n, special in enumerate(axis.special) if not special]
    count = min(positions, len(ordinary))
    spread = torch.linspace(0, len(ordinary) - 1, count, device="cpu").round().int().tolist()
    return torch.tensor([ordinary[n] for n in spread], dtype=torch.long, device="cpu")


def _other(ids: Tensor, position: int) -> Tensor:
    """Return another token of the same text, or the next of the vocabulary."""
    others = ids[ids != ids[position]]
    return others[0] if len(others) else ids[position] - 1


class _FirstKeys(AttentionWatcher):
    """Takes the keys of the first attention."""

    keys: Tensor | None = None

    def on_call(self, args: AttentionCallArgs) -> Any:
        """Keep the keys; nothing after them is needed."""
        self.keys = args.key
        raise EndRunError
