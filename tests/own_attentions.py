"""The attention weights that a model returns by itself, without attnviz."""

import copy

import torch


def own_attentions(module, *inputs, **arguments):
    """Return the weights of each layer, (N, H, m, n), of the model's own run."""
    own = copy.deepcopy(module)  # asked for attentions, it keeps hooks
    own.set_attn_implementation("eager")
    with torch.no_grad():
        return own(*inputs, **arguments, output_attentions=True).attentions
