"""RXNMapper: an ALBERT whose head 5 of layer 10 maps the atoms of reactions, from a pickle."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AlbertConfig, AlbertForMaskedLM, AutoTokenizer

from real_models.reactions import map_atoms, published_maps
from real_models.source import Package
from real_models.vocabulary import constant, save_tokenizer

PACKAGES = (
    Package(
        "rxnmapper",
        "0.4.3",
        "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
        "MIT",
    ),
)
MODEL = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
LAYER, HEAD = 10, 5


def convert(files: Path, folder: Path) -> None:
    """Write the model, and a tokenizer that splits reactions as the package does."""
    source = files / MODEL
    state = torch.load(source / "pytorch_model.bin", map_location="cpu", weights_only=True)
    config = AlbertConfig.from_pretrained(source)
    AlbertForMaskedLM.from_pretrained(None, config=config, state_dict=state).save_pretrained(folder)
    pattern = constant(files / "rxnmapper" / "smiles_utils.py", "SMI_REGEX_PATTERN")
    save_tokenizer(source / "vocab.txt", pattern, folder)


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
