"""The attribution methods that the benchmark compares, by their name in its tables.

Each takes a `Score` and returns one number for each token, (T,). Methods that attnviz
offers come from its registry. The norms look up the modules of a BERT by name, so the benchmark
runs on the bundled model only.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from attnviz.attribution.decomposition import Decomposition, decompose, split_stream
from attnviz.attribution.methods import METHODS as REGISTERED
from attnviz.attribution.methods import Method
from attnviz.attribution.methods.weights import multiply_layers
from attnviz.attribution.reference import make_reference
from attnviz.attribution.target import Score
from attnviz.capture.watch import restoring


def value_norms(target: Score) -> Tensor:
    """Return ‖Σ_h α_ij v_j W_O‖ of the last layer (Kobayashi et al. 2020)."""
    return _value_norms(target)[-1][target.rows].mean(0)


def value_norm_rollout(target: Score) -> Tensor:
    """Multiply the norms across layers, with rows normalized to sum to 1."""
    shares = [norm / norm.sum(-1, keepdim=True) for norm in _value_norms(target)]
    return multiply_layers(share[None] for share in shares)[target.rows].mean(0)


def residual_stream(target: Score) -> Tensor:
    """Return the attention contribution of each token in the residual stream decomposition."""
    stream = split_stream(target.readout, target.inputs, direction=target.direction)
    return stream.attention.sum((0, 1))


def split_direct(target: Score) -> Tensor:
    """Return the direct contribution of each token to the word, relative to the gated reference."""
    return _decompose(target, "gate").table.sum((0, 1))


def split_gate(target: Score) -> Tensor:
    """Return the contribution of each token over all paths, relative to the gated reference."""
    return _decompose(target, "gate").credit


def split_mask(target: Score) -> Tensor:
    """Return the contribution of each token over all paths, relative to masked words."""
    return _decompose(target, "mask").credit


METHODS: dict[str, Method] = {
    "raw attention, last layer": REGISTERED["raw-attention"],
    "rollout": REGISTERED["rollout"],
    "norms, last layer": value_norms,
    "norms, rollout": value_norm_rollout,
    "gradient × attention": REGISTERED["gradient-attention"],
    "integrated gradients": REGISTERED["integrated-gradients"],
    "residual stream": residual_stream,
    "split, gate, direct": split_direct,
    "split, gate": split_gate,
    "split, mask": split_mask,
    **{
        name: REGISTERED[name]
        for name in (
            "attention-value-norm",
            "direct-attribution",
            "gradient-input",
            "late-rollout",
            "value-zeroing",
        )
    },
}


def compute_all(target: Score) -> tuple[dict[str, Tensor], float]:
    """Return the attributions of every method, and how far the context moved the word."""
    with restoring(target.model.module):
        attributions = {
            name: method(target).detach().double().cpu() for name, method in METHODS.items()
        }
        return attributions, _decompose(target, "gate").total


@lru_cache(maxsize=2)
def _decompose(target: Score, reference: str) -> Decomposition:
    compared = make_reference(target, reference)
    return decompose(
        target.readout, compared.inputs, direction=target.direction, gate=compared.gate
    )


def _value_norms(target: Score) -> list[Tensor]:
    """Return the norms of the weighted, projected values for each layer, (T, T)."""
    norms = []
    module = target.model.module
    with torch.no_grad():
        output = module(**target.inputs, output_attentions=True, output_hidden_states=True)
        layers = module.encoder.layer
        for layer, weights, x in zip(layers, output.attentions, output.hidden_states, strict=False):
            heads = weights.shape[1]
            V = layer.attention.self.value(x[0]).unflatten(-1, (heads, -1))  # (T, H, d_v)
            W_O = layer.attention.output.dense.weight.unflatten(1, (heads, -1))  # (d, H, d_v)
            projected = torch.einsum("jhv,dhv->hjd", V, W_O)
            norms.append(torch.einsum("hij,hjd->ijd", weights[0], projected).norm(dim=-1))
    return norms
