"""The heads of an attention that several processes share: each computes some, here they meet.

In tensor parallel (Shoeybi et al. 2019, arXiv 1909.08053) a process holds the columns of W^Q, W^K
and W^V of its own heads, and the rows of W^O that read these. So heads lie on processes as the
rows of W^O do. All processes run the same text and ask for the same at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from attnviz.capture.attention_call import AttentionCall
from attnviz.errors import ModelError


@dataclass(frozen=True, eq=False)
class Spread:
    """Which processes share the heads of an attention, in order.

    path : the attention. width : H·d_v of all its heads. group : these processes. size : how many.
    rank : which of them this one is.
    """

    path: str
    width: int
    group: Any
    size: int
    rank: int

    def gathered(self, own: Tensor, dim: int) -> Tensor:
        """Return the heads of all processes, which lie along `dim`."""
        own = own.contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(parts, own, group=self.group)
        return torch.cat(parts, dim)

    def own(self, every: Tensor, dim: int) -> Tensor:
        """Return the heads of this process."""
        return every.chunk(self.size, dim)[self.rank]

    def qkv(self, *own: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return Q, K and V (N, heads, …) of all heads.

        Raises
        ------
        ModelError : some are missing.
        """
        query, key, value = (self.gathered(part, 1) for part in own)
        if (width := query.shape[1] * value.shape[-1]) != self.width:
            raise ModelError(
                f"Expected the heads of {self.path} from all processes to be {self.width} numbers "
                f"wide, as W^O is high, but they are {width}. This attention cannot be shown."
            )
        return query, key, value

    def of_heads(self, own: Tensor | None, heads: int, dim: int = 1) -> Tensor | None:
        """Return a term of all heads, which may be the same for all of them, as it was before.

        heads : how many this process has.
        """
        if own is None or own.shape[dim] != heads:
            return own
        every = self.gathered(own, dim)
        # One head's own, or one for all: then it is the same in all processes.
        shared = heads == 1 and all(torch.equal(part, own) for part in every.chunk(self.size, dim))
        return own if shared else every


def spread(path: str, module: nn.Module, output: nn.Module | None, width: int) -> Spread | None:
    """Return how the heads of an attention are spread; None where this process has them all.

    Parameters
    ----------
    path, module : the attention. output : what multiplies its heads by W^O.
    width : H·d_v, of the heads that this process has.

    Raises
    ------
    ModelError : they are spread in no way that W^O tells.
    """
    weight: Any = getattr(output, "weight", None)
    if not hasattr(weight, "full_tensor"):
        if output is None and any(hasattr(own, "full_tensor") for own in module.parameters()):
            raise ModelError(
                f"Expected {path} to have a matrix W^O, which tells how processes share its heads, "
                "but it has none that attnviz recognises. Run the model in one process."
            )
        return None
    every, mesh = weight.shape[1], weight.device_mesh
    if width == every:
        return None
    for at, placement in enumerate(weight.placements):
        if placement.is_shard(1) and width * mesh.size(at) == every:
            group, rank = mesh.get_group(at), mesh.get_local_rank(at)
            return Spread(path, every, group, mesh.size(at), rank)
    raise ModelError(
        f"Expected the processes to share the heads of {path}, {every} numbers wide, evenly, but "
        f"one has {width}. Run as many processes as divide the number of heads, and of key heads."
    )


def gather(call: AttentionCall, module: nn.Module, output: nn.Module | None) -> AttentionCall:
    """Return an attention with the heads of all processes; `module` and `output` as in `spread`."""
    seen = call.attention
    heads = seen.query.shape[1]
    over = spread(call.path, module, output, heads * seen.value.shape[-1])
    if over is None:
        return call
    known, sinks = seen.head_output, seen.sinks
    query, key, value = over.qkv(seen.query, seen.key, seen.value)
    return replace(
        call,
        attention=replace(
            seen,
            query=query,
            key=key,
            value=value,
            capped_bias=over.of_heads(seen.capped_bias, heads),
            bias=over.of_heads(seen.bias, heads),
            mask=over.of_heads(seen.mask, heads),
            sinks=None if sinks is None else over.gathered(sinks, min(1, sinks.dim() - 1)),
            scores=over.gathered(seen.scores, 1),
            weights=over.gathered(seen.weights, 1),
            head_output=None if known is None else over.gathered(known, 1),
        ),
        given=None if call.given is None else over.gathered(call.given, 1),
    )
