"""Attribution methods of captum, on the same scores as those of attnviz.

A word is one feature, and a word that is left out is token 0, captum's default for texts. Special
tokens and the explained word always stay.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from attnviz.attribution.interventions import batch_size
from attnviz.attribution.methods import Method
from attnviz.attribution.target import Score
from attnviz.results.axis import token_groups

SAMPLES = 5  # orders of the words for Shapley values; captum's 25 take 250 forwards for ten words
COALITIONS = 50  # captum's default for KernelSHAP
STEPS = 32  # points on the path of integrated gradients, as many as in attnviz


def installed() -> dict[str, Method]:
    """Return the methods of peers that are installed, by name."""
    return METHODS if find_spec("captum") else {}


def integrated_gradients(score: Score) -> Tensor:
    """Return captum's integrated gradients at the embeddings."""
    from captum.attr import LayerIntegratedGradients

    embedding = score.readout.module.get_input_embeddings()
    method = LayerIntegratedGradients(_run(score), embedding)
    parts = method.attribute(
        score.ids,
        baselines=_baseline(score),
        n_steps=STEPS,
        internal_batch_size=batch_size(score.ids),
    )
    return parts[0].sum(-1).detach()


def feature_ablation(score: Score) -> Tensor:
    """Return captum's effect of leaving out each word."""
    from captum.attr import FeatureAblation

    return _perturb(score, FeatureAblation, perturbations_per_eval=batch_size(score.ids))


def shapley_sampling(score: Score) -> Tensor:
    """Return captum's Shapley values, sampled over a few orders of the words."""
    from captum.attr import ShapleyValueSampling

    size = batch_size(score.ids)
    return _perturb(score, ShapleyValueSampling, n_samples=SAMPLES, perturbations_per_eval=size)


def kernel_shap(score: Score) -> Tensor:
    """Return captum's KernelSHAP, a linear model of random coalitions of words."""
    from captum.attr import KernelShap

    size = batch_size(score.ids)
    return _perturb(score, KernelShap, n_samples=COALITIONS, perturbations_per_eval=size)


METHODS: dict[str, Method] = {
    "captum: integrated gradients": integrated_gradients,
    "captum: feature ablation": feature_ablation,
    "captum: Shapley sampling": shapley_sampling,
    "captum: KernelSHAP": kernel_shap,
}


def _run(score: Score) -> Callable[[Tensor], Tensor]:
    """Return the function that captum calls: from ids (N, T) to the score of each text, (N,)."""

    def forward(ids: Tensor) -> Tensor:
        copies = {name: tensor.expand(len(ids), -1) for name, tensor in score.inputs.items()}
        numbers = score.readout(score.readout.module(**{**copies, "input_ids": ids})[0])
        return numbers @ score.direction.to(numbers)

    return forward


def _baseline(score: Score) -> Tensor:
    """Return the ids with token 0 in place of every word that may be left out, (1, T)."""
    kept = score.visible.clone()
    kept[score.rows] = True
    return score.ids.masked_fill(~kept, 0)


def _perturb(score: Score, method: Callable[..., Any], **options: Any) -> Tensor:
    """Return the attributions of a method of captum that changes words, (T,)."""
    groups = token_groups(score.result.records[0].query_axis)
    mask = torch.zeros_like(score.ids)
    for word, positions in enumerate(groups.positions):
        mask[0, list(positions)] = word
    torch.manual_seed(0)
    with torch.no_grad():
        parts = method(_run(score)).attribute(
            score.ids, baselines=_baseline(score), feature_mask=mask, **options
        )
    sizes = mask[0].bincount()[mask[0]]  # every piece has the number of its word
    return parts[0] / sizes
