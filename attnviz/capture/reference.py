"""The second run: what the untouched model computes by itself, to compare with.

The weights are those that `output_attentions=True` returns. Along the way are kept: what entered
the softmax that made them (seen among the operators that torch executes), what entered and what
left the output projection W^O.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnviz.capture.projections import find_output
from attnviz.capture.recording import AttentionCall
from attnviz.errors import ModelError


@dataclass(frozen=True, eq=False)
class Observation:
    """What the model computed in one attention call, for a batch of N texts.

    weights and scores (N, H, m, n); head_output (N, m, H·d_v), before W^O; output (N, m, d_model).
    """

    weights: Tensor
    scores: Tensor | None
    head_output: Tensor | None
    output: Tensor | None


class _SoftmaxWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keep the input and output of every softmax that torch executes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._softmax.default:
            self.seen.append((args[0], result))
        return result

    def scores_of(self, weights: Tensor) -> Tensor | None:
        """Return what entered the softmax that made `weights`; each softmax is used once."""
        keys = weights.shape[-1]
        for i, (scores, result) in enumerate(self.seen):
            made = result[..., :keys].to(weights.dtype)  # a sink is one more column
            if made.shape == weights.shape and torch.equal(made, weights):
                del self.seen[i]
                return scores[..., :keys]
        return None


@torch.no_grad()
def observe(
    model: nn.Module, inputs: Mapping[str, Tensor], calls: Sequence[AttentionCall]
) -> list[Observation]:
    """Run the model with `output_attentions=True`; return one observation per recorded call.

    Raises
    ------
    ModelError : the attentions that the model reports are not those that were recorded.
    """
    returned: dict[tuple[str, int], Any] = {}
    projected: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}
    for path in dict.fromkeys(call.path for call in calls):
        _keep(model.get_submodule(path), path, lambda _, output: output, returned)
        if (projection := find_output(model, path)) is not None:
            _keep(projection, path, lambda args, output: (args[0], output), projected)
    with _SoftmaxWatch() as softmaxes:
        outputs = model(**inputs, output_attentions=True, return_dict=True)
    # encoder_attentions, decoder_attentions and cross_attentions, or attentions
    reported = [
        weights
        for name, found in outputs.items()
        if name.endswith("attentions")
        for weights in found or ()
    ]

    observations = []
    for call in calls:
        key = (call.path, call.call)
        weights = _reported(returned.get(key), reported)
        if weights is None:
            raise ModelError(
                f"Expected {type(model).__name__} to report the weights of every attention it "
                f"runs, but it reported none for {call.path}. This model cannot be verified."
            )
        head_output, output = projected.get(key, (None, None))
        observations.append(Observation(weights, softmaxes.scores_of(weights), head_output, output))
    if len(reported) != len(calls):
        raise ModelError(
            f"Expected to record each of the {len(reported)} attentions that "
            f"{type(model).__name__} reports, but recorded {len(calls)}. Nothing is drawn that "
            f"was not recorded."
        )
    return observations


def _keep(
    module: nn.Module,
    path: str,
    select: Callable[[Any, Any], Any],
    kept: dict[tuple[str, int], Any],
) -> None:
    """Keep what `select` takes of the arguments and output of every call of `module`."""
    call = itertools.count()

    def hook(_: nn.Module, args: Any, output: Any) -> None:
        kept[path, next(call)] = select(args, output)

    module.register_forward_hook(hook)


def _reported(returned: Any, reported: Sequence[Tensor]) -> Tensor | None:
    """Return which of the reported attentions a module returned, or None."""
    parts = returned if isinstance(returned, tuple) else ()
    return next((weights for weights in reported if any(part is weights for part in parts)), None)
