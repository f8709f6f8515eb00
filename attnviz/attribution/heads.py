"""Change heads of a run, and measure the effect: ablate them, patch them, or hide tokens from them.

`HeadRun.without` is the experiment. What replaces the outputs of heads, in which sets, and what is
measured of the output is left to its callers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from attnviz.attribution import tracing
from attnviz.attribution.interventions import AttentionKnockout, HeadPatching, batch_size
from attnviz.attribution.lens import StoredRun
from attnviz.attribution.prediction import NextTokens
from attnviz.attribution.target import Score, Target, base_of
from attnviz.errors import InputError, ModelError
from attnviz.results.base import Rules, Savable
from attnviz.runtime.progress import part, track

Head: TypeAlias = tuple[int, int]  # layer, head
Ablation: TypeAlias = Literal["zero", "mean", "resample"]
Outputs: TypeAlias = Sequence[Tensor]  # of the heads of each layer, (H, T, d_v) each

EXACT = 30  # heads that are ablated exactly by default
_LAYERS_AT_ONCE = 2  # layers whose heads are ablated in one batch
_SAME = 1e-3  # relative difference of two runs of the same numbers: rounding


@dataclass(frozen=True, eq=False)
class HeadEffects(Savable):
    """What the score loses without each head: score - score after the ablation, (L, H) each."""

    estimate: Tensor  # to first order, from one gradient
    exact: Tensor  # from a run without the head; NaN where it was not ablated

    def _rules(self) -> Rules:
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


def head_effects(score: Score, *, exact: int = EXACT) -> HeadEffects:
    """Return the estimated effect of setting each head to zero, and the exact one of the largest.

    The estimate is gradient × (output of the head - its replacement), summed over positions: the
    effect to first order. The `exact` heads with the largest estimates are ablated as in
    `ablate_each`.

    Source: attribution patching (Syed et al. 2023, arXiv:2310.10348).
    """
    if exact < 0:
        raise InputError(f"exact should be 0 or more heads, not {exact}.")
    run = HeadRun.of(score)
    zeros = replace_outputs(run, "zero")
    with torch.enable_grad():
        number = score.project(run.numbers)
    estimate = run.estimate(number, zeros)
    order = estimate.abs().flatten().argsort(descending=True, stable=True)[:exact]
    largest = [divmod(int(index), estimate.shape[1]) for index in order]
    table = torch.full_like(estimate, torch.nan)
    table.view(-1)[order] = ablate_each(score, run, largest, zeros)
    return HeadEffects(estimate, table)


def ablate_each(score: Score, run: HeadRun, heads: Sequence[Head], replacement: Outputs) -> Tensor:
    """Ablate each head by itself and return what the score loses, (N,), in float64."""
    direction = score.direction.double().cpu()

    def measure(numbers: Tensor) -> Tensor:
        return numbers.double().cpu() @ direction

    left = run.without([[head] for head in heads], replacement, measure=measure)
    return measure(run.numbers.detach()) - left


def patch_heads(
    target: Target,
    inputs: Mapping[str, Tensor],
    *,
    gate: Tensor | None = None,
    effect: Literal["direct", "total"],
) -> Tensor:
    """Patch each head between two runs and return its effect on what is read, (L, H, d).

    Direct effect: the head is patched at the word, and all other attention is fixed, so that only
    the path through the later norms and MLPs of the word's own position is open. Total effect: the
    head is patched at all positions, and everything after it is recomputed. An effect depends on
    the other heads. Each head is therefore patched in both runs, and the mean is returned.

    inputs : of the two runs, (2, T) each. gate : which keys each query may attend to in the first,
    (T, T).

    Sources: path patching (Goldowsky-Dill et al. 2023, arXiv:2304.05969); direct and total effects
    (Vig et al. 2020, arXiv:2004.12265).
    """
    sides = ({name: both[n : n + 1] for name, both in inputs.items()} for n in range(2))
    first, second = (
        HeadRun.of(replace(target, inputs=side), keep_sink=False, gate=keys)
        for side, keys in zip(sides, (gate, None), strict=True)
    )
    effects = []
    for run, other, sign in ((second, first, 1), (first, second, -1)):
        fixed = run.outputs if effect == "direct" else None
        patched = run.without(run.every_head, other.outputs, measure=lambda x: x, fixed=fixed)
        effects.append((run.numbers.detach() - patched) * sign)
    mean = (effects[0] + effects[1]) / 2
    return mean.reshape(len(first.mixes), first.heads, -1)


@dataclass(frozen=True, eq=False)
class HeadRun:
    """One run of the text, with everything that changes of its heads start from."""

    target: Target
    stored: StoredRun
    mixes: list[tuple[int | None, Tensor]]  # by attention: its block, and the output of its heads
    numbers: Tensor  # what is read, (1, d)
    rows: list[int]  # the positions at which heads are changed
    gate: Tensor | None  # the keys that each query may attend to, (T, T); None for all

    @classmethod
    def of(cls, target: Target, *, keep_sink: bool = True, gate: Tensor | None = None) -> HeadRun:
        """Run the text once, with the graph of gradients.

        keep_sink : whether no head is changed at the attention sink. This is the first token of a
        causal model if it is special or `target.sink`.
        """
        if target.readout.stacks:
            raise ModelError(
                f"{target.model.name} has an encoder and a decoder, and heads are ablated in "
                "models with one of them only"
            )
        stored, causal = StoredRun(base_of(target.readout.module)), True
        mixes: list[tuple[int | None, Tensor]] = []

        def note(mix: tracing.TracedAttention) -> None:
            nonlocal causal  # whether the first token attends to itself only
            mixes.append((stored.running, mix.mixed))
            causal &= not tracing.by_head(mix.weights.detach(), 1)[..., 0, 1:].any().item()

        with stored.record(), gated(gate):
            _, numbers = tracing.trace_run(target.readout, target.inputs, tracing.MixTracer(note))
        if not mixes:
            raise ModelError(
                f"No attention of {target.model.name} could be traced, so no head can be ablated. "
                "Run it with eager attention."
            )
        T = target.ids.shape[1]
        shapes = {tracing.by_head(mix, 1).shape[1:3] for _, mix in mixes}
        if len(shapes) != 1 or shapes.pop()[1] != T:
            raise ModelError(
                f"The heads of {target.model.name} cannot be ablated: not every traced attention "
                "has the same number of heads and one row for each token. Choose another kind of "
                "model."
            )
        sink = 0 if target.special[0] and causal else target.sink
        rows = [row for row in range(T) if row != sink or not keep_sink]
        return cls(target, stored, mixes, numbers, rows, gate)

    @property
    def outputs(self) -> list[Tensor]:
        """The outputs of the heads of each layer, before W^O, (H, T, d_v) each."""
        return [tracing.by_head(mix.detach(), 1)[0] for _, mix in self.mixes]

    @property
    def heads(self) -> int:
        """The number of heads of a layer."""
        return tracing.by_head(self.mixes[0][1], 1).shape[1]

    @property
    def every_head(self) -> list[tuple[Head]]:
        """Each head alone, by layer."""
        return [((m, n),) for m in range(len(self.mixes)) for n in range(self.heads)]

    @property
    def can_start(self) -> bool:
        """Whether every attention is inside one of the blocks, which run in a row."""
        return self.stored.in_a_row and all(block is not None for block, _ in self.mixes)

    def estimate(self, number: Tensor, replacement: Outputs) -> Tensor:
        """Return what a number () of the run loses without each head to first order, (L, H)."""
        mixed = [mix for _, mix in self.mixes]
        tracing.expect_gradients(number)
        gradients = torch.autograd.grad(number, mixed, allow_unused=True)
        effects = []
        for mix, gradient, other in zip(mixed, gradients, replacement, strict=True):
            slope = torch.zeros_like(mix) if gradient is None else gradient
            difference = tracing.by_head(mix.detach(), 1)[0] - other
            terms = tracing.by_head(slope, 1)[0][:, self.rows] * difference[:, self.rows]
            effects.append(terms.double().sum((-2, -1)).cpu())
        estimate = torch.stack(effects)
        if not estimate.isfinite().all():
            raise ModelError(f"the gradient of {self.target.model.name} is nan or infinite")
        return estimate

    def without(
        self,
        sets: Sequence[Sequence[Head]],
        replacement: Outputs,
        *,
        measure: Callable[[Tensor], Tensor],
        hidden: Sequence[int] = (),
        fixed: Outputs | None = None,
    ) -> Tensor:
        """Change each set of heads and return what is measured of the output, (N, …).

        The outputs of the heads, before W^O, are replaced at `rows`, and everything after them is
        recomputed. Runs start at the block of the first changed head, from the stored residual
        stream.

        measure : from what is read in some runs, (n, d), to their numbers, (n, …). hidden : keys
        that the heads may not read, in place of a replacement of their outputs. fixed : the outputs
        of all other heads, (H, T, d_v) in each layer; by default they are computed. Heads are then
        changed only where the output is read.
        """
        target, rows = self.target, self.rows
        for layer, head in (head for heads in sets for head in heads):
            if not (0 <= layer < len(self.mixes) and 0 <= head < self.heads):
                raise InputError(
                    f"There is no head {head} in layer {layer}: the model has layers "
                    f"0–{len(self.mixes) - 1} and heads 0–{self.heads - 1}."
                )
        order = sorted(range(len(sets)), key=lambda index: min(sets[index]))
        can_start = self.can_start
        if can_start:  # whether the last block alone gives what the whole model gives
            with self.stored.skip(len(self.stored.blocks) - 1, 1), gated(self.gate):
                numbers, whole = target.outputs(1), self.numbers.detach()
            can_start = bool((numbers - whole).norm() <= _SAME * whole.norm())
        size = min(batch_size(target.ids), _LAYERS_AT_ONCE * self.heads)
        if fixed is not None:
            rows = [row for row in target.readout.rows if row in rows]
        if not rows:
            raise InputError(
                "The heads can be ablated at no token: the text has only the attention sink, or "
                "the output is read there. Choose a longer text."
            )
        parts = []
        for start in track(range(0, len(order), size)):
            batch = [sets[index] for index in order[start : start + size]]
            block = self.mixes[min(batch[0])[0]][0] if can_start else None
            first = sum(index is not None and index < (block or 0) for index, _ in self.mixes)
            patching = HeadPatching(
                batch, replacement, rows, fixed, self.gate, layer=first, hidden=hidden
            )
            skipping = self.stored.skip(block or 0, len(batch)) if can_start else nullcontext()
            with skipping, patching:
                parts.append(measure(target.outputs(len(batch))))
            if hidden and not patching.hides:
                raise ModelError(
                    f"The attention of {target.model.name} has no score for each pair of tokens, "
                    "so no token can be hidden from one head."
                )
        if not parts:
            return torch.empty(0, dtype=torch.float64, device="cpu")
        measured = torch.cat(parts)
        return measured[torch.tensor(order, device="cpu").argsort().to(measured.device)]


def measure_without(
    targets: list[Target], sets: Sequence[Sequence[Head]] | None = None, hidden: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Return the means of `NextTokens` of several texts, and of each without each set of heads.

    Heads have their mean output over all texts instead. The shapes are (N, 1, 2) and (N, S, 2).

    sets : by default each head alone. hidden : as in `HeadRun.without`.
    """
    outputs = [outputs_of(target) for target in targets]
    before, after = [], []
    for number, target in enumerate(targets):
        run = HeadRun.of(target)
        means = replace_outputs(run, "mean", outputs)
        chosen = run.every_head if sets is None else sets
        with part(number, len(targets), "ablating heads"):
            after.append(run.without(chosen, means, measure=NextTokens.means, hidden=hidden))
        before.append(NextTokens.means(run.numbers.detach()))
    return torch.stack(before), torch.stack(after)


def gated(gate: Tensor | None) -> AbstractContextManager[Any]:
    """Return a context in which each query attends only to the keys that a gate (T, T) allows."""
    return nullcontext() if gate is None else AttentionKnockout(gate[None, None])


def replace_outputs(run: HeadRun, how: Ablation, others: Sequence[Outputs] = ()) -> list[Tensor]:
    """Return what replaces the outputs of the heads of each layer, (H, T, d_v) each.

    "zero" replaces them by zeros, "mean" by the mean output of the head over the positions of other
    texts, "resample" by its outputs in another text, which starts anew where it is shorter. Without
    `others` the mean is that of the text itself, and "resample" reads it from its middle on.
    """
    outputs = run.outputs
    if how == "zero":
        return [torch.zeros_like(output) for output in outputs]
    if how not in ("mean", "resample"):
        raise InputError(f"how should be zero, mean or resample, not {how!r}.")
    if len(run.rows) < (1 if others else 2):
        raise InputError(
            f"The text is too short to replace the output of a head by its {how} over other "
            "positions. Choose a longer text, or zeros."
        )
    first = min(run.rows)  # after the sink
    texts = others or [outputs]
    replaced = []
    for output, *of_texts in zip(outputs, *texts, strict=True):
        other, *more = [text[:, first:] for text in of_texts]
        if how == "mean":
            mean = torch.cat([other, *more], dim=1).mean(1, keepdim=True)
            replaced.append(mean.expand_as(output))
            continue
        start = 0 if others else other.shape[1] // 2
        places = [(start + row) % other.shape[1] for row in range(output.shape[1] - first)]
        replaced.append(torch.cat([output[:, :first], other[:, places]], dim=1))
    return replaced


def outputs_of(target: Target, inputs: Mapping[str, Tensor] | None = None) -> list[Tensor]:
    """Return the head outputs of each layer in a text, by default the target's, (H, T, d_v)."""
    outputs: list[Tensor] = []
    with (
        torch.no_grad(),
        tracing.MixTracer(lambda mix: outputs.append(tracing.by_head(mix.mixed, 1)[0])),
    ):
        base_of(target.readout.module)(**(target.inputs if inputs is None else inputs))
    return outputs
