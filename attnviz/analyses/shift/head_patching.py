"""Path patching: one head at a time gives a word what it gave it in another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from attnviz.analyses.shift.knockout import MOST_TOKENS
from attnviz.analyses.shift.surrogate import Secants
from attnviz.analyses.shift.tracing import Watch, run
from attnviz.runtime.progress import track


def patch_heads(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    *,
    rows: Sequence[int],
    gate: Tensor | None = None,
) -> Tensor:
    """Swap what each head gives a word between two runs; return how far the word moves, (L, H, d).

    All other attention stays what it was, so that only the path through the word's own later norms
    and MLPs is open. What one head does depends on the others, so it is swapped in either run, and
    the mean of both is returned.

    Parameters
    ----------
    inputs : of the model, (2, T) each: the reference and the text.
    rows : the positions of the word's pieces. gate : (T, T), as in `attribution.secant`.

    Source: path patching (Goldowsky-Dill et al. 2023, arXiv:2304.05969).
    """
    watched = Secants(cut=False, gate=gate)
    run(module, inputs, watched)
    mixed = [(mix.weights @ mix.values).detach() for mix in watched.mixes]
    if not mixed:
        raise ValueError("no attention was followed")
    moved = []
    for own, other, sign in track(((1, 0, 1), (0, 1, -1))):
        text = {name: each[own : own + 1] for name, each in inputs.items()}
        given = [mix[own] for mix in mixed]
        instead = [mix[other] for mix in mixed]
        whole = _replay(module, text, given, given, rows, heads=[(0, 0)])
        every = [(layer, head) for layer, mix in enumerate(mixed) for head in range(mix.shape[1])]
        patched = _replay(module, text, given, instead, rows, heads=every)
        moved.append((whole - patched) * sign)
    mean = (moved[0] + moved[1]) / 2
    return mean.reshape(len(mixed), -1, mean.shape[-1])


def _replay(
    module: nn.Module,
    text: Mapping[str, Tensor],
    given: Sequence[Tensor],
    instead: Sequence[Tensor],
    rows: Sequence[int],
    heads: Sequence[tuple[int, int]],
) -> Tensor:
    """Return the end of the word where one head gives what it gives `instead`, (heads, d)."""
    at, ends = list(rows), []
    ids = text["input_ids"]
    size = max(1, MOST_TOKENS[ids.device.type != "cpu"] // ids.shape[1])
    base: nn.Module = getattr(module, "base_model", module)
    for start in track(range(0, len(heads), size)):
        part = heads[start : start + size]
        copies = {name: each.expand(len(part), -1) for name, each in text.items()}
        with torch.no_grad(), Replay(given, instead, at, part):
            ends.append(base(**copies)[0][:, at].mean(1))
    return torch.cat(ends)


class Replay(Watch):
    """While copies of a text run, every attention gives what it gave, but for one head in each.

    given, instead : of each layer, (H, T, d_v). rows : where the other is put in. heads : the layer
    and head of each copy.
    """

    def __init__(
        self,
        given: Sequence[Tensor],
        instead: Sequence[Tensor],
        rows: list[int],
        heads: Sequence[tuple[int, int]],
    ) -> None:
        super().__init__()
        self.given, self.instead, self.rows, self.heads = given, instead, rows, heads
        self.layer = 0

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Give what was given, and the other thing where this layer's heads are asked for."""
        given, instead = self.given[self.layer], self.instead[self.layer]
        made = given.expand(len(self.heads), *given.shape).clone()
        for copy, (layer, head) in enumerate(self.heads):
            if layer == self.layer:
                made[copy, head, self.rows] = instead[head, self.rows]
        self.layer += 1
        return made.reshape(-1, *made.shape[2:]) if weights.dim() == 3 else made
