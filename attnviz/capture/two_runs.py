"""Runs of the untouched model, each from the model as it was found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from attnviz.capture.attention_call import AttentionCall
from attnviz.capture.projections import find_holders
from attnviz.capture.recorder import record
from attnviz.capture.restore import one_at_a_time, unchanged
from attnviz.errors import ModelError


def run_watched(
    model: nn.Module, count: int, *runs: Callable[[], object]
) -> tuple[list[AttentionCall], ...]:
    """Watch every run of the model; each starts from the model as it was found."""
    with one_at_a_time:
        holders = find_holders(model)
        found = []
        for run in runs:
            with unchanged(model):
                found.append(record(model, run, holders, count))
    return tuple(found)


def expect_same(
    model: nn.Module, calls: Sequence[AttentionCall], again: Sequence[AttentionCall]
) -> None:
    """Raise ModelError unless two runs executed the same attentions."""
    if [call.path for call in calls] != [call.path for call in again]:
        raise ModelError(
            f"Expected {type(model).__name__} to execute the same attentions in every run, but two "
            "runs on the same input differ. This model cannot be verified."
        )


def count_texts(model: nn.Module, inputs: Mapping[str, Tensor]) -> int:
    """Return how many texts (images, sounds) a batch holds."""
    tensors = {name: given for name, given in inputs.items() if isinstance(given, Tensor)}
    main = str(getattr(model, "main_input_name", ""))
    return len(tensors.get(main, next(iter(tensors.values()), [None])))


def lean(model: nn.Module, inputs: Mapping[str, Tensor]) -> Callable[[], object]:
    """Return a run that makes nothing beside: no cache, no logits of every token."""
    known = inspect.signature(model.forward).parameters
    lean = {"use_cache": False, "logits_to_keep": 1}
    given = {**inputs, **{name: value for name, value in lean.items() if name in known}}
    return lambda: model(**given)
