"""The logit lens: what the model would predict after each layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.attribution.readout import unembedding_of
from attnviz.attribution.stored_run import StoredRun
from attnviz.attribution.target import Target
from attnviz.errors import InputError, ModelError
from attnviz.results.base import Rules, Savable

_SAME = 1e-4  # of the largest logit: rounding


@dataclass(frozen=True, eq=False)
class LogitLens(Savable):
    """The most probable tokens after each of the L layers, the first the most probable."""

    ids: Tensor  # of the tokens, (L, k)
    logits: Tensor  # (L, k)
    probabilities: Tensor  # (L, k)
    tokens: tuple[tuple[str, ...], ...]  # as text, L × k

    def _rules(self) -> Rules:
        """Yield what the fields should have."""
        shape = self.ids.shape
        is_table = len(shape) == 2 and self.ids.numel() > 0
        are_alike = shape == self.logits.shape == self.probabilities.shape
        yield "tables of layers and tokens", is_table and are_alike
        yield "a text of each token", [len(line) for line in self.tokens] == [shape[1]] * shape[0]


def logit_lens(target: Target, row: int, *, k: int = 5) -> LogitLens:
    """Return the k most probable tokens at a position after each layer.

    The residual stream after a layer takes the place of that after the last layer. The model then
    computes its own final norm, head and unembedding. The last row is the model's prediction.

    row : the position: in a causal model the one before the predicted token, in a masked one that
    of the mask.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    module = target.model.module
    unembedding = unembedding_of(module)
    if unembedding is None:
        raise ModelError(
            f"{target.model.name} has no unembedding, so its layers predict no tokens. Choose a "
            "causal or masked language model, loaded with its head."
        )
    stored = StoredRun(target.readout.bases[-1])
    with torch.no_grad(), stored.record():
        last = module(**target.inputs)[0][0]
    if not -len(last) <= row < len(last):
        raise InputError(f"row {row} is out of range: the text has tokens 0–{len(last) - 1}.")
    if not 1 <= k <= last.shape[-1]:
        raise InputError(f"k should be from 1 to {last.shape[-1]}, not {k}.")
    layers, logits = len(stored.blocks), []
    if stored.in_a_row:
        for state in stored.states()[:, None]:
            with torch.no_grad(), stored.skip(layers, 1, state):
                logits.append(module(**target.inputs)[0][0, row])
    if not logits or (logits[-1] - last[row]).abs().max() > _SAME * last[row].abs().max():
        raise ModelError(
            f"The layers of {target.model.name} cannot be read one by one: its blocks do not run "
            "in a row. Choose another kind of model."
        )
    table = torch.stack(logits).double().cpu()
    values, ids = table.topk(k)
    tokenizer = target.model.tokenizer
    assert tokenizer is not None  # it has tokenized the text
    return LogitLens(
        ids=ids,
        logits=values,
        probabilities=table.softmax(-1).gather(1, ids),
        tokens=tuple(tuple(str(tokenizer.decode([token])) for token in line) for line in ids),
    )
