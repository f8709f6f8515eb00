"""Change one word of a text, or what heads read and write, and measure the effect."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnviz.attribution.target import Places, Target, mask_token
from attnviz.attribution.tracing import AttentionTracer, Elementwise, by_head
from attnviz.errors import ModelError
from attnviz.inputs.text import tokenizer_of
from attnviz.pipeline.attend import Model
from attnviz.runtime.progress import part, track

Words: TypeAlias = Sequence[Sequence[int]]  # the positions of the pieces of each

ALL = ("mask", "replace", "knock-out", "delete")
_MOST_TOKENS = 1024, 16384  # in one batch: on a CPU, whose caches are small, and on a GPU
_COMMON, _DRAWS = 1000, 8  # common words of a vocabulary, and how many replace a word


def batch_size(ids: Tensor) -> int:
    """Return how many texts of this length to run in one batch."""
    return max(1, _MOST_TOKENS[ids.device.type != "cpu"] // ids.shape[-1])


def intervene(target: Target, words: Words, interventions: Sequence[str]) -> dict[str, Tensor]:
    """Return the effects of changing each word, (W, d), by intervention.

    An effect is the vector in the unchanged text minus the vector after the change.
    words : the positions of the pieces of each word to change. interventions : some of `ALL`.
    """
    unchanged = target.outputs(1)
    if not words:
        return {name: unchanged[:0].double().cpu() for name in interventions}
    functions: dict[str, Callable[[], Tensor]] = {
        "mask": lambda: substitute_each(target, words, [mask_token(target.model)]).mean(1),
        "replace": lambda: substitute_each(target, words, common_words(target.model)).mean(1),
        "knock-out": lambda: knock_out(target, words),
        "delete": lambda: delete(target, words),
    }
    effects = {}
    for number, name in enumerate(interventions):
        with part(number, len(interventions), f"each word: {name}"):
            effects[name] = (unchanged - functions[name]()).double().cpu()
    return effects


def measure_words(
    target: Target, value: float, words: Words, ids: Tensor, *, knock_out: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Return what the number loses by each change of a word, (W,), and by each replacement, (K, W).

    value : the number in the text. ids : the tokens of the text and of its reference, (2, T), which
    replace no word. knock_out : also hide each word from all attention, which has to be traced.
    """
    left_out = ("replace",) if knock_out else ("replace", "knock-out")
    others = [name for name in available_interventions(target.model) if name not in left_out]
    with part(0, 2):
        causal = {name: lost[:, 0] for name, lost in intervene(target, words, others).items()}
    common = common_words(target.model)
    stand_ins = [token for token in common if token not in ids] or common
    with part(1, 2, "each word: replace"):
        ends = substitute_each(target, words, stand_ins)[..., 0].double().cpu()
    replacements = (value - ends).T
    return {**causal, "replace": replacements.mean(0)}, replacements


def available_interventions(model: Model) -> tuple[str, ...]:
    """Return the interventions that a model allows, the default first."""
    has_mask = getattr(model.tokenizer, "mask_token_id", None) is not None
    return ALL if has_mask else ("knock-out", "replace", "delete")


def substitute_each(target: Target, words: Words, tokens: Sequence[int]) -> Tensor:
    """Replace each word by each of K tokens, one in each run; return what is read, (W, K, d)."""
    if not words:
        return target.outputs(1)[:0, None].expand(0, len(tokens), -1)
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
        with AttentionKnockout(gates[:, None], target.readout.places) as knockout:
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


class AttentionKnockout(AttentionTracer):
    """Masks every attention by a gate (N, 1, T, T) while N texts run; counts those in `count`."""

    def __init__(self, gate: Tensor, places: Places | None = None) -> None:
        super().__init__(places)
        self.gate, self.count = gate, 0

    def softmax(self, original: Elementwise, scores: Tensor, options: Mapping[str, Any]) -> Tensor:
        """Return the softmax over the keys that the gate allows."""
        if (gate := self.gate_over(self.gate, scores)) is None:
            return original(scores)
        self.count += 1
        gated = by_head(scores, len(gate)).masked_fill(~gate, -torch.inf)
        return original(gated.reshape_as(scores))


def common_words(model: Model) -> list[int]:
    """Return random tokens from the beginning of the vocabulary, which has the common words.

    Only tokens that are a whole word of letters count; all but special ones in a vocabulary without
    any, such as one of single letters. The draw is the same every time.
    """
    common = whole_words(model)
    if not common:
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


class HeadPatching(AttentionKnockout):
    """Replaces the outputs of some heads in each copy of a text while the copies run.

    heads : the (layer, head) of all that are replaced, by copy. rows : the positions at which they
    are. gate : the keys that each query may attend to, (T, T); None for all. layer : the first
    layer that runs. replacement, fixed, hidden : as in `HeadRun.without`.
    """

    def __init__(
        self,
        heads: Sequence[Sequence[tuple[int, int]]],
        replacement: Sequence[Tensor],
        rows: list[int],
        fixed: Sequence[Tensor] | None,
        gate: Tensor | None,
        layer: int = 0,
        hidden: Sequence[int] = (),
    ) -> None:
        T = replacement[0].shape[-2]
        every = torch.ones(T, T, dtype=torch.bool, device=replacement[0].device)
        super().__init__((every if gate is None else gate).expand(len(heads), 1, T, T))
        self.heads, self.replacement = heads, replacement
        self.rows, self.fixed = rows, fixed
        self.layer = layer
        self.is_hiding, self.hides = len(hidden) > 0, False  # hides: whether a score was hidden
        self.shown = gates_without(T, [[hidden]], every.device)[0]

    def softmax(self, original: Elementwise, scores: Tensor, options: Mapping[str, Any]) -> Tensor:
        """Return the softmax, where the heads of each copy do not see the hidden keys."""
        shown = self.gate_over(self.shown, scores) if self.is_hiding else None
        if shown is not None:
            by_copy = by_head(scores, len(self.heads)).clone()
            for copy, head in self._heads_here():
                by_copy[copy, head] = by_copy[copy, head].masked_fill(~shown, -torch.inf)
                self.hides = True
            scores = by_copy.reshape_as(scores)
        return super().softmax(original, scores, options)

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return the product of weights and values, with some heads replaced in each copy."""
        mixed = weights @ values
        outputs = by_head(mixed, len(self.heads))
        if self.fixed is not None:
            outputs = self.fixed[self.layer].expand_as(outputs).clone()
        if not self.is_hiding:
            for copy, head in self._heads_here():
                outputs[copy, head, self.rows] = self.replacement[self.layer][head, self.rows]
        self.layer += 1
        return outputs.reshape_as(mixed)

    def _heads_here(self) -> Iterator[tuple[int, int]]:
        """Yield each copy and head that is replaced in the layer that runs."""
        for copy, heads in enumerate(self.heads):
            yield from ((copy, head) for layer, head in heads if layer == self.layer)
