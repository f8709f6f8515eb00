"""Change words of a text (`intervene`), or heads of a run (`HeadRun`), and measure the effect."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from attnviz.attribution import tracing
from attnviz.attribution.prediction import NextTokens
from attnviz.attribution.target import (
    Readout,
    Target,
    base_of,
    has_two_vocabularies,
    mask_id,
    mask_token,
)
from attnviz.attribution.tracing import Elementwise, StoredRun
from attnviz.errors import InputError, ModelError
from attnviz.inputs.text import tokenizer_of
from attnviz.pipeline.attend import Model
from attnviz.runtime import part, track

Head: TypeAlias = tuple[int, int]  # layer, head
Ablation: TypeAlias = Literal["zero", "mean", "resample"]
Outputs: TypeAlias = Sequence[Tensor]  # of the heads of each layer, (H, T, d_v) each
Words: TypeAlias = Sequence[Sequence[int]]  # the positions of the pieces of each

ALL = ("mask", "replace", "knock-out", "delete")
_MOST_TOKENS = 1024, 16384  # in one batch: on a CPU, whose caches are small, and on a GPU
_COMMON, _DRAWS = 1000, 8  # common words of a vocabulary, and how many replace a word
FEW = 32  # words, each changed in every way; of more, each in one way
_LAYERS_AT_ONCE = 2  # layers whose heads are ablated in one batch
_SAME = 1e-3  # relative difference of two runs of the same numbers: rounding


# --- words


def batch_size(ids: Tensor) -> int:
    """Return how many texts of this length to run in one batch."""
    return max(1, _MOST_TOKENS[ids.device.type != "cpu"] // ids.shape[-1])


def intervene(
    target: Target,
    words: Words,
    interventions: Sequence[str],
    unchanged: Tensor | None = None,
    *,
    avoided: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return the effects of K changes of each word by intervention, (W, K, d).

    An effect is the vector in the unchanged text minus the vector after the change. "replace" has
    one for each common word; the others have one.

    words : the positions of the pieces of each word to change. interventions : some of `ALL`.
    unchanged : the vector in the unchanged text, (1, d), if it is known. avoided : tokens that
    replace no word, if others can.
    """
    unchanged = target.outputs(1) if unchanged is None else unchanged
    unchanged = unchanged.double().cpu()[:, None]
    if not words:
        return dict.fromkeys(interventions, unchanged[:0])
    model = target.model

    common = common_words(model) if "replace" in interventions else []
    stand_ins = [n for n in common if avoided is None or n not in avoided] or common
    changes: dict[str, Callable[[], Tensor]] = {
        "mask": lambda: substitute_each(target, words, [mask_token(model)]),
        "replace": lambda: substitute_each(target, words, stand_ins),
        "knock-out": lambda: knock_out(target, words)[:, None],
        "delete": lambda: delete(target, words)[:, None],
    }
    if len(stand_ins) < 2:  # a word would replace itself
        interventions = [name for name in interventions if name != "replace"]
    effects = {}
    for number, name in enumerate(interventions):
        with part(number, len(interventions), f"each word: {name}"):
            effects[name] = unchanged - changes[name]().double().cpu()
    return effects


def available_interventions(model: Model) -> tuple[str, ...]:
    """Return the interventions that a model allows, the default first."""
    if has_two_vocabularies(model):  # no token replaces words of both
        return "knock-out", "delete"
    return ALL if mask_id(model) is not None else ("knock-out", "replace", "delete")


def substitute_each(target: Target, words: Words, tokens: Sequence[int]) -> Tensor:
    """Replace each word by each of K tokens, one in each run; return what is read, (W, K, d)."""
    replacements = torch.tensor(tokens, device=target.ids.device)
    runs = target.ids.repeat(len(words) * len(tokens), 1)
    for word, positions in enumerate(words):
        for piece, position in enumerate(positions):
            first = word * len(tokens)
            chosen = replacements.roll(-piece)
            is_same = chosen == target.ids[0, position]  # then the next one takes its place
            runs[first : first + len(tokens), position] = chosen.where(~is_same, chosen.roll(1))
    batches = torch.split(runs, batch_size(target.ids))
    ends = torch.cat([target.outputs(len(batch), batch) for batch in track(batches)])
    return ends.reshape(len(words), len(tokens), -1)


def knock_out(target: Target, words: Words) -> Tensor:
    """Hide each word from all other positions in every layer; return the target's vectors, (W, d).

    Source: attention knockout (Geva et al. 2023, arXiv:2304.14767).
    """
    size, ends = batch_size(target.ids), []
    for start in track(range(0, len(words), size)):
        batch = words[start : start + size]
        gates = gates_without(target.ids.shape[1], [[word] for word in batch], target.ids.device)
        with AttentionKnockout(gates, target.readout) as knockout:
            ends.append(target.outputs(len(batch)))
        if not knockout.count:
            raise ModelError(
                f"No attention of {target.model.name} could be traced, so no word can be knocked "
                "out. Run it with eager attention."
            )
    return torch.cat(ends)


def gates_without(T: int, hidden: Sequence[Words], device: torch.device) -> Tensor:
    """Return the visible keys, (N, T, T), if words (their positions) are hidden from all others."""
    gates = torch.ones(len(hidden), T, T, dtype=torch.bool, device=device)
    for gate, words in zip(gates, hidden, strict=True):
        for positions in words:
            columns = torch.tensor(positions, dtype=torch.long, device=device)
            gate[:, columns] = False
            gate[columns[:, None], columns] = True
    return gates


def delete(target: Target, words: Words) -> Tensor:
    """Delete each word from the text and return the vectors of the target, (W, d)."""
    return torch.cat([target.without(positions).outputs(1) for positions in track(words)])


class AttentionKnockout(tracing.AttentionTracer):
    """Masks every attention by a gate, (T, T) or (N, T, T), while N texts run; counts them."""

    def __init__(self, gate: Tensor | None, readout: Readout | None = None) -> None:
        super().__init__(readout)
        self.gate, self.count = gate, 0

    def softmax(self, original: Elementwise, scores: Tensor, options: Mapping[str, Any]) -> Tensor:
        """Return the softmax over the keys that the gate allows."""
        if (gate := self.gate_over(self.gate, scores)) is None:
            return original(scores)
        self.count += 1
        gated = tracing.by_head(scores, len(gate)).masked_fill(~gate, -torch.inf)
        return original(gated.reshape_as(scores))


def common_words(model: Model) -> list[int]:
    """Return random tokens from the beginning of the vocabulary, which has the common words.

    Only tokens that are a whole word of letters count; all but special ones in a vocabulary without
    any, such as one of single letters. The draw is the same every time.
    """
    if not (common := whole_words(model)):
        tokenizer = tokenizer_of(model.checkpoint)
        special = {*tokenizer.all_special_ids}
        common = [token for token in range(len(tokenizer)) if token not in special][:_COMMON]
    return random.Random(0).sample(common, _DRAWS) if len(common) >= _DRAWS else common


def whole_words(model: Model) -> list[int]:
    """Return the first tokens that are whole words of letters, or single letters without any."""
    tokenizer = tokenizer_of(model.checkpoint)

    def is_word(token: int, before: str, shortest: int) -> bool:
        word = str(tokenizer.decode([token])).strip()
        if len(word) < shortest or not word.isalpha():
            return False
        return bool(tokenizer.encode(before + word, add_special_tokens=False) == [token])

    # In vocabularies with blanks, tokens without a blank are the inner pieces of words.
    for before, shortest in ((" ", 2), ("", 2), ("", 1)):
        words = (token for token in range(len(tokenizer)) if is_word(token, before, shortest))
        common = list(islice(words, _COMMON))
        if len(common) >= _DRAWS:
            break
    return common


def token_of(model: Model, word: str) -> int:
    """Return the token of a word in a text; raise ModelError if it is not one token."""
    tokenizer = tokenizer_of(model.checkpoint)
    for before in (" ", ""):
        ids = tokenizer.encode(before + word, add_special_tokens=False)
        if len(ids) == 1 and str(tokenizer.decode(ids)).strip().lower() == word.lower():
            return int(ids[0])
    raise ModelError(f"“{word}” is not one token of {model.name}. Choose another word.")


# --- heads


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
        is_direct, heads = effect == "direct", run.every_head
        patched = run.without(heads, other.outputs, measure=lambda x: x, is_direct=is_direct)
        effects.append((run.numbers.detach() - patched) * sign)
    return ((effects[0] + effects[1]) / 2).reshape(len(first.mixes), first.heads, -1)


@dataclass(frozen=True, eq=False)
class HeadRun:
    """One run of the text, with everything that changes of its heads start from."""

    target: Target
    stored: StoredRun
    mixes: list[tuple[int | None, tracing.TracedAttention]]  # with the block of each attention
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
        stored = StoredRun(base_of(target.readout.module))
        mixes: list[tuple[int | None, tracing.TracedAttention]] = []
        with stored.record(), AttentionKnockout(gate):
            tracer = tracing.AttentionTracer(on_mix=lambda mix: mixes.append((stored.running, mix)))
            _, numbers = tracing.trace_run(target.readout, target.inputs, tracer)
        if not mixes:
            raise ModelError(
                f"No attention of {target.model.name} could be traced, so no head can be ablated. "
                "Run it with eager attention."
            )
        T = target.ids.shape[1]
        shapes = {tracing.by_head(mix.mixed, 1).shape[1:3] for _, mix in mixes}
        if len(shapes) != 1 or shapes.pop()[1] != T:
            raise ModelError(
                f"The heads of {target.model.name} cannot be ablated: not every traced attention "
                "has the same number of heads and one row for each token. Choose another kind of "
                "model."
            )
        weights = (tracing.by_head(mix.weights.detach(), 1) for _, mix in mixes)
        causal = not any(
            of_heads[..., 0, 1:].any() for of_heads in weights
        )  # as the first token is
        sink = 0 if target.special[0] and causal else target.sink
        rows = [row for row in range(T) if row != sink or not keep_sink]
        return cls(target, stored, mixes, numbers, rows, gate)

    @property
    def outputs(self) -> list[Tensor]:
        """The outputs of the heads of each layer, before W^O, (H, T, d_v) each."""
        return [tracing.by_head(mix.mixed.detach(), 1)[0] for _, mix in self.mixes]

    @property
    def heads(self) -> int:
        """The number of heads of a layer."""
        return tracing.by_head(self.mixes[0][1].mixed, 1).shape[1]

    @property
    def every_head(self) -> list[tuple[Head]]:
        """Each head alone, by layer."""
        return [((m, n),) for m in range(len(self.mixes)) for n in range(self.heads)]

    def estimate(self, number: Tensor, replacement: Outputs) -> Tensor:
        """Return what a number () of the run loses without each head to first order, (L, H)."""
        tracing.expect_gradients(number)
        mixed = [mix.mixed for _, mix in self.mixes]
        gradients = torch.autograd.grad(number, mixed, materialize_grads=True)
        effects = []
        for output, gradient, other in zip(self.outputs, gradients, replacement, strict=True):
            terms = (tracing.by_head(gradient, 1)[0] * (output - other))[:, self.rows]
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
        is_direct: bool = False,
    ) -> Tensor:
        """Change each set of heads and return what is measured of the output, (N, …).

        The outputs of the heads, before W^O, are replaced at `rows`, and everything after them is
        recomputed. Runs start at the block of the first changed head, from the stored residual
        stream.

        measure : from what is read in some runs, (n, d), to their numbers, (n, …). hidden : keys
        that the heads may not read, in place of a replacement of their outputs. is_direct : whether
        heads are changed only where the output is read, and all others keep their outputs.
        """
        target, rows = self.target, self.rows
        for layer, head in (head for heads in sets for head in heads):
            if not (0 <= layer < len(self.mixes) and 0 <= head < self.heads):
                raise InputError(
                    f"There is no head {head} in layer {layer}: the model has layers "
                    f"0–{len(self.mixes) - 1} and heads 0–{self.heads - 1}."
                )
        order = sorted(range(len(sets)), key=lambda index: min(sets[index]))
        # Whether every attention is inside one of the blocks, which run in a row.
        can_start = self.stored.in_a_row and all(block is not None for block, _ in self.mixes)
        if can_start:  # whether the last block alone gives what the whole model gives
            with self.stored.skip(len(self.stored.blocks) - 1, 1), AttentionKnockout(self.gate):
                numbers, whole = target.outputs(1), self.numbers.detach()
            can_start = bool((numbers - whole).norm() <= _SAME * whole.norm())
        size = min(batch_size(target.ids), _LAYERS_AT_ONCE * self.heads)
        if is_direct:
            rows = [row for row in target.readout.rows if row in rows]
        fixed = self.outputs if is_direct else None
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
            patching = HeadPatching(batch, replacement, rows, fixed, self.gate, first, hidden)
            with self.stored.skip(block or 0, len(batch)), patching:
                parts.append(measure(target.outputs(len(batch))))
            if hidden and not patching.hides:
                raise ModelError(
                    f"The attention of {target.model.name} has no score for each pair of tokens, "
                    "so no token can be hidden from one head."
                )
        measured = torch.cat(parts)
        return measured[torch.tensor(order, device="cpu").argsort().to(measured.device)]


class HeadPatching(AttentionKnockout):
    """Replaces the outputs of some heads in each copy of a text while the copies run.

    heads : the (layer, head) of all that are replaced, by copy. rows : the positions at which they
    are. gate : the keys that each query may attend to, (T, T); None for all. layer : the first
    layer that runs. fixed : the outputs of all other heads in each layer, (H, T, d_v); by default
    they are computed. replacement, hidden : as in `HeadRun.without`.
    """

    def __init__(
        self,
        heads: Sequence[Sequence[Head]],
        replacement: Outputs,
        rows: list[int],
        fixed: Outputs | None,
        gate: Tensor | None,
        layer: int = 0,
        hidden: Sequence[int] = (),
    ) -> None:
        super().__init__(None if gate is None else gate.expand(len(heads), -1, -1))
        self.heads, self.replacement = heads, replacement
        self.rows, self.fixed = rows, fixed
        self.layer, self.hides = layer, False  # hides : whether a score was hidden
        T, device = replacement[0].shape[-2], replacement[0].device
        self.shown = gates_without(T, [[hidden]], device) if hidden else None

    def softmax(self, original: Elementwise, scores: Tensor, options: Mapping[str, Any]) -> Tensor:
        """Return the softmax, where the heads of each copy do not see the hidden keys."""
        if (shown := self.gate_over(self.shown, scores)) is not None:
            by_copy = tracing.by_head(scores, len(self.heads)).clone()
            for copy, head in self._heads_here():
                by_copy[copy, head] = by_copy[copy, head].masked_fill(~shown[0, 0], -torch.inf)
                self.hides = True
            scores = by_copy.reshape_as(scores)
        return super().softmax(original, scores, options)

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return the product of weights and values, with some heads replaced in each copy."""
        mixed = weights @ values
        outputs = tracing.by_head(mixed, len(self.heads))
        if self.fixed is not None:
            outputs = self.fixed[self.layer].expand_as(outputs).clone()
        if self.shown is None:
            for copy, head in self._heads_here():
                outputs[copy, head, self.rows] = self.replacement[self.layer][head, self.rows]
        self.layer += 1
        return outputs.reshape_as(mixed)

    def _heads_here(self) -> Iterator[tuple[int, int]]:
        """Yield each copy and head that is replaced in the layer that runs."""
        for copy, heads in enumerate(self.heads):
            yield from ((copy, head) for layer, head in heads if layer == self.layer)


def measure_without(
    targets: list[Target], sets: Sequence[Sequence[Head]] | None = None, hidden: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Return the means of `NextTokens` of several texts, and of each without each set of heads.

    Heads have their mean output over all texts instead. The shapes are (N, 1, 2) and (N, S, 2).

    sets : by default each head alone. hidden : as in `HeadRun.without`.
    """
    outputs = [outputs_of(target) for target in targets]
    before, after = [], []
    for target in track(targets, "ablating heads"):
        run = HeadRun.of(target)
        means = replace_outputs(run, "mean", outputs)
        chosen = run.every_head if sets is None else sets
        after.append(run.without(chosen, means, measure=NextTokens.means, hidden=hidden))
        before.append(NextTokens.means(run.numbers.detach()))
    return torch.stack(before), torch.stack(after)


def replace_outputs(run: HeadRun, how: Ablation, others: Sequence[Outputs] = ()) -> list[Tensor]:
    """Return what replaces the outputs of the heads of each layer, (H, T, d_v) each.

    "zero" replaces them by zeros, "mean" by the mean output of the head over the positions of other
    texts, "resample" by its outputs in another text, which starts anew where it is shorter. Without
    `others` the mean is that of the text itself, and "resample" reads it from its middle on.
    """
    outputs = run.outputs
    if how == "zero":
        return [torch.zeros_like(output) for output in outputs]
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
    mixes: list[tracing.TracedAttention] = []
    with torch.no_grad(), tracing.AttentionTracer(on_mix=mixes.append):
        base_of(target.readout.module)(**(target.inputs if inputs is None else inputs))
    return [tracing.by_head(mix.mixed, 1)[0] for mix in mixes]
