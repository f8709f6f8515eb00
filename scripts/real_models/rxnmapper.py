"""RXNMapper: an ALBERT whose head 5 of layer 10 maps the atoms of reactions, from a pickle."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import AlbertConfig, AlbertForMaskedLM, AutoTokenizer, PreTrainedTokenizerFast

from real_models.reactions import map_atoms, published_maps
from real_models.source import Package

PACKAGE = Package(
    "rxnmapper",
    "0.4.3",
    "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
    "MIT",
)
MODEL = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
LAYER, HEAD = 10, 5


def convert(files: Path, folder: Path) -> None:
    """Write the model, and a tokenizer that splits reactions as the package does."""
    source = files / MODEL
    state = torch.load(source / "pytorch_model.bin", map_location="cpu", weights_only=True)
    config = AlbertConfig.from_pretrained(source)
    AlbertForMaskedLM.from_pretrained(None, config=config, state_dict=state).save_pretrained(folder)
    vocabulary = {
        token: number for number, token in enumerate((source / "vocab.txt").read_text().split("\n"))
    }
    vocabulary.pop("", None)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    pattern = _constant(files / "rxnmapper" / "smiles_utils.py", "SMI_REGEX_PATTERN")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=512,
        **{f"{name.lower()}_token": f"[{name}]" for name in ("UNK", "SEP", "PAD", "CLS", "MASK")},
    ).save_pretrained(folder)


def check(folder: Path, files: Path) -> str:
    """Map the atoms of the package's examples, and compare with the maps that it publishes."""
    model = AlbertForMaskedLM.from_pretrained(folder, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    right = atoms = 0
    for reaction, published in published_maps(files / "tests" / "test_mapper.py"):
        encoded = tokenizer(reaction, return_tensors="pt")
        with torch.no_grad():
            weights = model(**encoded, output_attentions=True).attentions[LAYER][0, HEAD]
        tokens = tokenizer.convert_ids_to_tokens(encoded.input_ids[0])
        mapped = map_atoms(reaction, tokens, weights.double().numpy())
        right += sum(mapped.get(atom) == origin for atom, origin in published.items())
        atoms += len(published)
    if right < atoms:
        raise AssertionError(f"Only {right} of {atoms} atoms are mapped as published.")
    return f"{right} of {atoms} atoms mapped as published"


def _constant(file: Path, name: str) -> Any:
    """Return the value of a constant in a Python file, without running the file."""
    for statement in ast.parse(file.read_text("utf-8")).body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == name:  # type: ignore[attr-defined]
            return ast.literal_eval(statement.value)
    raise AssertionError(f"{file.name} has no {name}.")
