"""Integrated gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.attribution.interventions import batch_size
from attnviz.attribution.methods import method
from attnviz.attribution.target import Score, copies_of

STEPS = 32  # points on the path of integrated gradients


@method("integrated-gradients")
def integrated_gradients(score: Score) -> Tensor:
    """Return integrated gradients with respect to the token embeddings.

    The path leads from a baseline to the text. The baseline has the embedding of [MASK] for every
    token but the word itself and special tokens, or zeros if the model has no mask token.

    Source: Sundararajan et al. 2017, arXiv:1703.01365.
    """
    with torch.no_grad():
        end = torch.cat(_embed(score, score.ids))
        if getattr(score.model.tokenizer, "mask_token_id", None) is None:
            start = end * score.visible[:, None].to(end)
        else:
            start = torch.cat(_embed(score, score.masked_ids()))
    fractions = ((torch.arange(STEPS, device=end.device) + 0.5) / STEPS).to(end)[:, None, None]
    total = torch.zeros_like(end)
    for batch in torch.split(fractions, batch_size(score.ids)):
        path = (start + batch * (end - start)).requires_grad_()
        with torch.enable_grad(), score.readout.alone(), _embedded(score, path):
            copies = copies_of(score.inputs, len(batch))
            numbers = score.readout(score.readout.module(**copies)[0])
            (gradient,) = torch.autograd.grad(score.project(numbers) / STEPS, path)
        total += gradient.sum(0)
    attribution: Tensor = (total * (end - start)).sum(-1)
    return attribution


def _tables(score: Score) -> list[nn.Module]:
    """Return the table of embeddings of each stack."""
    bases: list[Any] = score.readout.bases
    return [base.get_input_embeddings() for base in bases]


def _by_stack(score: Score, numbers: Tensor) -> list[Tensor]:
    """Return numbers (N, T, …) of the tokens of each stack."""
    T, stacks = numbers.shape[1], score.readout.stacks
    lengths = [T] if stacks is None else [stacks.source, T - stacks.source]
    return list(torch.split(numbers, lengths, dim=1))


def _embed(score: Score, ids: Tensor) -> list[Tensor]:
    """Return the embeddings of ids (1, T), (n, d) of each stack."""
    tables = zip(_tables(score), _by_stack(score, ids), strict=True)
    return [table(part)[0] for table, part in tables]


@contextmanager
def _embedded(score: Score, vectors: Tensor) -> Iterator[None]:
    """Let the model read vectors (N, T, d) in place of the embeddings of its tokens."""
    parts = _by_stack(score, vectors)

    def read(*_: object) -> Tensor | None:
        return parts.pop(0) if parts else None  # the encoder runs before the decoder

    with ExitStack() as hooks:
        for table in dict.fromkeys(_tables(score)):  # one table may serve both
            hooks.enter_context(table.register_forward_hook(read))
        yield
