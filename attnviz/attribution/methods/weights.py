"""Methods of what each layer attends to: its weights, alone or multiplied, or zeroed values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attnviz.attribution.methods import method
from attnviz.attribution.target import Score, base_of, copies_of
from attnviz.attribution.tracing import AttentionTracer, blocks_of, by_head, changing_states
from attnviz.errors import ModelError


@method("raw-attention")
def raw_attention(score: Score) -> Tensor:
    """Return the last layer's weights, mean over heads; a decoder's to its target and source."""
    last = {place.keys.start: (record, place) for record, place in score.attentions}
    parts = [
        place.spread(record.weights().mean(0)[score.rows].mean(0), score.ids.shape[1])
        for record, place in last.values()
    ]
    return torch.stack(parts).sum(0)


@method("attention-value-norm")
def attention_value_norm(score: Score) -> Tensor:
    """Return Σ α_ij ‖v_j‖ over layers and heads: the weights, and how much there is to take.

    Source: norms instead of weights (Kobayashi et al. 2020, arXiv:2004.10102), here of the values
    before the output projection.
    """
    parts = []
    for record, place in score.attentions:
        values = record.value.repeat_interleave(record.heads // record.key_heads, 0)
        norms = record.weights() * values.norm(dim=-1)[:, None]
        parts.append(place.spread(norms[:, score.rows].sum(0).mean(0), score.ids.shape[1]))
    return torch.stack(parts).sum(0)


@method("rollout")
def rollout(score: Score) -> Tensor:
    """Return the attention rollout."""
    return multiply_layers(weights_of(score))[list(score.readout.positions)].mean(0)


@method("late-rollout")
def late_rollout(score: Score) -> Tensor:
    """Return the attention rollout through the last third of the attentions."""
    weights = list(weights_of(score))
    late = multiply_layers(weights[len(weights) * 2 // 3 :])
    return late[list(score.readout.positions)].mean(0)


def weights_of(score: Score) -> Iterator[Tensor]:
    """Yield the weights of each attention between all tokens, (H, T, T), from the first layer on.

    In an encoder–decoder those of the encoder come first, then the self-attention and the
    cross-attention of each layer of the decoder.
    """
    for record in score.result.records:
        place = score.readout.stacks.place(record.path)
        yield place.embed(record.weights(), score.ids.shape[1])


def multiply_layers(weights: Iterable[Tensor]) -> Tensor:
    """Return the product over layers of the mean weights, half of each the identity, (T, T).

    The identity stands for the residual stream. Values, norms and MLPs are ignored.
    weights : the weights of each layer from the first, (H, T, T).

    Source: attention rollout (Abnar & Zuidema 2020, arXiv:2005.00928).
    """
    means = [layer.mean(0) for layer in weights]
    identity = torch.eye(means[0].shape[-1], dtype=means[0].dtype, device=means[0].device)
    flow = identity
    for mean in means:
        flow = (mean + identity) / 2 @ flow
    return flow


@method("value-zeroing")
def value_zeroing(score: Score) -> Tensor:
    """Return how far the output of each layer moves without the value of a token, multiplied.

    In each layer the values of one token are set to zero, and the cosine distance of every output
    is measured. Rows are normalized to sum to 1 and multiplied through the layers.

    Source: Mohebbi et al. 2023, arXiv:2301.12971.
    """
    if score.readout.stacks:
        raise ModelError("it has an encoder and a decoder, and the method is that of one stack")
    T = score.ids.shape[1]
    distances: list[Tensor] = []

    def measure(_: object, __: object, output: Tensor | Sequence[Tensor]) -> None:
        states = output if isinstance(output, Tensor) else output[0]
        cosine = torch.cosine_similarity(states[1:].double(), states[:1].double(), dim=-1)
        distances.append((1 - cosine.T).clamp(min=0))  # queries × keys

    blocks = blocks_of(base_of(score.readout.module))
    with ExitStack() as hooks:
        # All copies read what the first does, so that each layer is changed by itself.
        hooks.enter_context(changing_states(blocks, lambda _, x: x[:1].expand_as(x)))
        for block in blocks:
            hooks.enter_context(block.register_forward_hook(measure))
        with torch.no_grad(), _ZeroedValues(T):
            score.readout.module(**copies_of(score.inputs, T + 1))
    shares = (normalize(distance, p=1, dim=-1, eps=1e-300)[None] for distance in distances)
    return multiply_layers(shares)[score.rows].mean(0)


class _ZeroedValues(AttentionTracer):
    """Sets the values of token j to zero in copy j + 1 of a text of T tokens."""

    def __init__(self, T: int) -> None:
        super().__init__()
        self.nonzero = torch.ones(T + 1, 1, T, 1, dtype=torch.bool)
        self.nonzero[1:].diagonal(dim1=0, dim2=2).fill_(False)

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        by_text = by_head(values, len(self.nonzero)) * self.nonzero.to(values)
        return weights @ by_text.reshape_as(values)
