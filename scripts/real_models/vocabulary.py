"""Tokenizers of packages that have one token a line and a pattern that splits texts."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


def save_tokenizer(vocabulary: Path, pattern: str, folder: Path) -> None:
    """Write the tokenizer of BERT's special tokens and of what matches a pattern."""
    ids = {token: number for number, token in enumerate(vocabulary.read_text().split("\n"))}
    ids.pop("", None)
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=512,
        **{f"{name.lower()}_token": f"[{name}]" for name in ("UNK", "SEP", "PAD", "CLS", "MASK")},
    ).save_pretrained(folder)


def constant(file: Path, name: str) -> Any:
    """Return the value of a constant in a Python file, without running the file."""
    for statement in ast.parse(file.read_text("utf-8")).body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == name:  # type: ignore[attr-defined]
            return ast.literal_eval(statement.value)
    raise AssertionError(f"{file.name} has no {name}.")
