"""Use one architecture as a user does: save it, load it, attend, save the result, draw a map.

In float32, bfloat16 and float16. `check` looks at what is captured; this looks at what is given.
"""

from __future__ import annotations

import copy
import json
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
    SequenceFeatureExtractor,
)
from transformers.image_processing_utils import BaseImageProcessor

import attnviz
from architectures.catalogue import model_class_name
from architectures.compare import NONE
from architectures.isolation import explain
from architectures.tiny_models import build
from attnviz.models.pretrained import embedding_rows, forward_parameters, input_kinds
from attnviz.results.agreement_report import Verdict

mpl.use("Agg")
DTYPES = ("float32", "bfloat16", "float16")


def use(name: str) -> dict[str, Any]:
    """Return the outcome of every call, as a dictionary that JSON can store.

    name : an architecture, one with a class, as in "bert/BertForMaskedLM", or one with a setting
        that is not the default, as in 'roformer?{"rotary_value": true}'.

    Keys: architecture, class, and for each of the calls "float32", "bfloat16", "float16",
    "generate", "shift", "explain" and "survey" a list of its state and the reason. The states are
    "verified", "not proven", "failed", "refused" (an error that says how to go on), "crash" (any
    other error), "no attention", and "not run" where the model itself fails. A call that the model
    has no use for is left out.
    """
    torch.set_num_threads(1)
    plain, _, setting = name.partition("?")
    architecture, _, class_name = plain.partition("/")
    settings = json.loads(setting) if setting else None
    model, inputs = build(architecture, class_name=class_name, settings=settings)
    if model.config.is_encoder_decoder and model.can_generate():
        model.generation_config.decoder_start_token_id = (
            getattr(model.config, "decoder_start_token_id", 0) or 0
        )
    tokenizer = words_of(model, inputs)
    result: dict[str, Any] = {
        "architecture": name, "class": class_name or model_class_name(architecture)
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for dtype in DTYPES:
            saved = _saved(model, folder, dtype)
            given = {name: _cast(value, saved.dtype) for name, value in inputs.items()}
            if (reason := _fails(partial(saved, **given))) is not None:
                result[dtype] = ["not run", reason]
                continue
            result[dtype] = _state(partial(_attend, saved, tokenizer, given))
            if dtype == "float32" and result[dtype][0] in ("verified", "not proven"):
                result |= _analyses(saved, tokenizer, given)
    return result


def _saved(model: PreTrainedModel, folder: str, dtype: str) -> PreTrainedModel:
    """Return a model from its folder; a copy of it where transformers does not load what it saved.

    So it is where names of weights are converted in one direction only.
    """
    try:
        return type(model).from_pretrained(folder, dtype=dtype).eval()
    except RuntimeError:
        return copy.deepcopy(model).to(getattr(torch, dtype))


def words_of(model: PreTrainedModel, inputs: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of which each id is a word, "w7"."""
    ids = [inputs[name] for name in ("input_ids", "decoder_input_ids") if name in inputs]
    most = max([int(one.max()) for one in ids], default=0)
    rows = max(embedding_rows(model) or 0, most + 1)
    vocabulary = {f"w{n}": n for n in range(rows)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="w0", unk_token="w0")


class Reader(ProcessorMixin):
    """Stands for the processor of a model whose inputs are given as tensors."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.image_processor = tokenizer, BaseImageProcessor()
        self.feature_extractor = SequenceFeatureExtractor(1, 16000, 0.0)
        self.image_token, self.audio_token = "<image>", "<audio>"


def _attend(model: PreTrainedModel, tokenizer: Any, inputs: dict[str, Any]) -> list[Any]:
    """Attend, save and load the first result, and draw a map of it; return all results."""
    given = _load(model, tokenizer).attend(inputs=inputs)
    results = given if isinstance(given, list) else [given]
    with tempfile.TemporaryDirectory() as folder:
        results[0].save(Path(folder) / "result.safetensors")
        again: Any = attnviz.load_result(Path(folder) / "result.safetensors")
        axes: Any = attnviz.plot.heatmap(
            attnviz.attention_map(again, layer=again.records[0].layer, head=0)
        )
        axes.figure.savefig(Path(folder) / "map.png")
    plt.close("all")
    assert again.agreement.verdict == results[0].agreement.verdict
    return results


def _load(model: PreTrainedModel, tokenizer: Any) -> Any:
    return attnviz.load(model, tokenizer=tokenizer, processor=Reader(tokenizer))


def _analyses(model: PreTrainedModel, tokenizer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the outcomes of generate=, shift, explain and survey for a model of texts.

    The last three give a model a text and nothing else: they are left out if it needs more.
    """
    if input_kinds(model) != ("text",) or inputs["input_ids"].dim() != 2:
        return {}
    ids = inputs["input_ids"][:1]
    text, found = tokenizer.decode(ids[0]), dict[str, Any]()
    loaded = _load(model, tokenizer)
    if model.can_generate():
        options = {"max_new_tokens": 3, "do_sample": False}
        written: list[Any] = []
        reason = _fails(lambda: written.append(model.generate(ids, **options)))
        if reason is None:
            found["generate"] = _state(lambda: _generates(loaded, text, ids, written[0]))
        else:
            found["generate"] = ["not run", reason]
        if not model.config.is_encoder_decoder and reads_text_alone(model, ids):
            found["explain"] = _state(lambda: attnviz.explain(text, model=loaded))
    if not model.config.is_encoder_decoder and reads_text_alone(model, ids):
        word = next((one for one in reversed(text.split()) if text.split().count(one) == 1), "w5")
        found["shift"] = _state(lambda: attnviz.shift(word, text, model=loaded))
        found["survey"] = _state(lambda: attnviz.survey([text, text + " w5"], model=loaded))
    return found


def reads_text_alone(model: PreTrainedModel, ids: torch.Tensor) -> bool:
    """Whether the model itself runs on the tokens of a text, and needs nothing beside them."""
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    known = {name: inputs[name] for name in inputs if name in forward_parameters(model)}
    return _fails(lambda: model(**known)) is None


def _generates(loaded: Any, text: str, ids: torch.Tensor, written: torch.Tensor) -> list[Any]:
    result = loaded.attend(text, generate=3)
    is_decoder = not loaded.checkpoint.module.config.is_encoder_decoder
    new = written[0, ids.shape[1] if is_decoder else 1 :]  # behind the start of the decoder
    expected = loaded.tokenizer.decode(new, skip_special_tokens=True)
    if result.agreement.verdict == "failed":  # the model writes no text, for example
        return [result]
    got = result.provenance.generated.split()
    assert got == expected.split(), (got, expected)
    return [result]


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return float inputs in the precision of the model, as `processor(…).to(dtype)` gives them."""
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value


def _fails(call: Callable[[], Any]) -> str | None:
    """Return why the model itself fails; None if it runs."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except Exception as error:
        return explain(error)
    return None


def _state(call: Callable[[], Any]) -> list[str]:
    """Return the state of a call of attnviz, and the reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = call()
    except attnviz.AttnvizError as error:
        return ["no attention" if NONE in str(error) else "refused", str(error)]
    except Exception as error:
        return ["crash", explain(error)]
    reports = [one.agreement for one in (given if isinstance(given, list) else [given])]
    worst = min(reports, key=lambda report: get_args(Verdict).index(report.verdict))
    return [worst.verdict, "" if worst.verdict == "verified" else worst.summary()]
