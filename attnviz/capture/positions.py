"""Which token a row of a map is, by experiment: another token there changes that key.

Labels come from the tokenizer, and nothing in the weights of a map shows whether they stand at the
right rows. So some tokens are replaced, and the keys of the attentions tell which row moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.capture.attention_interface import AttentionCallArgs
from attnviz.capture.watch import AttentionWatcher, EndRunError, minimal_run, watch
from attnviz.results import Axis

_TOKENS = 2**14  # of one run of the whole model


@dataclass(frozen=True, eq=False)
class MovedKeys:
    """How far the keys of a text moved when some of its T tokens were replaced, one at a time.

    Attributes
    ----------
    replaced : the positions of the P tokens, (P,).
    distances : by the path of an attention, (P, T), relative to the norm of the longest key.
    """

    replaced: Tensor
    distances: dict[str, Tensor]


def replace_some_tokens(
    model: nn.Module, inputs: Mapping[str, Tensor], axes: Sequence[Axis], count: int
) -> list[MovedKeys | None]:
    """Replace `count` tokens of each of N texts, and return how far the first keys moved.

    Every replacement is one more row of a single batch, which runs up to its first attention. None
    for a text of which the attention interface does not show a key for each token.
    """
    if not _have_ids(inputs, axes):
        return [None] * len(axes)
    chosen = [_spread(axis, count) for axis in axes]
    return _moved(model, inputs, list(enumerate(chosen)), every=False)


def replace_every_token(
    model: nn.Module, inputs: Mapping[str, Tensor], axes: Sequence[Axis]
) -> list[MovedKeys | None]:
    """Replace all tokens of each of N texts, and return how far the keys of all attentions moved.

    As `replace_some_tokens`, but the whole model runs, in batches of up to 16,384 tokens.
    """
    if not _have_ids(inputs, axes):
        return [None] * len(axes)
    rows = max(1, _TOKENS // inputs["input_ids"].shape[1] - 1)
    moved: list[MovedKeys | None] = []
    for text_index, axis in enumerate(axes):
        parts = [
            _moved(model, inputs, [(text_index, part)], every=True)[0]
            for part in torch.split(_ordinary(axis), rows)
        ]
        moved.append(_joined([part for part in parts if part is not None]))
    return moved


def _have_ids(inputs: Mapping[str, Tensor], axes: Sequence[Axis]) -> bool:
    ids = inputs.get("input_ids")
    return (
        ids is not None
        and all(len(tensor) == len(axes) for tensor in inputs.values())
        and all(len(axis) == ids.shape[1] for axis in axes)
    )


def _moved(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    replaced: Sequence[tuple[int, Tensor]],
    *,
    every: bool,
) -> list[MovedKeys | None]:
    """Run texts as they are and with each of some tokens replaced, as one batch."""
    ids = inputs["input_ids"]
    counts = [1 + len(positions) for _, positions in replaced]
    rows = torch.cat(
        [torch.full((n,), text) for n, (text, _) in zip(counts, replaced, strict=True)]
    ).to(ids.device)
    batch = {name: tensor[rows] for name, tensor in inputs.items()}
    starts = torch.tensor([0, *counts], device="cpu").cumsum(0).tolist()
    for start, (text, positions) in zip(starts, replaced, strict=False):
        places = positions.to(ids.device)
        rows_of_text = start + 1 + torch.arange(len(places), device=ids.device)
        batch["input_ids"][rows_of_text, places] = _others(ids[text], places)
    watcher = watch(model, minimal_run(model, batch), lambda model: _Keys(model, every=every))
    shape = len(rows), ids.shape[1]
    keys = {path: key for path, key in watcher.keys.items() if (len(key), key.shape[2]) == shape}
    if not keys:
        return [None] * len(replaced)
    return [
        MovedKeys(positions, {path: _distances(key[a:b]) for path, key in keys.items()})
        for a, b, (_, positions) in zip(starts, starts[1:], replaced, strict=False)
    ]


def _distances(keys: Tensor) -> Tensor:
    """Return how far keys (1 + P, G, T, d_k) are from the first of them, (P, T)."""
    original = keys[0].double()
    longest = original.norm(dim=(0, 2)).amax().clamp(min=1e-30)
    distances: Tensor = (keys[1:] - keys[0]).double().norm(dim=(1, 3)) / longest
    return distances.cpu()


def _joined(parts: Sequence[MovedKeys]) -> MovedKeys | None:
    """Return several replacements of one text as one."""
    if not parts:
        return None
    return MovedKeys(
        torch.cat([part.replaced for part in parts]),
        {path: torch.cat([p.distances[path] for p in parts]) for path in parts[0].distances},
    )


def _ordinary(axis: Axis) -> Tensor:
    """Return the positions of the tokens of a text that are not special."""
    return (~torch.tensor(axis.special, device="cpu")).nonzero().flatten()


def _spread(axis: Axis, count: int) -> Tensor:
    """Return some of the tokens of a text, spread over it."""
    ordinary = _ordinary(axis)
    count = min(count, len(ordinary))
    return ordinary[torch.linspace(0, len(ordinary) - 1, count, device="cpu").round().long()]


def _others(ids: Tensor, places: Tensor) -> Tensor:
    """Return for each place another token of the same text, or a neighbor in the vocabulary."""
    differs = ids[None] != ids[places, None]  # (P, T)
    neighbors = torch.where(ids[places] > 0, ids[places] - 1, 1)
    return torch.where(differs.any(1), ids[differs.int().argmax(1)], neighbors)


class _Keys(AttentionWatcher):
    """Takes the keys of the first attention, or of every one, by the path of its module."""

    def __init__(self, model: nn.Module, *, every: bool) -> None:
        super().__init__(model)
        self.keys: dict[str, Tensor] = {}
        self._every = every

    def on_call(self, args: AttentionCallArgs) -> Any:
        """Keep the keys; end the run if no others are needed."""
        self.keys.setdefault(self.paths[args.module], args.key)
        if not self._every:
            raise EndRunError
        return args.call()
