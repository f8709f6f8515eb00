"""The attention weights that a model returns by itself, one text at a time, without attnviz."""

import copy

import torch


def plain_weights(module):
    """Return a function from token ids to the weights of all heads, (K, n, n)."""
    own = copy.deepcopy(module)  # requesting attentions leaves hooks on the model, so use a copy
    own.set_attn_implementation("eager")

    def weights(ids):
        with torch.no_grad():
            maps = own(input_ids=torch.tensor([ids]), output_attentions=True).attentions
        return torch.cat(maps, dim=1)[0]

    return weights
