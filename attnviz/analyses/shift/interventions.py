"""Change one word of a text, or one head, and measure the effect on another word's vector.

Effects are differences: the vector as it is minus the vector after the change.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.analyses.shift.deeplift import DeepLift
from attnviz.analyses.shift.reference import mask_token
from attnviz.analyses.shift.tracing import AttentionTracer, by_head, trace_run
from attnviz.errors import ModelError
from attnviz.pipeline.attend import Model
from attnviz.runtime.progress import part, track

ALL = ("mask", "replace", "knock-out", "delete")
MOST_TOKENS = 1024, 16384  # in one batch: on a CPU, whose caches are small, and on a GPU
_COMMON, _DRAWS = 1000, 8  # common words of a vocabulary, and how many replace a word


@dataclass(frozen=True, eq=False)
class TargetWord:
    """A word in a text, on whose vector effects are measured.

    Attributes
    ----------
    module : Module
        The model.
    inputs : mapping of str to Tensor
        What the model takes for the text, (1, T) each.
    rows : tuple of int
        The positions of the pieces of the word. Their vectors are averaged.
    end : Tensor
        Its vector in the unchanged text, (d,).
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]
    rows: tuple[int, ...]
    end: Tensor

    @classmethod
    def of(cls, module: nn.Module, inputs: Mapping[str, Tensor], rows: Sequence[int]) -> TargetWord:
        """Run the model on the unchanged text."""
        (end,) = _ends(module, inputs, rows)
        return cls(module, inputs, tuple(rows), end)

    @property
    def length(self) -> int:
        """The number of tokens of the text."""
        return self.inputs["input_ids"].shape[1]


def substitute(target: TargetWord, words: Sequence[Sequence[int]], tokens: Sequence[int]) -> Tensor:
    """Replace each word by other tokens and return the mean effect, (W, d).

    Parameters
    ----------
    target : TargetWord
        The word on which effects are measured.
    words : sequence of sequence of int
        The positions of the pieces of each word to replace.
    tokens : sequence of int
        The ids that replace a piece, in one run each: [MASK], or several from the vocabulary.
    """
    ids = target.inputs["input_ids"]
    replacements = torch.tensor(tokens, device=ids.device)
    runs = ids.repeat(len(words) * len(tokens), 1)
    for word, positions in enumerate(words):
        for piece, position in enumerate(positions):
            first = word * len(tokens)
            runs[first : first + len(tokens), position] = replacements.roll(-piece)
    ends = [
        _ends(target.module, {**_repeat(target, len(batch)), "input_ids": batch}, target.rows)
        for batch in track(torch.split(runs, _batch_size(target)))
        if len(batch)
    ]
    return target.end - _join(ends, target).reshape(len(words), len(tokens), len(target.end)).mean(
        1
    )


def knock_out(target: TargetWord, words: Sequence[Sequence[int]]) -> Tensor:
    """Hide each word from all other positions in every layer and return the effect, (W, d).

    Raises
    ------
    ModelError
        No attention could be traced.

    Source: attention knockout (Geva et al. 2023, arXiv:2304.14767).
    """
    T, size, ends = target.length, _batch_size(target), []
    for start in track(range(0, len(words), size)):
        batch = words[start : start + size]
        gates = torch.ones(len(batch), 1, T, T, dtype=torch.bool, device=target.end.device)
        for gate, positions in zip(gates[:, 0], batch, strict=True):
            columns = torch.tensor(positions)
            gate[:, columns] = False
            gate[columns[:, None], columns] = True
        with AttentionKnockout(gates) as knockout:
            ends.append(_ends(target.module, _repeat(target, len(batch)), target.rows))
        if not knockout.count:
            raise ModelError(
                "Expected attention in which a word can be hidden, but none was traced in "
                f"{type(target.module).__name__}. Run it with eager attention."
            )
    return target.end - _join(ends, target)


def delete(target: TargetWord, words: Sequence[Sequence[int]]) -> Tensor:
    """Delete each word from the text and return the effect, (W, d)."""
    ends = []
    for positions in track(words):
        rest = [position for position in range(target.length) if position not in positions]
        shorter = {name: tensor[:, rest] for name, tensor in target.inputs.items()}
        ends.append(_ends(target.module, shorter, [rest.index(row) for row in target.rows]))
    return target.end - _join(ends, target)


class AttentionKnockout(AttentionTracer):
    """Masks every attention by a gate (N, 1, T, T) while N texts run.

    count : the number of attentions that were masked.
    """

    def __init__(self, gate: Tensor) -> None:
        super().__init__()
        self.gate, self.count = gate, 0

    def softmax(
        self, original: Callable[[Tensor], Tensor], scores: Tensor, options: Mapping[str, Any]
    ) -> Tensor:
        """Return the softmax over the keys that the gate allows."""
        if scores.shape[-2:] != self.gate.shape[-2:]:
            return original(scores)
        self.count += 1
        gated = by_head(scores, len(self.gate)).masked_fill(~self.gate, -torch.inf)
        return original(gated.reshape_as(scores))


def _batch_size(target: TargetWord) -> int:
    """Return how many texts to run in one batch."""
    return max(1, MOST_TOKENS[target.end.device.type != "cpu"] // target.length)


def _repeat(target: TargetWord, runs: int) -> dict[str, Tensor]:
    return {name: tensor.expand(runs, -1) for name, tensor in target.inputs.items()}


def _join(ends: Sequence[Tensor], target: TargetWord) -> Tensor:
    return torch.cat([target.end.new_empty(0, len(target.end)), *ends])


def _ends(module: nn.Module, inputs: Mapping[str, Tensor], rows: Sequence[int]) -> Tensor:
    """Return the mean over `rows` of the last hidden state of each text, (N, d)."""
    base: nn.Module = getattr(module, "base_model", module)
    with torch.no_grad():
        end: Tensor = base(**inputs)[0]
    return end[:, list(rows)].mean(1)


def patch_heads(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    *,
    rows: Sequence[int],
    gate: Tensor | None = None,
) -> Tensor:
    """Patch each head at a word between two runs and return its direct effect, (L, H, d).

    All other attention is fixed, so that only the path through the later norms and MLPs of the
    word's own position is open. The effect of a head depends on the others. Each head is therefore
    patched in both runs, and the mean is returned.

    Parameters
    ----------
    module : Module
        The model.
    inputs : mapping of str to Tensor
        What the model takes, (2, T) each: the reference, then the text.
    rows : sequence of int
        The positions of the pieces of the word.
    gate : Tensor, optional
        The keys that each query may attend to in the reference, (T, T), as in `decompose_shift`.

    Raises
    ------
    ValueError
        No attention could be traced.

    Source: path patching (Goldowsky-Dill et al. 2023, arXiv:2304.05969).
    """
    trace = DeepLift(cut=False, gate=gate)
    trace_run(module, inputs, trace)
    mixed = [(mix.weights @ mix.values).detach() for mix in trace.mixes]
    if not mixed:
        raise ValueError("no attention was traced")
    heads = [(layer, head) for layer, mix in enumerate(mixed) for head in range(mix.shape[1])]
    effects = []
    for run, other, sign in track(((1, 0, 1), (0, 1, -1))):
        text = {name: tensor[run : run + 1] for name, tensor in inputs.items()}
        original = [mix[run] for mix in mixed]
        replacement = [mix[other] for mix in mixed]
        unchanged = _patched_ends(module, text, original, original, rows, heads=[(0, 0)])
        patched = _patched_ends(module, text, original, replacement, rows, heads=heads)
        effects.append((unchanged - patched) * sign)
    mean = (effects[0] + effects[1]) / 2
    return mean.reshape(len(mixed), -1, mean.shape[-1])


def _patched_ends(
    module: nn.Module,
    text: Mapping[str, Tensor],
    original: Sequence[Tensor],
    replacement: Sequence[Tensor],
    rows: Sequence[int],
    heads: Sequence[tuple[int, int]],
) -> Tensor:
    """Return the word's vector with one head replaced at a time, (heads, d)."""
    rows, ends = list(rows), []
    ids = text["input_ids"]
    size = max(1, MOST_TOKENS[ids.device.type != "cpu"] // ids.shape[1])
    base: nn.Module = getattr(module, "base_model", module)
    for start in track(range(0, len(heads), size)):
        batch = heads[start : start + size]
        copies = {name: tensor.expand(len(batch), -1) for name, tensor in text.items()}
        with torch.no_grad(), HeadPatching(original, replacement, rows, batch):
            ends.append(base(**copies)[0][:, rows].mean(1))
    return torch.cat(ends)


class HeadPatching(AttentionTracer):
    """Fixes the output of every attention while copies of a text run, but for one head in each.

    Attributes
    ----------
    original, replacement : sequence of Tensor
        The outputs of the heads of each layer, (H, T, d_v).
    rows : list of int
        The positions at which the head is replaced.
    heads : sequence of (int, int)
        The layer and head to replace in each copy.
    """

    def __init__(
        self,
        original: Sequence[Tensor],
        replacement: Sequence[Tensor],
        rows: list[int],
        heads: Sequence[tuple[int, int]],
    ) -> None:
        super().__init__()
        self.original, self.replacement, self.rows, self.heads = original, replacement, rows, heads
        self.layer = 0

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return the original outputs, with the heads of this layer replaced in their copies."""
        original, replacement = self.original[self.layer], self.replacement[self.layer]
        mixed = original.expand(len(self.heads), *original.shape).clone()
        for copy, (layer, head) in enumerate(self.heads):
            if layer == self.layer:
                mixed[copy, head, self.rows] = replacement[head, self.rows]
        self.layer += 1
        return mixed.reshape(-1, *mixed.shape[2:]) if weights.dim() == 3 else mixed


def available_interventions(model: Model) -> tuple[str, ...]:
    """Return the interventions that a model allows, the default first."""
    has_mask = getattr(model.tokenizer, "mask_token_id", None) is not None
    return ALL if has_mask else ("knock-out", "replace", "delete")


def intervene(
    model: Model, target: TargetWord, words: Sequence[Sequence[int]], interventions: Sequence[str]
) -> dict[str, Tensor]:
    """Return the effects of changing each word, (W, d), by intervention.

    Parameters
    ----------
    model : Model
        The model, for its vocabulary.
    target : TargetWord
        The word on which effects are measured.
    words : sequence of sequence of int
        The positions of the pieces of each word to change.
    interventions : sequence of str
        Some of `ALL`.
    """
    functions: dict[str, Callable[[], Tensor]] = {
        "mask": lambda: substitute(target, words, [mask_token(model)]),
        "replace": lambda: substitute(target, words, common_words(model)),
        "knock-out": lambda: knock_out(target, words),
        "delete": lambda: delete(target, words),
    }
    effects = {}
    for number, name in enumerate(interventions):
        with part(number, len(interventions), f"each word: {name}"):
            effects[name] = functions[name]().double().cpu()
    return effects


def common_words(model: Model) -> list[int]:
    """Return random tokens from the beginning of the vocabulary, which has the common words.

    Only tokens that are a whole word of letters count. The draw is the same every time.
    """
    tokenizer = model.tokenizer
    assert tokenizer is not None  # it has tokenized the text

    def is_word(token: int, before: str) -> bool:
        word = str(tokenizer.decode([token])).strip()
        ids = tokenizer.encode(before + word, add_special_tokens=False)
        return len(word) > 1 and word.isalpha() and ids == [token]

    # In vocabularies with blanks, tokens without a blank are the inner pieces of words.
    for before in (" ", ""):
        words = (token for token in range(len(tokenizer)) if is_word(token, before))
        common = list(islice(words, _COMMON))
        if len(common) >= _DRAWS:
            return random.Random(0).sample(common, _DRAWS)
    return common
