"""What some models put between the score and the weight: a soft cap, and a sink.

Everything else that enters a score is added to it: the mask, and a bias by position (T5, ALiBi).
The order is scale, soft cap, bias, mask, softmax; a sink stands beside the scores in the softmax.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from attnviz.formula.attention import softmax

HIDDEN = -6e4  # below lies what masks put for -∞, in any precision


def soft_cap(scores: Float[Tensor, "*N m n"], cap: float) -> Float[Tensor, "*N m n"]:
    """Keep scores within ±c: c · tanh(score / c) (Gemma 2; Riviere et al. 2024).

    >>> soft_cap(torch.tensor([[0.0, 1.0, 100.0]]), cap=10.0)
    tensor([[ 0.0000,  0.9967, 10.0000]])
    """
    return cap * torch.tanh(scores / cap)


def softmax_with_sink(
    scores: Float[Tensor, "*N h m n"], sinks: Float[Tensor, " h"] | Float[Tensor, "h m"]
) -> Float[Tensor, "*N h m n"]:
    """Let each head rest on a score of its own that no key has (Xiao et al. 2023; GPT-OSS).

    The sink is one more column before the softmax and is dropped after it, so that a row sums to
    less than 1 by what the sink took. It is a parameter, or made anew for each query.

    >>> softmax_with_sink(torch.zeros(1, 1, 3), sinks=torch.zeros(1))
    tensor([[[0.2500, 0.2500, 0.2500]]])
    """
    column = sinks.reshape(len(sinks), -1, 1).expand(*scores.shape[:-1], 1)
    return softmax(torch.cat([scores, column], dim=-1))[..., :-1]
