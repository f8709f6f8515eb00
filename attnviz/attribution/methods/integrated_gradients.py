"""Integrated gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.attribution.interventions import batch_size
from attnviz.attribution.methods import method
from attnviz.attribution.target import Score

STEPS = 32  # points on the path of integrated gradients


@method("integrated-gradients")
def integrated_gradients(score: Score) -> Tensor:
    """Return integrated gradients with respect to the token embeddings.

    The path leads from a baseline to the text. The baseline has the embedding of [MASK] for every
    token but the word itself and special tokens, or zeros if the model has no mask token.

    Source: Sundararajan et al. 2017, arXiv:1703.01365.
    """
    module = score.readout.module
    embed = module.get_input_embeddings()  # type: ignore[operator]
    with torch.no_grad():
        end = embed(score.ids)[0]
        if getattr(score.model.tokenizer, "mask_token_id", None) is None:
            start = end * score.visible[:, None].to(end)
        else:
            start = embed(score.masked_ids())[0]
    fractions = ((torch.arange(STEPS, device=end.device) + 0.5) / STEPS).to(end)[:, None, None]
    total = torch.zeros_like(end)
    for batch in torch.split(fractions, batch_size(score.ids)):
        path = (start + batch * (end - start)).requires_grad_()
        copies = {name: tensor.expand(len(batch), -1) for name, tensor in score.inputs.items()}
        del copies["input_ids"]
        with torch.enable_grad():
            numbers = score.readout(module(inputs_embeds=path, **copies)[0])
            (gradient,) = torch.autograd.grad(score.project(numbers) / STEPS, path)
        total += gradient.sum(0)
    attribution: Tensor = (total * (end - start)).sum(-1)
    return attribution
