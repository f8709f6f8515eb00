"""Attribution methods to compare with the exact decomposition of a shift.

A method takes an `AttributionInput` and returns one number for each token, (T,): how much the token
moved the word along a direction. To add a method, write a function in this file and decorate it
with `@method("its-name")`. `attnviz.shift(..., methods=["its-name"])` then computes it, ranks words
by it, and saves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from attnviz.analyses.shift.deeplift import AttentionTracer, base_of, by_head, trace_run
from attnviz.analyses.shift.interventions import TargetWord, batch_size
from attnviz.errors import ModelError, expect_names, first_line
from attnviz.results import AttentionResult

STEPS = 32  # points on the path of integrated gradients


@dataclass(frozen=True, eq=False)
class AttributionInput(TargetWord):
    """A word in a text, and the direction along which its vector moves."""

    direction: Tensor  # in the space of the last hidden state, (d,)
    result: AttentionResult  # the attention of the text

    def project(self, states: Tensor) -> Tensor:
        """Return the sum over runs of the word's coordinate along the direction, ()."""
        vectors = states[:, list(self.rows)].mean(1)
        return (vectors @ self.direction.to(vectors)).sum()


Method: TypeAlias = Callable[[AttributionInput], Tensor]
METHODS: dict[str, Method] = {}


def method(name: str) -> Callable[[Method], Method]:
    """Register an attribution method under a name."""

    def register(function: Method) -> Method:
        METHODS[name] = function
        return function

    return register


@method("raw-attention")
def raw_attention(target: AttributionInput) -> Tensor:
    """Return the attention weights of the word in the last layer, averaged over heads."""
    return target.result.records[-1].weights().mean(0)[list(target.rows)].mean(0)


@method("rollout")
def rollout(target: AttributionInput) -> Tensor:
    """Return the attention rollout of the word."""
    return multiply_layers(record.weights() for record in target.result)[list(target.rows)].mean(0)


@method("gradient-attention")
def gradient_attention(target: AttributionInput) -> Tensor:
    """Return gradient × attention: Σ α · ∂y/∂α over layers, heads and queries.

    y is the coordinate of the word along the direction. The weight of a token for itself is left
    out.
    """
    trace = _WeightTracer()
    _, states = trace_run(target.model.module, target.inputs, trace)
    if not trace.weights:
        raise ModelError("its attention weights cannot be traced")
    gradients = torch.autograd.grad(target.project(states), trace.weights)
    parts = [
        by_head((weights * gradient).detach(), 1)[0].sum(0)
        for weights, gradient in zip(trace.weights, gradients, strict=True)
    ]
    total = torch.stack(parts).sum(0)
    return (total - total.diag().diag()).sum(0)


class _WeightTracer(AttentionTracer):
    """Collects the attention weights of a run, in the graph of its gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        self.weights.append(weights)
        return weights @ values


@method("integrated-gradients")
def integrated_gradients(target: AttributionInput) -> Tensor:
    """Return integrated gradients with respect to the token embeddings.

    The path leads from a baseline to the text. The baseline has the embedding of [MASK] for every
    token but the word itself and special tokens, or zeros if the model has no mask token.

    Source: Sundararajan et al. 2017, arXiv:1703.01365.
    """
    base = base_of(target.model.module)
    embed = base.get_input_embeddings()  # type: ignore[operator]
    with torch.no_grad():
        end = embed(target.ids)[0]
        if getattr(target.model.tokenizer, "mask_token_id", None) is None:
            visible = torch.tensor(target.special, device=end.device)
            visible[list(target.rows)] = True
            start = end * visible[:, None].to(end)
        else:
            start = embed(target.masked_ids())[0]
    fractions = ((torch.arange(STEPS, device=end.device) + 0.5) / STEPS).to(end)[:, None, None]
    total = torch.zeros_like(end)
    for batch in torch.split(fractions, batch_size(target.ids)):
        path = (start + batch * (end - start)).requires_grad_()
        copies = {name: tensor.expand(len(batch), -1) for name, tensor in target.inputs.items()}
        del copies["input_ids"]
        with torch.enable_grad():
            states = base(inputs_embeds=path, **copies)[0]
            (gradient,) = torch.autograd.grad(target.project(states) / STEPS, path)
        total += gradient.sum(0)
    attribution: Tensor = (total * (end - start)).sum(-1)
    return attribution


def multiply_layers(weights: Iterable[Tensor]) -> Tensor:
    """Return the product over layers of the mean weights, half of each the identity, (T, T).

    The identity stands for the residual stream. Values, norms and MLPs are ignored.
    weights : the weights of each layer from the first, (H, T, T).

    Source: attention rollout (Abnar & Zuidema 2020, arXiv:2005.00928).

    >>> multiply_layers([torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])])
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    means = [layer.mean(0) for layer in weights]
    identity = torch.eye(means[0].shape[-1], dtype=means[0].dtype, device=means[0].device)
    flow = identity
    for mean in means:
        flow = (mean + identity) / 2 @ flow
    return flow


def check_methods(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of methods, each once; raise InputError for an unknown one."""
    listed = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
    expect_names(listed, METHODS, "an attribution method")
    return listed


def compute_methods(
    names: Sequence[str], target: AttributionInput
) -> tuple[dict[str, Tensor], list[str]]:
    """Return attributions by method, (T,) each, and notes on the methods that are left out."""
    attributions, notes = {}, []
    for name in names:
        try:
            attribution = METHODS[name](target).detach().double().cpu()
        except torch.OutOfMemoryError:
            raise
        except (ModelError, RuntimeError, TypeError, ValueError, IndexError) as error:
            reason = f"{target.model.name} does not support it ({first_line(error)})"
            notes.append(f"{name} is left out: {reason}")
            continue
        if attribution.isfinite().all():
            attributions[name] = attribution
        else:
            notes.append(f"{name} is left out: it is nan or infinite for {target.model.name}")
    return attributions, notes
