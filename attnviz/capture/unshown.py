"""Layers that mix tokens in a way that is not shown: neither a softmax nor linear in its values.

In a model whose other layers are shown, they are named. They are found by what they do: when the
first token of their input changes, so does their output at others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.capture.watch import model_errors, restoring


def unshown_mixers(
    model: nn.Module, run: Callable[[], object], shown: Collection[str]
) -> dict[str, int]:
    """Return how many modules of each class mix tokens in layers without an attention.

    run : runs the model, without a cache. shown : the paths of the modules whose attention is
    shown. Only layers in a list with others that are shown are searched.
    """
    candidates: list[nn.Module] = []
    for path, layers in model.named_modules():
        if isinstance(layers, nn.ModuleList):
            children = layers.named_children()
            blocks = {f"{path}.{name}".lstrip("."): block for name, block in children}
            hidden = [
                block
                for name, block in blocks.items()
                if not any(one == name or one.startswith(f"{name}.") for one in shown)
            ]
            if len(hidden) < len(blocks):
                candidates += [child for block in hidden for child in block.children()]
    if not candidates:
        return {}
    found: Counter[str] = Counter()

    def test(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object
    ) -> None:
        if _mixes_tokens(module, args, kwargs, output):
            found[type(module).__name__] += 1

    with restoring(model), torch.no_grad(), model_errors(model):
        for module in dict.fromkeys(candidates):
            module.register_forward_hook(test, with_kwargs=True)
        run()
    return dict(found)


def _mixes_tokens(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object
) -> bool:
    """Whether another first token changes the output of a module at other positions."""
    given = [*args, *kwargs.values()]
    states = next((one for one in given if isinstance(one, Tensor) and one.dim() == 3), None)
    before = output[0] if isinstance(output, tuple) else output
    if states is None or not isinstance(before, Tensor) or before.shape[:2] != states.shape[:2]:
        return False
    changed = states.clone()
    changed[:, 0] += 1 + changed[:, 0].abs()
    try:
        other = module.forward(
            *(changed if one is states else one for one in args),
            **{name: changed if one is states else one for name, one in kwargs.items()},
        )
    except Exception:  # a module that cannot run twice on its input is not judged
        return False
    after = other[0] if isinstance(other, tuple) else other
    return not torch.equal(after[:, 1:], before[:, 1:])
