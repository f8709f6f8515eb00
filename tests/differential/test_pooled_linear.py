"""Linear attention of long texts: pooled maps, against whole ones, and planted faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from linear_models import build

import attnviz
from attnviz import InputError
from attnviz.agreement import verify
from attnviz.capture import capture_pooled, linear_calls
from attnviz.results import Axis

TOKENS, CELL = 75, 8  # the last cell is smaller


@pytest.fixture(scope="module", params=["mamba", "mamba2", "rwkv", "xlstm"])
def pooled(request, tokenizer):
    """A model, and a text with pooled maps."""
    words = ["the", "train", "left", "station", "on", "time", "nobody", "was", "there", "to"]
    chosen = torch.randint(len(words), (TOKENS - 2,), generator=torch.Generator().manual_seed(0))
    text = " ".join(words[index] for index in chosen)
    model = attnviz.load(build(request.param), tokenizer=tokenizer)
    return model, model.attend(text, cells=-(-TOKENS // CELL))


def test_pooled_maps_are_those_of_whole_ones(pooled):
    model, result = pooled
    whole = model.attend(result.provenance.text, mode="full")
    assert result.agreement.verdict == "verified"
    for record, other in zip(result.records, whole.records, strict=True):
        blocks = other.matrix.split(record.cell, 2)
        summed = torch.stack([block.sum(2) for block in blocks], dim=2)
        rows = torch.stack([block.mean(1) for block in summed.split(record.cell, 1)], dim=1)
        assert (record.matrix - rows).abs().max() <= 1e-5 * rows.abs().max()
        assert len(record.text) == len(whole.tokens)


def test_pooled_maps_are_drawn_with_the_places_of_their_cells(pooled):
    _, result = pooled
    drawn = attnviz.attention_map(result, layer=0, head=0)
    assert drawn.sides[0].cell == result.records[0].cell
    assert any("columns summed with their signs, rows averaged" in note for note in drawn.notes)
    with pytest.raises(InputError, match="has pooled maps only"):
        attnviz.attention_map(result, layer=0, head=0, rows=slice(0, 2))


def test_planted_faults_in_pooled_maps_are_caught():
    model = build("mamba2")
    inputs = {"input_ids": torch.randint(30522, (1, TOKENS))}
    known, heads = linear_calls(model, inputs)
    assert heads == 4
    records, references = capture_pooled(model, inputs, Axis.numbered(TOKENS), known, CELL)
    record, M = records[0], records[0].matrix
    faults = (M * 1.01, M.flip(0), M.roll(1, dims=2).tril(), M * (M[:, :1, :1] != M))
    for matrix in (M, *faults):
        report = verify(
            [replace(record, matrix=matrix)], references, versions={}, weights_sha256=""
        )
        assert report.verdict == ("verified" if matrix is M else "failed")
