"""Capture every head of a whole model; compare with the model alone and with other tools.

CPU time, alternating in one process; memory is the growth of a separate process over the loaded
model. The weights are random: time and memory do not depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from attnviz.agreement import Proof, prove_rows, prove_streamed
from attnviz.capture.streamed import ReducedAttention, ReductionOptions, Sample, capture_streamed
from attnviz.pipeline import sampled_rows
from attnviz.results import Axis, MapSummary
from attnviz.streaming import ScoreSpec, attend
from benchmarks import peers
from benchmarks.measuring import alternate, available, console, grown, peak, show, show_setting
from benchmarks.operators import show_operators

_PLAIN, _EAGER = "plain sdpa forward", "eager, output_attentions"
_OURS, _OURS_TOP = "attnviz (statistics + pooled maps)", "attnviz with top 8"
_PROVEN = "attnviz, verified"
_BERTVIZ, _LENS = "BertViz, two views in HTML", "TransformerLens, hook_pattern"
_PACKAGE = {_BERTVIZ: "bertviz", _LENS: "transformer_lens"}
# Peak memory of a variant, in copies of the weights of all heads.
_COPIES = {_EAGER: 1.2, _LENS: 1.5, _BERTVIZ: 60.0}
_WORDS = 1000
_CELLS = 64  # width and height of the pooled maps
_FAST_TOKENS = 256  # tokens up to which BertViz takes only seconds
Work = Callable[[], object]


def _streamed(model: PreTrainedModel, top: int, ids: Tensor) -> list[MapSummary]:
    """Run a model and return a summary of every head, in 64 × 64 cells; verify nothing.

    top : number of keys whose weights are kept for each query.
    """
    summaries: list[MapSummary] = []

    def take(attention: Sample) -> None:
        assert isinstance(attention, ReducedAttention)
        summaries.append(attention.summary)

    last = torch.tensor([ids.shape[1] - 1])  # one row is the least that is sampled
    capture_streamed(model, *_inputs(ids), last, ReductionOptions(cells=_CELLS, top=top), take)
    return summaries


def _verified(model: PreTrainedModel, ids: Tensor) -> list[Proof]:
    """Do what `attnviz.attend` does: reduce every map while the model runs, and verify it."""
    rows = sampled_rows(ids.shape[1], model.config.num_attention_heads)
    proofs: list[Proof] = []

    def prove(attention: Sample) -> None:
        assert isinstance(attention, ReducedAttention)
        proofs.extend(prove_rows([attention], rows))
        proofs.extend(prove_streamed([attention], rows))

    capture_streamed(model, *_inputs(ids), rows, ReductionOptions(cells=_CELLS), prove)
    return proofs


def _inputs(ids: Tensor) -> tuple[dict[str, Tensor], dict[str, tuple[Axis, ...]]]:
    return {"input_ids": ids}, {"text": (Axis.numbered(ids.shape[1]),)}


def measure(
    tokens: Sequence[int], model: str, layers: int, rounds: int, *, slow: bool, patience: float
) -> None:
    """Print time and memory of each variant at each length.

    slow : also run BertViz when it takes minutes.
    patience : time limit in seconds of one memory measurement.
    """
    for T in tokens:
        built = _model(model, layers, T)
        variants = _runnable(built, T, slow=slow)
        times = alternate(variants, rounds, time.process_time)
        both = {name: variants[name] for name in (_PLAIN, _OURS)}
        show_operators(f"{model}, {layers} layers, {T:,} tokens: operators, 1 thread", both)
        del built, both
        megabytes = {
            variant: peak("capture", variant, model, str(layers), str(T), seconds=patience)
            for variant in variants
        }
        title = f"{model}, {layers} layers, {T:,} tokens: CPU seconds"
        show(title, times, against=_PLAIN, megabytes=megabytes)
        whole = _weights(layers, T) / 1e6
        console.print(f"the weights of all heads take {whole:,.0f} MB\n", style="dim")
    show_setting("attnviz", "torch", "transformers", "bertviz", "transformer-lens")


def memory(variant: str, model: str, layers: str, tokens: str) -> float:
    """Return the memory growth of this process for one variant, over the loaded model, in MB."""
    built = _model(model, int(layers), int(tokens))
    work = _variants(built)[variant]
    work(_ids(8))  # warm up: load everything that is loaded once
    attend(ScoreSpec(*torch.randn(2, 1, 2048, 4), 0.5), torch.randn(1, 2048, 4), cells=1, top=1)
    return grown(partial(work, _ids(int(tokens))))


def _model(kind: str, layers: int, tokens: int) -> PreTrainedModel:
    """Return BERT-base, or a Llama of the same width with 12 query heads and 4 key heads."""
    torch.manual_seed(0)
    settings = {"vocab_size": _WORDS, "hidden_size": 768, "num_hidden_layers": layers}
    settings |= {"num_attention_heads": 12, "max_position_embeddings": max(512, tokens)}
    if kind == "bert":
        model: PreTrainedModel = BertModel(BertConfig(**settings), add_pooling_layer=False)
    else:
        settings |= {"num_key_value_heads": 4, "intermediate_size": 2048}
        model = LlamaForCausalLM(LlamaConfig(**settings, bos_token_id=0, eos_token_id=1))
    model.config.use_cache = False
    return model.eval()


def _ids(tokens: int) -> Tensor:
    return torch.randint(2, _WORDS, (1, tokens), generator=torch.Generator().manual_seed(0))


def _plain(model: PreTrainedModel, ids: Tensor) -> Tensor:
    with torch.no_grad():
        hidden: Tensor = model(ids)[0]
    return hidden


def _variants(model: PreTrainedModel) -> dict[str, Callable[[Tensor], object]]:
    """Return the variants by name: functions of token ids."""
    variants: dict[str, Callable[[Tensor], object]] = {
        _PLAIN: partial(_plain, model),
        _EAGER: partial(peers.eager, model),
        _OURS: partial(_streamed, model, 0),
        _OURS_TOP: partial(_streamed, model, 8),
        _PROVEN: partial(_verified, model),
        _BERTVIZ: partial(peers.bertviz, model),
    }
    if model.config.model_type == "llama":
        variants[_LENS] = _LazyTransformerLens(model)
    return variants


class _LazyTransformerLens:
    """TransformerLens on a copy of the model; the copy is made at the first call."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._patterns: Callable[[Tensor], object] | None = None

    def __call__(self, ids: Tensor) -> object:
        if self._patterns is None:
            # TransformerLens switches the model to eager permanently, so it gets a copy with shared
            # weights.
            eager_model = type(self._model)(self._model.config).eval()
            eager_model.load_state_dict(self._model.state_dict(), assign=True)
            self._patterns = peers.transformer_lens(eager_model)
        return self._patterns(ids)


def _runnable(model: PreTrainedModel, tokens: int, *, slow: bool) -> dict[str, Work]:
    """Return the variants that can be measured here; print why the others are skipped."""
    variants: dict[str, Work] = {}
    weights = _weights(model.config.num_hidden_layers, tokens)
    for name, work in _variants(model).items():
        skip_reason = None
        needed = weights * _COPIES.get(name, 0)
        if name in _PACKAGE and not peers.installed(_PACKAGE[name]):
            skip_reason = "not installed"
        elif needed > 0.8 * available():
            skip_reason = f"would need about {needed / 1e9:.0f} GB"
        elif name == _BERTVIZ and tokens > _FAST_TOKENS and not slow:
            skip_reason = "takes minutes, use --slow to run it"
        else:
            work(_ids(8))
        if skip_reason:
            console.print(f"{name}, {tokens:,} tokens: skipped: {skip_reason}", style="dim")
        else:
            variants[name] = partial(work, _ids(tokens))
    return variants


def _weights(layers: int, tokens: int) -> float:
    """Return the size of the weights of all heads in bytes."""
    return 4.0 * layers * 12 * tokens**2
