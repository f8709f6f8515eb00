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

from benchmarks import peers
from benchmarks.measuring import alternate, available, console, grown, peak, show, show_setting

_PLAIN, _EAGER = "plain sdpa forward", "eager, output_attentions"
_OURS, _OURS_TOP = "attnviz (statistics + pooled maps)", "attnviz with top 8"
_BERTVIZ, _LENS = "BertViz, two views in HTML", "TransformerLens, hook_pattern"
_PACKAGE = {_BERTVIZ: "bertviz", _LENS: "transformer_lens"}
# What the weights of all heads take, as copies of them, at the peak of a way.
_COPIES = {_EAGER: 1.2, _LENS: 1.5, _BERTVIZ: 60.0}
_WORDS = 1000
_SOON = 256  # tokens for which BertViz takes seconds
Work = Callable[[], object]


def streamed(model: PreTrainedModel, ids: Tensor, top: int) -> object:
    """Return what attnviz keeps of every head: statistics, pooled maps, and the top weights."""
    # The one place where our way is called: ids is (1, T), top 0 or how many weights of each row.
    raise NotImplementedError("attnviz' way through a whole model is not measured yet")


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
        del built
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
        _OURS: partial(streamed, model, top=0),
        _OURS_TOP: partial(streamed, model, top=8),
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
            try:
                work(_ids(8))
            except NotImplementedError as error:
                why = str(error)
        if why:
            console.print(f"{name}, {tokens:,} tokens: left out, {why}", style="dim")
        else:
            ways[name] = partial(work, _ids(tokens))
    return ways


def _weights(layers: int, tokens: int) -> float:
    """Return how many bytes the weights of all heads have."""
    return 4.0 * layers * 12 * tokens**2
