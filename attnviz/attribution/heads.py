"""How much every head matters for a score: the gradient's estimate and the exact effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from attnviz.attribution.interventions import HeadPatching, batch_size
from attnviz.attribution.readout import Readout, base_of
from attnviz.attribution.reference import encode_after
from attnviz.attribution.stored_run import StoredRun
from attnviz.attribution.target import Score
from attnviz.attribution.tracing import AttentionTracer, by_head, trace_run
from attnviz.errors import InputError, ModelError
from attnviz.inputs import encode
from attnviz.results.base import Rules, Savable
from attnviz.runtime.progress import track

Head: TypeAlias = tuple[int, int]  # layer, head
Ablation: TypeAlias = Literal["zero", "mean"]

EXACT = 30  # heads that are ablated exactly by default
_LAYERS_AT_ONCE = 2  # layers whose heads are ablated in one batch
_SAME = 1e-3  # relative difference of two runs of the same numbers: rounding


@dataclass(frozen=True, eq=False)
class HeadEffects(Savable):
    """What the score loses without each head: score - score after the ablation, (L, H) each."""

    estimate: Tensor  # to first order, from one gradient
    exact: Tensor  # from a run without the head; NaN where it was not ablated

    def _rules(self) -> Rules:
        """Yield what the fields should have."""
        is_table = self.estimate.dim() == 2 and self.estimate.numel() > 0
        yield "two tables of layers and heads", is_table and self.estimate.shape == self.exact.shape

    @property
    def is_exact(self) -> Tensor:
        """Which heads were ablated exactly, (L, H)."""
        return ~self.exact.isnan()

    @property
    def best(self) -> Tensor:
        """The exact effect where there is one, else the estimate, (L, H)."""
        return torch.where(self.is_exact, self.exact, self.estimate)


def head_effects(
    score: Score,
    *,
    how: Ablation = "zero",
    others: Sequence[str] = (),
    exact: int = EXACT,
) -> HeadEffects:
    """Return the estimated effect of ablating each head, and the exact one of the largest.

    The estimate is gradient × (output of the head - its replacement), summed over positions: the
    effect to first order. The heads with the largest estimates are ablated as in `ablate_heads`.

    how, others : as in `ablate_heads`. exact : the number of heads to ablate.

    Source: attribution patching (Syed et al. 2023, arXiv:2310.10348).
    """
    if exact < 0:
        raise InputError(f"exact should be 0 or more heads, not {exact}.")
    run = _run(score)
    replacement = _replacement(score, run, how, others)
    mixed = [mix for _, mix in run.mixes]
    with torch.enable_grad():
        number = score.project(run.numbers)
    gradients = torch.autograd.grad(number, mixed, allow_unused=True)
    effects = []
    for mix, gradient, other in zip(mixed, gradients, replacement, strict=True):
        slope = torch.zeros_like(mix) if gradient is None else gradient
        difference = by_head(mix.detach(), 1)[0] - other
        terms = by_head(slope, 1)[0][:, run.rows] * difference[:, run.rows]
        effects.append(terms.double().sum((-2, -1)).cpu())
    estimate = torch.stack(effects)
    if not estimate.isfinite().all():
        raise ModelError(f"the gradient of {score.model.name} is nan or infinite")
    order = estimate.abs().flatten().argsort(descending=True, stable=True)[:exact]
    largest = [divmod(int(index), estimate.shape[1]) for index in order]
    table = torch.full_like(estimate, torch.nan)
    for (layer, head), effect in zip(
        largest, _ablate(score, run, largest, replacement).tolist(), strict=True
    ):
        table[layer, head] = effect
    return HeadEffects(estimate, table)


def ablate_heads(
    score: Score,
    heads: Sequence[Head],
    *,
    how: Ablation = "zero",
    others: Sequence[str] = (),
) -> Tensor:
    """Ablate each head by itself and return what the score loses, (N,).

    The output of the head, before W^O, is replaced at all positions but the attention sink, and
    everything after it is recomputed. The sink is the first token of a causal model if it is
    special or `score.sink`.

    heads : the (layer, head) of each ablation. how : the replacement: "zero", or "mean" for the
    mean output of the head over the positions of other texts. others : these texts; by default the
    text itself.
    """
    run = _run(score)
    for layer, head in heads:
        if not (0 <= layer < len(run.mixes) and 0 <= head < run.heads):
            raise InputError(
                f"There is no head {head} in layer {layer}: the model has layers "
                f"0–{len(run.mixes) - 1} and heads 0–{run.heads - 1}."
            )
    return _ablate(score, run, heads, _replacement(score, run, how, others))


@dataclass(frozen=True, eq=False)
class _Run:
    """One run of the text, with everything that ablations start from."""

    stored: StoredRun
    mixes: list[tuple[int | None, Tensor]]  # by attention: its block, and the output of its heads
    numbers: Tensor  # what is read, (1, d)
    rows: list[int]  # the positions at which heads are ablated

    @property
    def heads(self) -> int:
        """The number of heads of a layer."""
        return by_head(self.mixes[0][1], 1).shape[1]

    @property
    def can_start(self) -> bool:
        """Whether every attention is inside one of the blocks, which run in a row."""
        return self.stored.in_a_row and all(block is not None for block, _ in self.mixes)


class _HeadTracer(AttentionTracer):
    """Records the output of the heads of each attention, and the block that it is in."""

    def __init__(self, block: Callable[[], int | None]) -> None:
        super().__init__()
        self.mixes: list[tuple[int | None, Tensor]] = []
        self.causal = True  # whether the first token attends to itself only
        self._block = block

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return the product of weights and values, and record it."""
        mixed = weights @ values
        self.mixes.append((self._block(), mixed))
        self.causal &= not by_head(weights.detach(), 1)[..., 0, 1:].any().item()
        return mixed.clone()  # the model may change it in place


def _run(score: Score) -> _Run:
    """Run the text once, with the graph of gradients."""
    stored = StoredRun(base_of(score.readout.module))
    tracer = _HeadTracer(lambda: stored.running)
    with stored.record():
        _, numbers = trace_run(score.readout, score.inputs, tracer)
    if not tracer.mixes:
        raise ModelError(
            f"No attention of {score.model.name} could be traced, so no head can be ablated. Run "
            "it with eager attention."
        )
    T = score.ids.shape[1]
    shapes = {by_head(mix, 1).shape[1:3] for _, mix in tracer.mixes}
    if len(shapes) != 1 or shapes.pop()[1] != T:
        raise ModelError(
            f"The heads of {score.model.name} cannot be ablated: not every traced attention has "
            "the same number of heads and one row for each token. Choose another kind of model."
        )
    sink = 0 if score.special[0] and tracer.causal else score.sink
    return _Run(stored, tracer.mixes, numbers, [row for row in range(T) if row != sink])


def _replacement(score: Score, run: _Run, how: Ablation, others: Sequence[str]) -> list[Tensor]:
    """Return what replaces the outputs of the heads of each layer, (H, T, d_v) each."""
    outputs = [by_head(mix.detach(), 1)[0] for _, mix in run.mixes]
    if how == "zero":
        return [torch.zeros_like(output) for output in outputs]
    if how != "mean":
        raise InputError(f"how should be zero or mean, not {how!r}.")
    texts = [_outputs_of(score, text) for text in others] or [outputs]
    first = min(run.rows)  # after the sink
    return [
        torch.cat([text[layer][:, first:] for text in texts], dim=1)
        .mean(1, keepdim=True)
        .expand_as(output)
        for layer, output in enumerate(outputs)
    ]


def _outputs_of(score: Score, text: str) -> list[Tensor]:
    """Return the outputs of the heads of each layer in another text, (H, T, d_v) each."""
    batch = encode(score.model.checkpoint, [text])
    if score.special[0] and not batch.axes["text"][0].special[0]:
        batch = encode_after(score.model, text, int(score.ids[0, 0]))
    tracer = _HeadTracer(lambda: None)
    with torch.no_grad(), tracer:
        base_of(score.readout.module)(**batch.inputs)
    return [by_head(mix, 1)[0] for _, mix in tracer.mixes]


def _ablate(
    score: Score, run: _Run, heads: Sequence[Head], replacement: Sequence[Tensor]
) -> Tensor:
    """Return what the score loses without each head, (N,), in float64.

    Runs start at the block of the first ablated head, from the stored residual stream, and
    compute the logits of the read positions only.
    """
    effects = torch.empty(len(heads), dtype=torch.float64, device="cpu")
    if not heads:
        return effects
    order = sorted(range(len(heads)), key=lambda index: heads[index][0])
    can_start = run.can_start and _same_from_the_last_block(score, run)
    direction = score.direction.double().cpu()
    unchanged = run.numbers.detach().double().cpu() @ direction
    size = min(batch_size(score.ids), _LAYERS_AT_ONCE * run.heads)
    for start in track(range(0, len(order), size)):
        batch = order[start : start + size]
        ablated = [heads[index] for index in batch]
        block = run.mixes[ablated[0][0]][0] if can_start else None
        first = sum(index is not None and index < block for index, _ in run.mixes) if block else 0
        patching = HeadPatching(ablated, replacement, run.rows, None, None, layer=first)
        skipping = _shortened(score, run, block or 0, len(batch)) if can_start else nullcontext()
        with skipping, patching:
            numbers = score.outputs(len(batch))
        effects[batch] = unchanged - numbers.double().cpu() @ direction
    return effects


@contextmanager
def _shortened(score: Score, run: _Run, block: int, copies: int) -> Iterator[None]:
    """Run copies of the text from a block on, with the logits of the read positions only."""
    with run.stored.skip(block, copies), _reading(score.readout, score.ids.shape[1]):
        yield


@contextmanager
def _reading(readout: Readout, T: int) -> Iterator[None]:
    """Leave the logits of positions that are not read undefined.

    The unembedding takes longer than many blocks.
    """
    get = getattr(readout.module, "get_output_embeddings", lambda: None)
    unembedding, rows = get(), list(readout.rows)
    if unembedding is None:
        yield
        return

    def select(_: nn.Module, args: tuple[Any, ...]) -> Any:
        (states,) = args
        return (states[:, rows],) if states.dim() == 3 and states.shape[1] == T else None

    def place(_: nn.Module, args: tuple[Any, ...], logits: Tensor) -> Tensor:
        if args[0].shape[1] != len(rows) or len(rows) == T:
            return logits
        every = logits.new_empty(logits.shape[0], T, logits.shape[-1])
        every[:, rows] = logits
        return every

    hooks = [
        unembedding.register_forward_pre_hook(select),
        unembedding.register_forward_hook(place),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _same_from_the_last_block(score: Score, run: _Run) -> bool:
    """Return whether the last block alone gives what the whole model gives."""
    with _shortened(score, run, len(run.stored.blocks) - 1, 1):
        numbers = score.outputs(1)
    error = (numbers - run.numbers.detach()).norm()
    return bool((error <= _SAME * run.numbers.detach().norm()).item())
