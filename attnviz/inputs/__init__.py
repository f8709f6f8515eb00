"""Inputs of a model: text, images and audio, as tensors with an axis for each."""

from attnviz.inputs.arguments import ArgumentSource, expect_labels_fit, parse_labels
from attnviz.inputs.audio import AudioSource, Sound
from attnviz.inputs.batch import (
    Batch,
    Inputs,
    Many,
    encode,
    expect_one_text,
    parse_inputs,
)
from attnviz.inputs.decoder import (
    continue_axis,
    encode_prefix,
    expect_tokens_left,
    generated_text,
)
from attnviz.inputs.image import ImageSource, Picture
from attnviz.inputs.spelling import pieces_in, read_labels
from attnviz.inputs.text import (
    EncodingCheck,
    max_tokens,
    pad_texts,
    padded,
    spelled,
    token_spans,
    tokenize,
)
from attnviz.inputs.tokens import Chat, TextSource, TokenIds, TokensSource

__all__ = [
    "ArgumentSource",
    "AudioSource",
    "Batch",
    "Chat",
    "EncodingCheck",
    "ImageSource",
    "Inputs",
    "Many",
    "Picture",
    "Sound",
    "TextSource",
    "TokenIds",
    "TokensSource",
    "continue_axis",
    "encode",
    "encode_prefix",
    "expect_labels_fit",
    "expect_one_text",
    "expect_tokens_left",
    "generated_text",
    "max_tokens",
    "pad_texts",
    "padded",
    "parse_inputs",
    "parse_labels",
    "pieces_in",
    "read_labels",
    "spelled",
    "token_spans",
    "tokenize",
]
