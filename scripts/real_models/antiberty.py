"""AntiBERTy, a BERT of antibodies, from a pickle: the head that fills in masked residues."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from real_models.bert import Bert
from real_models.source import Package
from real_models.vocabulary import save_tokenizer

PACKAGES = (
    Package(
        "antiberty",
        "0.1.3",  # later ones hold no weights and download them
        "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a",
        "MIT",
    ),
)
MODEL = "antiberty/trained_models"
OTHER_HEADS = ("species", "chain", "graft")  # of the whole sequence, from a pooler
# The variable domain of the heavy chain of trastuzumab.
HEAVY_CHAIN = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
    "SRWGGDGFYAMDYWGQGTLVTVSS"
)
LEAST = 0.8  # of its residues are filled in as they are


def convert(files: Path, folder: Path) -> None:
    """Write the model, and a tokenizer that splits a sequence into residues."""
    source = files / MODEL / "AntiBERTy_md_smooth"
    state = {
        name: tensor
        for name, tensor in _state(files).items()
        if name.split(".")[1] not in (*OTHER_HEADS, "pooler")
    }
    config = BertConfig.from_pretrained(source, architectures=["BertForMaskedLM"])
    BertForMaskedLM.from_pretrained(None, config=config, state_dict=state).save_pretrained(folder)
    save_tokenizer(files / MODEL / "vocab.txt", "[A-Z]", folder)


def check(folder: Path, files: Path) -> str:
    """Fill in each residue of an antibody, and compare with a run of the pickle in numpy."""
    model = BertForMaskedLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(HEAVY_CHAIN, return_tensors="pt").input_ids[0]
    rows = torch.arange(1, len(ids) - 1)
    masked = ids.repeat(len(rows), 1)
    masked[torch.arange(len(rows)), rows] = tokenizer.mask_token_id
    with torch.no_grad():
        whole = model(ids[None]).logits[0].double().numpy()
        filled = torch.cat([model(part).logits for part in masked.split(16)])
    right = float((filled[torch.arange(len(rows)), rows].argmax(-1) == ids[1:-1]).float().mean())
    source = Bert(_state(files), model.config.num_attention_heads)
    difference = float(abs(whole - source.tokens(ids.tolist())).max())
    if right < LEAST or difference > 1e-3:
        raise AssertionError(f"{right:.0%} of residues are right, logits differ: {difference:.0e}.")
    return f"{right:.0%} of an antibody's residues filled in, logits equal to {difference:.0e}"


def _state(files: Path) -> dict[str, torch.Tensor]:
    weights = files / MODEL / "AntiBERTy_md_smooth" / "pytorch_model.bin"
    return torch.load(weights, map_location="cpu", weights_only=True)
