"""Ways to say how much each token moved a word: what people draw, and what attnviz offers.

Each takes a `Case` and returns a number for every token, (T,). Some read the parts of a BERT by
name: this is a comparison on the model that comes along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz import Model
from attnviz.analyses.shift.deeplift import secant
from attnviz.analyses.shift.reference import refer
from attnviz.analyses.shift.residual_stream import ledger
from attnviz.analyses.shift.rollout import rollout
from attnviz.capture.restore import restoring

STEPS = 32  # of the path that gradients are integrated over


@dataclass(frozen=True, eq=False)
class Case:
    """One word in one sentence: inputs (1, T), its pieces, the special tokens, and an axis (d,)."""

    model: Model
    inputs: Mapping[str, Tensor]
    rows: tuple[int, ...]
    special: tuple[bool, ...]
    axis: Tensor


def raw_attention(case: Case) -> Tensor:
    """Return the weights of the last layer, the mean of all heads."""
    return _weights(case)[-1].mean(0)[list(case.rows)].mean(0)


def attention_rollout(case: Case) -> Tensor:
    """Multiply the weights through the layers (Abnar & Zuidema 2020)."""
    return rollout(_weights(case))[list(case.rows)].mean(0)


def norms(case: Case) -> Tensor:
    """Return the norms of what the last layer mixes, ‖Σ_h α_ij v_j W_O‖ (Kobayashi 2020)."""
    return _norms(case)[-1][list(case.rows)].mean(0)


def norm_rollout(case: Case) -> Tensor:
    """Multiply the norms through the layers, each row a share."""
    shares = [norm / norm.sum(-1, keepdim=True) for norm in _norms(case)]
    return rollout(share[None] for share in shares)[list(case.rows)].mean(0)


def gradient_x_attention(case: Case) -> Tensor:
    """Sum α · ∂y/∂α over all layers, heads and queries, y being the place on the axis."""
    base = case.model.module
    embedded = base.get_input_embeddings()(case.inputs["input_ids"]).requires_grad_()
    given = {k: v for k, v in case.inputs.items() if k != "input_ids"}
    with torch.enable_grad():
        out = base(inputs_embeds=embedded, **given, output_attentions=True)
        gradients = torch.autograd.grad(_place(case, out[0]), out.attentions)
    parts = [(a * g)[0].detach().sum(0) for a, g in zip(out.attentions, gradients, strict=True)]
    summed = torch.stack(parts).sum(0)
    return (summed - summed.diag().diag()).sum(0)


def integrated_gradients(case: Case) -> Tensor:
    """Integrate the gradient from embeddings of [MASK] to those of the text (Sundararajan 2017)."""
    base = case.model.module
    masked = refer(case.model, case.inputs, "mask", rows=case.rows, special=case.special)
    with torch.no_grad():
        start, end = base.get_input_embeddings()(masked.inputs["input_ids"])
    steps = ((torch.arange(STEPS) + 0.5) / STEPS)[:, None, None]
    path = (start + steps * (end - start)).requires_grad_()
    given = {k: v.expand(STEPS, -1) for k, v in case.inputs.items() if k != "input_ids"}
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(
            _place(case, base(inputs_embeds=path, **given)[0]) / STEPS, path
        )
    return (gradient.sum(0) * (end - start)).sum(-1)


def ledger_of_attention(case: Case) -> Tensor:
    """Return what attention brought from each token, everything else being as it was."""
    account = ledger(case.model.module, case.inputs, rows=case.rows, direction=case.axis)
    return account.attention.sum((0, 1))


def secant_direct(case: Case) -> Tensor:
    """Return what the word itself took from each token, compared with the gate."""
    return _secant(case, "gate").table.sum((0, 1))


def secant_gate(case: Case) -> Tensor:
    """Return the credit of each token over all paths, compared with the gate."""
    return _secant(case, "gate").credit


def secant_mask(case: Case) -> Tensor:
    """Return the credit of each token over all paths, compared with masked words."""
    return _secant(case, "mask").credit


METHODS: dict[str, Callable[[Case], Tensor]] = {
    "raw attention, last layer": raw_attention,
    "rollout": attention_rollout,
    "norms, last layer": norms,
    "norms, rollout": norm_rollout,
    "gradient × attention": gradient_x_attention,
    "integrated gradients": integrated_gradients,
    "ledger": ledger_of_attention,
    "secant, gate, direct": secant_direct,
    "secant, gate": secant_gate,
    "secant, mask": secant_mask,
}


def judge(case: Case) -> tuple[dict[str, Tensor], float]:
    """Return what every method says, and how far the context moved the word along the axis."""
    with restoring(case.model.module):
        said = {name: method(case).detach().double().cpu() for name, method in METHODS.items()}
        return said, _secant(case, "gate").total


def _secant(case: Case, reference: str):
    compared = refer(case.model, case.inputs, reference, rows=case.rows, special=case.special)
    return secant(
        case.model.module,
        compared.inputs,
        rows=case.rows,
        direction=case.axis,
        gate=compared.gate,
    )


def _place(case: Case, states: Tensor) -> Tensor:
    return (states[:, list(case.rows)].mean(1) @ case.axis.to(states)).sum()


def _weights(case: Case) -> list[Tensor]:
    with torch.no_grad():
        return [a[0] for a in case.model.module(**case.inputs, output_attentions=True).attentions]


def _norms(case: Case) -> list[Tensor]:
    """Return for each layer the norms of the mixed, projected values, (T, T)."""
    found = []
    with torch.no_grad():
        out = case.model.module(**case.inputs, output_attentions=True, output_hidden_states=True)
        layers = case.model.module.encoder.layer
        for layer, weights, x in zip(layers, out.attentions, out.hidden_states, strict=False):
            heads = weights.shape[1]
            V = layer.attention.self.value(x[0]).unflatten(-1, (heads, -1))  # (T, H, d_v)
            W_O = layer.attention.output.dense.weight.unflatten(1, (heads, -1))  # (d, H, d_v)
            given = torch.einsum("jhv,dhv->hjd", V, W_O)
            found.append(torch.einsum("hij,hjd->ijd", weights[0], given).norm(dim=-1))
    return found
