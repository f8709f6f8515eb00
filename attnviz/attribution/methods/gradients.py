"""Methods of gradients, and of DeepLIFT multipliers in their place: the exact splits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from attnviz.attribution import tracing
from attnviz.attribution.decomposition import FrozenNonlinearities, credits
from attnviz.attribution.interventions import batch_size, gates_without
from attnviz.attribution.methods import METHODS, method
from attnviz.attribution.target import Readout, Score, copies_of, mask_id, token_ids, with_token_ids
from attnviz.errors import ModelError
from attnviz.results.axis import join_axes, token_groups

STEPS = 32  # points on the path of integrated gradients
MEMBERS = "split", "gradient-attention", "direct-attribution"  # of the ensemble
DIVISIONS = 2, 3, 4  # how many parts the words are divided into, one division after the other


@method("gradient-input")
def gradient_input(score: Score) -> Tensor:
    """Return gradient × input: x · ∂y/∂x for the vector x of each token before the first layer.

    Source: Shrikumar et al. 2016, arXiv:1605.01713.
    """
    starts, numbers = tracing.trace_run(score.readout, score.inputs, nullcontext())
    gradients = torch.autograd.grad(score.project(numbers), starts)
    parts = zip(gradients, starts, strict=True)
    return torch.cat([(gradient * start.detach())[0].sum(-1) for gradient, start in parts])


@method("gradient-attention")
def gradient_attention(score: Score) -> Tensor:
    """Return gradient × attention: Σ α · ∂y/∂α over layers, heads and queries, of the score y.

    The weight of a token for itself is left out.
    """
    mixes: list[tracing.TracedAttention] = []
    tracer = tracing.AttentionTracer(score.readout, mixes.append)
    _, numbers = tracing.trace_run(score.readout, score.inputs, tracer)
    if not mixes:
        raise ModelError("its attention weights cannot be traced")
    gradients = torch.autograd.grad(score.project(numbers), [mix.weights for mix in mixes])
    parts = []
    for mix, gradient in zip(mixes, gradients, strict=True):
        product = tracing.by_head((mix.weights * gradient).detach(), 1)[0].sum(0)
        if mix.place.queries == mix.place.keys:
            product = product - product.diag().diag()
        parts.append(mix.place.spread(product.sum(0), score.ids.shape[1]))
    return torch.stack(parts).sum(0)


@method("integrated-gradients")
def integrated_gradients(score: Score) -> Tensor:
    """Return integrated gradients with respect to the token embeddings.

    The path leads from a baseline to the text. The baseline has the embedding of [MASK] for every
    token but the word itself and special tokens, or zeros if the model has no mask token.

    Source: Sundararajan et al. 2017, arXiv:1703.01365.
    """
    end, lengths = _embed(score, score.ids)
    if mask_id(score.model) is None:
        start = end * score.visible[:, None].to(end)
    else:
        start, _ = _embed(score, score.masked_ids())
    fractions = ((torch.arange(STEPS, device=end.device) + 0.5) / STEPS).to(end)[:, None, None]
    total = torch.zeros_like(end)
    for batch in torch.split(fractions, batch_size(score.ids)):
        path = (start + batch * (end - start)).requires_grad_()
        parts = torch.split(path, lengths, dim=1)
        with torch.enable_grad(), score.readout.alone(), _embeddings(score, parts):
            copies = copies_of(score.inputs, len(batch))
            numbers = score.readout.read(score.readout.module(**copies))
            (gradient,) = torch.autograd.grad(score.project(numbers) / STEPS, path)
        total += gradient.sum(0)
    attribution: Tensor = (total * (end - start)).sum(-1)
    return attribution


def _embed(score: Score, ids: Tensor) -> tuple[Tensor, list[int]]:
    """Return the embeddings of ids (1, T), (T, d), and the number of tokens of each stack."""
    with _embeddings(score) as seen:
        score.outputs(1, ids)
    parts = seen[: len(score.readout.bases)]
    return torch.cat(parts, dim=1)[0], [part.shape[1] for part in parts]


@contextmanager
def _embeddings(score: Score, given: Iterable[Tensor] = ()) -> Iterator[list[Tensor]]:
    """Collect the embeddings of each stack in order, (N, n, d); the model reads those given."""
    bases: list[Any] = score.readout.bases
    seen: list[Tensor] = []
    others = iter(given)

    def read(_: object, __: object, vectors: Tensor) -> Tensor | None:
        seen.append(vectors)
        return next(others, None)

    with ExitStack() as hooks:
        for table in dict.fromkeys(base.get_input_embeddings() for base in bases):
            hooks.enter_context(table.register_forward_hook(read))
        yield seen


@method("direct-attribution")
def direct_attribution(score: Score) -> Tensor:
    """Return what each token adds to the score through one head, without later MLPs and heads.

    For a logit this is direct logit attribution: Σ α_ij v_j W_O over layers and heads, through the
    final norm with its scale fixed, along the unembedding. A decoder reads the words of a source
    directly through its cross-attention.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
    """
    run = tracing.StoredRun(score.readout.bases[-1])
    mode = _DirectPaths(run, score.readout)
    with run.record():
        _, numbers = tracing.trace_run(score.readout, score.inputs, mode)
    leaves = [mix.mixed for mix in mode.mixes]
    gradients = torch.autograd.grad(score.project(numbers), leaves, allow_unused=True)
    T = score.ids.shape[1]
    total = torch.zeros(T, dtype=torch.float64, device="cpu")
    for mix, gradient in zip(mode.mixes, gradients, strict=True):
        if gradient is not None:
            g = tracing.by_head(gradient, 1)[0][:, score.rows]
            parts = mix.weights[0][:, score.rows] * (g @ mix.values[0].mT)
            total += mix.place.spread(parts.sum((0, 1)), T).double().cpu()
    return total


class _DirectPaths(FrozenNonlinearities):
    """Also cuts the paths through the MLPs of blocks, but not through the head of the model."""

    def __init__(self, run: tracing.StoredRun, readout: Readout) -> None:
        super().__init__(readout)
        self._run = run

    def gated(self, f: tracing.Elementwise, x: Tensor) -> Tensor:
        """Return the activation, in a block without a gradient."""
        in_block = self._run.running is not None
        output = super().gated(f, x.detach() if in_block else x)
        if not in_block:
            self._activated.pop()  # what follows is no MLP
        return output


@method("split")
def split(score: Score) -> Tensor:
    """Return the contribution of each token over all paths. They add up to the difference.

    In the reference every token may attend only to itself, to special tokens and to the sink.
    """
    return credits(score.readout, copies_of(score.inputs, 2), score.direction, score.gate)


@method("partial-split")
def partial_split(score: Score) -> Tensor:
    """Return the mean contribution of each token over references without some of the words.

    The words are divided into two, three and four parts: every second word, every third and every
    fourth. Each of these nine parts has a reference, in which the other tokens cannot attend to its
    words. Their contributions add up to the difference from the text. In a reference without any
    context, as that of the split, a word that passes on what it has read from another one counts
    nothing. Such words are mostly neighbors, so here one is hidden where the other can be read.
    Where the output is a mean over all words, those of a part are masked instead.

    Sources: DeepLIFT multipliers (Shrikumar et al. 2017, arXiv:1704.02685), averaged over partial
    texts as in Shapley values (Lundberg & Lee 2017, arXiv:1705.07874).
    """
    records, ranked = score.result.records, score.ranked
    tokens = records[0].query_axis
    if score.readout.stacks:
        tokens = join_axes(tokens, records[-1].query_axis)
    parts = divide([word for word in token_groups(tokens).positions if ranked.issuperset(word)])
    total = torch.zeros(score.ids.shape[1], dtype=torch.float64, device="cpu")
    size = max(1, batch_size(score.ids) // 2)
    mask = mask_id(score.model) if score.readout.is_pooled else None
    for start in range(0, len(parts), size):
        batch = parts[start : start + size]
        runs, gates = copies_of(score.inputs, 2 * len(batch)), None
        if mask is None:
            gates = gates_without(score.ids.shape[1], batch, score.ids.device)
        else:
            ids = token_ids(runs).clone()
            for run, words in enumerate(batch):
                ids[run, [piece for word in words for piece in word]] = mask
            runs = with_token_ids(runs, ids)
        total += credits(score.readout, runs, score.direction, gates).double().cpu()
    return total / len(DIVISIONS)


def divide(words: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Return the words of each part, in each division."""
    parts = [list(words[start::count]) for count in DIVISIONS for start in range(count)]
    return [part for part in parts if part]


@method("ensemble")
def ensemble(score: Score) -> Tensor:
    """Return the mean of split, gradient × attention and direct attribution.

    Each is divided by the sum of its absolute values over the tokens that are ranked, so that all
    count alike. On next tokens of SmolLM2 the mean ranks words more like interventions than each
    of the three does.
    """
    ranked = sorted(score.ranked)
    total = torch.zeros(score.ids.shape[1], dtype=torch.float64, device="cpu")
    for name in MEMBERS:
        attribution = METHODS[name](score).detach().double().cpu()
        size = attribution[ranked].abs().sum()
        total += attribution / (size if size > 0 else 1.0) / len(MEMBERS)
    return total
