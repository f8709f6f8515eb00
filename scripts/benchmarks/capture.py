"""Every head of a whole model, beside the model alone and what other tools do.

CPU time of ways that take turns in one process; memory is what a process of its own grows by over
the loaded model. The weights are random: time and memory do not depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from attnviz import agreement
from attnviz.agreement import Proof, prove_rows, prove_streamed
from attnviz.capture import (
    AttentionTemplate,
    ReducedAttention,
    ReductionOptions,
    Sample,
    capture_streamed,
    sample_rows,
    stream_maps,
)
from attnviz.pipeline.streamed import sampled_rows
from attnviz.results import Axis, MapSummary
from attnviz.streaming import ScoreSpec, attend
from benchmarks import peers
from benchmarks.measuring import alternate, available, console, grown, peak, show, show_setting
from benchmarks.parts import show_parts

_PLAIN, _EAGER = "plain sdpa forward", "eager, output_attentions"
_OURS, _OURS_TOP = "attnviz (statistics + pooled maps)", "attnviz with top 8"
_PROVEN = "attnviz, two runs with proof"
_BERTVIZ, _LENS = "BertViz, two views in HTML", "TransformerLens, hook_pattern"
_PACKAGE = {_BERTVIZ: "bertviz", _LENS: "transformer_lens"}
# What the weights of all heads take, as copies of them, at the peak of a way.
_COPIES = {_EAGER: 1.2, _LENS: 1.5, _BERTVIZ: 60.0}
_WORDS = 1000
_CELLS = 64  # a side of the pooled maps
_SOON = 256  # tokens for which BertViz takes seconds
Work = Callable[[], object]


class _Streamed:
    """Run a model with our attention in the place of its own, and keep what there is of every head.

    top : of how many keys to keep the weight for each query; the maps have 64 × 64 cells.
    """

    def __init__(self, model: PreTrainedModel, top: int) -> None:
        self._model, self._keep = model, ReductionOptions(cells=_CELLS, top=top)
        self._templates: list[AttentionTemplate] | None = None

    def __call__(self, ids: Tensor) -> list[MapSummary]:
        """Return what is kept; the first call finds out which attentions there are."""
        if self._templates is None:
            last = torch.tensor([ids.shape[1] - 1])
            self._templates = sample_rows(self._model, *_given(ids), last, lambda _: None)
        found: list[MapSummary] = []
        stream_maps(
            self._model,
            _given(ids)[0],
            self._templates,
            self._keep,
            lambda streamed: found.append(streamed.summary),
        )
        return found


def _proven(model: PreTrainedModel, ids: Tensor) -> list[Proof]:
    """Do what `attnviz.attend` does: two runs, the second reduces, and both are proven."""
    inputs, axes = _given(ids)
    rows = sampled_rows(ids.shape[1], model.config.num_attention_heads)
    proofs: list[Proof] = []
    own: list[Tensor] = []

    def prove(sample: Sample) -> None:
        proofs.append(prove_rows(sample.record, sample.reference, rows))
        own.append(sample.reference.weights)

    def take(streamed: ReducedAttention) -> None:
        reduced = agreement.Reduced(streamed.summary, streamed.heads)
        proofs.append(prove_streamed(streamed.record, streamed.attended, own.pop(0), rows, reduced))

    capture_streamed(model, inputs, axes, rows, ReductionOptions(cells=_CELLS), prove, take)
    return proofs


def _given(ids: Tensor) -> tuple[dict[str, Tensor], dict[str, tuple[Axis, ...]]]:
    return {"input_ids": ids}, {"text": (Axis.numbered(ids.shape[1]),)}


def measure(
    tokens: Sequence[int], model: str, layers: int, rounds: int, *, slow: bool, patience: float
) -> None:
    """Print time and memory of each way at each length.

    slow : also BertViz where it takes minutes. patience : seconds that one way may take when its
    memory is measured.
    """
    for T in tokens:
        built = _model(model, layers, T)
        ways = _ready(built, T, slow=slow)
        times = alternate(ways, rounds, time.process_time)
        both = {name: ways[name] for name in (_PLAIN, _OURS)}
        show_parts(f"{model}, {layers} layers, {T:,} tokens: where the time goes, 1 thread", both)
        del built, both
        megabytes = {
            way: peak("capture", way, model, str(layers), str(T), seconds=patience) for way in ways
        }
        title = f"{model}, {layers} layers, {T:,} tokens: CPU seconds"
        show(title, times, against=_PLAIN, megabytes=megabytes)
        whole = _weights(layers, T) / 1e6
        console.print(f"the weights of all heads have {whole:,.0f} MB\n", style="dim")
    show_setting("attnviz", "torch", "transformers", "bertviz", "transformer-lens")


def memory(way: str, model: str, layers: str, tokens: str) -> float:
    """Return by how many MB one way grows this process, over the loaded model."""
    built = _model(model, int(layers), int(tokens))
    work = _ways(built)[way]
    work(_ids(8))  # whatever is loaded once
    attend(ScoreSpec(*torch.randn(2, 1, 2048, 4), 0.5), torch.randn(1, 2048, 4), cells=1, top=1)
    return grown(partial(work, _ids(int(tokens))))


def _model(kind: str, layers: int, tokens: int) -> PreTrainedModel:
    """Return BERT in its base size, or a Llama as wide with 12 query heads and 4 key heads."""
    torch.manual_seed(0)
    how = {"vocab_size": _WORDS, "hidden_size": 768, "num_hidden_layers": layers}
    how |= {"num_attention_heads": 12, "max_position_embeddings": max(512, tokens)}
    if kind == "bert":
        model: PreTrainedModel = BertModel(BertConfig(**how), add_pooling_layer=False)
    else:
        how |= {"num_key_value_heads": 4, "intermediate_size": 2048}
        model = LlamaForCausalLM(LlamaConfig(**how, bos_token_id=0, eos_token_id=1))
    model.config.use_cache = False
    return model.eval()


def _ids(tokens: int) -> Tensor:
    return torch.randint(2, _WORDS, (1, tokens), generator=torch.Generator().manual_seed(0))


def _plain(model: PreTrainedModel, ids: Tensor) -> Tensor:
    with torch.no_grad():
        hidden: Tensor = model(ids)[0]
    return hidden


def _ways(model: PreTrainedModel) -> dict[str, Callable[[Tensor], object]]:
    """Return what takes token ids, by its name."""
    ways: dict[str, Callable[[Tensor], object]] = {
        _PLAIN: partial(_plain, model),
        _EAGER: partial(peers.eager, model),
        _OURS: _Streamed(model, 0),
        _OURS_TOP: _Streamed(model, 8),
        _PROVEN: partial(_proven, model),
        _BERTVIZ: partial(peers.bertviz, model),
    }
    if model.config.model_type == "llama":
        ways[_LENS] = _Once(model)
    return ways


class _Once:
    """TransformerLens, put around a copy of the model when it is first called."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._patterns: Callable[[Tensor], object] | None = None

    def __call__(self, ids: Tensor) -> object:
        if self._patterns is None:
            # It makes the model eager for good: it gets one of its own, on the same weights.
            own = type(self._model)(self._model.config).eval()
            own.load_state_dict(self._model.state_dict(), assign=True)
            self._patterns = peers.transformer_lens(own)
        return self._patterns(ids)


def _ready(model: PreTrainedModel, tokens: int, *, slow: bool) -> dict[str, Work]:
    """Return the ways that can be measured here; say why the others are left out."""
    ways: dict[str, Work] = {}
    weights = _weights(model.config.num_hidden_layers, tokens)
    for name, work in _ways(model).items():
        why = None
        needed = weights * _COPIES.get(name, 0)
        if name in _PACKAGE and not peers.installed(_PACKAGE[name]):
            why = "not installed"
        elif needed > 0.8 * available():
            why = f"would need about {needed / 1e9:.0f} GB"
        elif name == _BERTVIZ and tokens > _SOON and not slow:
            why = "takes minutes, ask for it with --slow"
        else:
            work(_ids(8))
        if why:
            console.print(f"{name}, {tokens:,} tokens: left out, {why}", style="dim")
        else:
            ways[name] = partial(work, _ids(tokens))
    return ways


def _weights(layers: int, tokens: int) -> float:
    """Return how many bytes the weights of all heads have."""
    return 4.0 * layers * 12 * tokens**2
