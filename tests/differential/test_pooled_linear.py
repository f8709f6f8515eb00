"""Linear attention of long texts: pooled maps, against whole ones, and planted faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from linear_models import SaturatedSum, build, hybrid

import attnviz
from attnviz import InputError
from attnviz.agreement import verify
from attnviz.capture.streamed import capture_pooled, linear_calls
from attnviz.results import Axis

TOKENS, CELL = 19, 8  # the last cell is smaller


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
    known = linear_calls(model, inputs)
    assert (known.heads, known.modules, known.is_all) == (4, ("Mamba2Mixer",), True)
    records, references = capture_pooled(model, inputs, Axis.numbered(TOKENS), known.calls, CELL)
    record, M = records[0], records[0].matrix
    faults = (M * 1.01, M.flip(0), M.roll(1, dims=2).tril(), M * (M[:, :1, :1] != M))
    for matrix in (M, *faults):
        report = verify(
            [replace(record, matrix=matrix)], references, versions={}, weights_sha256=""
        )
        assert report.verdict == ("verified" if matrix is M else "failed")


def test_options_of_softmax_attention_are_refused_for_pooled_maps(tokenizer):
    model, text = attnviz.load(build("mamba"), tokenizer=tokenizer), "the train left the station"
    why = r"exact \(--layer of view\) cannot be used: .* has linear attention only"
    with pytest.raises(InputError, match=why):
        model.attend(text, cells=8, exact=0)
    with pytest.raises(InputError, match="positions of a streamed text cannot be checked"):
        model.attend(text, cells=8, positions="all")
    with pytest.raises(InputError, match="layer 9 is out of range"):
        model.attend(text, cells=8, layers=9)
    with pytest.raises(InputError, match="head 99 is out of range"):
        model.attend(text, cells=8, heads=99)


def test_only_the_layers_that_were_asked_for_are_stored(tokenizer):
    model = attnviz.load(build("rwkv"), tokenizer=tokenizer)  # two layers
    text = "the train left the station on time " * 2
    every = model.attend(text, cells=8)
    one = model.attend(text, cells=8, layers=1, heads=0)
    assert (every.layers, one.layers) == ((0, 1), (1,))
    assert torch.equal(one.records[0].matrix, every.records[1].matrix)
    assert one.checked_agreement.verdict == "verified"


def test_a_long_text_of_a_hybrid_says_what_it_does_not_show(tokenizer):
    model = hybrid(["linear_attention", "full_attention", "linear_attention"])
    text = "the train left the station on time " * 5
    result = attnviz.load(model, tokenizer=tokenizer).attend(text, mode="streamed")
    assert result.stacks == ("decoder",)
    (note,) = [note for note in result.notes if note.startswith("of a long text")]
    assert "1 of 3 layers that mix tokens; the other 2 (Qwen3NextGatedDeltaNet)" in note


def test_a_long_text_names_layers_of_another_kind(tokenizer):
    model = hybrid(["linear_attention", "full_attention", "linear_attention"])
    model.layers[0].linear_attn = SaturatedSum()
    text = "the train left the station on time " * 5
    notes = attnviz.load(model, tokenizer=tokenizer).attend(text, mode="streamed").notes
    assert any("not shown: 1 layer with SaturatedSum" in note for note in notes)
    assert any("the other 1 (Qwen3NextGatedDeltaNet) is linear attention" in n for n in notes)


def test_a_long_text_of_softmax_attention_has_no_such_note(model):
    result = model.attend("the train left the station on time " * 5, mode="streamed")
    assert not any(note.startswith("of a long text") for note in result.notes)
