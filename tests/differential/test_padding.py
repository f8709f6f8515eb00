"""Padding on either side changes nothing: a padded text has the same maps as alone."""

import inspect
from dataclasses import replace

import pytest
from families import FAMILIES, FURTHER, OWN_CODE, TEXTS, tiny
from torch.testing import assert_close

from attnviz import agreement
from attnviz.capture.capture import capture
from attnviz.results import Axis

SOME = TEXTS[1:]

# These families find word positions in padded text by themselves.
KNOW_POSITIONS = {"roberta", "camembert", "xlm-roberta", "xlm-roberta-xl", "data2vec-text", "esm",
                  "roberta-prelayernorm", "opt"}  # fmt: skip  # fmt: skip
# In these families padding changes the text: blocks, chunks and pools are cut from the left, the
# batch length selects the rotary angles, or the tokenizer's padding differs from the model's.
MOVED = {
    "left": {"bigbird", "reformer", "longformer", "funnel", "roformer", "lfm2", "qwen3-next",
             "llama4", "phi3-longrope", "mpnet"},
    "right": {"bigbird", "reformer", "funnel", "phi3-longrope"},
}  # fmt: skip


def padded(family, module, tokenizer, side):
    """Return the inputs of a batch, and the axis of every text."""
    tokenizer.padding_side = side
    inputs = dict(tokenizer(SOME, return_tensors="pt", padding=True, return_token_type_ids=False))
    parameters = inspect.signature(module.forward).parameters
    if side == "left" and "position_ids" in parameters and family not in KNOW_POSITIONS:
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    axes = [
        replace(Axis.numbered(len(mask)), padding=tuple((mask == 0).tolist()))
        for mask in inputs["attention_mask"]
    ]
    return inputs, axes


@pytest.fixture
def own_tokenizer(tokenizer):
    side = tokenizer.padding_side
    yield tokenizer
    tokenizer.padding_side = side


# Its router amplifies rounding: 5e-5 in float32, 2e-8 in float64.
ROUGH = {"dbrx": 1e-4}
# Of the families without attention code of their own, some are enough: those that find positions by
# themselves, and the unusual ones.
OFTEN = {"bert", "gpt2", "mistral", "gemma2", "gpt-oss", "t5-encoder", *OWN_CODE, "roberta", "opt",
         "ctrl", "deepseek-v2", "gemma4", "lfm2", "llama4", "ministral3", "modernbert",
         "qwen3-next"}  # fmt: skip
CASES = [
    pytest.param(
        family, side, id=f"{family}-{side}", marks=() if family in OFTEN else pytest.mark.long
    )
    for family in [*FAMILIES, *FURTHER, *OWN_CODE]
    for side in ("left", "right")
    if family not in MOVED[side]
]


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize(("family", "side"), CASES)
def test_a_padded_text_has_the_same_maps_as_alone(family, side, own_tokenizer):
    module = tiny(family, shallow=True)
    inputs, axes = padded(family, module, own_tokenizer, side)
    no_provenance = {"versions": {}, "weights_sha256": ""}
    most_padded = min(range(len(SOME)), key=lambda n: int(inputs["attention_mask"][n].sum()))
    captured = capture(module, inputs, {"text": axes})[most_padded]
    report = agreement.verify(captured.records, captured.references, **no_provenance)
    assert report.verdict == "verified", report.summary()
    alone = own_tokenizer(SOME[most_padded], return_tensors="pt", return_token_type_ids=False)
    (single,) = capture(module, dict(alone))
    length = alone["input_ids"].shape[1]
    place = slice(-length, None) if side == "left" else slice(length)
    for among, one in zip(captured.records, single.records, strict=True):
        # A different rounding order gives errors proportional to the scores.
        largest = one.scores().where(one.weights() > 0, 0).abs().max().item()
        atol = ROUGH.get(family, 1e-5) * max(1, largest / 10)
        assert_close(among.weights()[:, place, place], one.weights(), rtol=0, atol=atol)
