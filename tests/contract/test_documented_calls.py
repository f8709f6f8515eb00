"""The documented call of a model, beside attnviz: the same arguments and the same outputs.

`tokenizer(text)`, then `model(**inputs)`: what reaches the model is recorded by a
hook, and the model is as it was before.
"""

import copy
import itertools

import pytest
import torch
from families import FAMILIES, FURTHER, OWN_CODE, TARGETS, TEXTS, TWO_SIDED, tiny
from vocabularies import MAKERS, vocabulary

import attnviz

EVERY = [*FAMILIES, *TWO_SIDED, *OWN_CODE, *FURTHER]
ROTATING = EVERY[::8]  # 15 of the families; all with -m long
KINDS = ["bundled", *(kind for kind in MAKERS if kind not in ("canine", "esm"))]  # small ids
SCRIPTS = "a <s> b </s> naïve, 火车 [SEP] x"


def documented(module, tokenizer, text, target):
    """Return the arguments of the documented call."""
    own = copy.copy(tokenizer)
    if not any("token_type" in name for name, _ in module.named_parameters()):
        own.model_input_names = ["input_ids", "attention_mask"]
    arguments = dict(own(text, return_tensors="pt"))
    if target is not None:
        labels = own(text_target=target, return_tensors="pt").input_ids
        shifted = module.prepare_decoder_input_ids_from_labels(labels)
        arguments["decoder_input_ids"] = shifted
    return own, arguments


def output_of(module, arguments):
    torch.manual_seed(0)  # Reformer hashes by random rotations
    with torch.no_grad():
        output = module(**arguments)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def state_of(module):
    """Return what a run may leave changed: submodules, buffers, settings, hooks, modes."""
    return {
        "modules": [(name, id(part), part.training) for name, part in module.named_modules()],
        "hooks": [len(part._forward_hooks) for part in module.modules()],
        "buffers": [(name, buffer.tolist()) for name, buffer in module.named_buffers()],
        "config": module.config.to_dict(),
        "implementation": module.config._attn_implementation,
    }


def _check(family, tokenizer, text=TEXTS[0]):
    module = tiny(family)
    if not tokenizer.is_fast:  # of bytes, which has no other ids
        module.resize_token_embeddings(len(tokenizer))
    target = TARGETS[0] if family in TWO_SIDED else None
    tokenizer, arguments = documented(module, tokenizer, text, target)
    expected, state, calls = output_of(module, arguments), state_of(module), []
    keep = module.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(kwargs), with_kwargs=True
    )
    try:
        result = attnviz.attend(
            text, target=target, model=attnviz.load(module, tokenizer=tokenizer)
        )
    finally:
        keep.remove()
    whole = [c for c in calls if "input_ids" in c and len(c["input_ids"]) == 1]
    assert whole, "the model never ran on the text alone"
    for call in whole:
        if call["input_ids"].shape == arguments["input_ids"].shape:
            break
    given = {name: value for name, value in call.items() if isinstance(value, torch.Tensor)}
    for name, value in arguments.items():
        read = given.pop(name)[..., : value.shape[-1]]
        assert torch.equal(read, value[..., : read.shape[-1]]), name
    assert set(given) <= {"decoder_attention_mask"}
    assert result.agreement.verdict in ("verified", "not proven")
    assert state_of(module) == state
    torch.testing.assert_close(output_of(module, arguments), expected, rtol=0, atol=0)


EVERY_KIND = [*zip([*FAMILIES, *TWO_SIDED], itertools.cycle(KINDS), strict=False)]


@pytest.mark.parametrize(("family", "kind"), [*((name, None) for name in ROTATING), *EVERY_KIND])
def test_the_model_reads_what_the_documented_call_gives(family, kind, tokenizer):
    other = tokenizer if kind in (None, "bundled") else vocabulary(kind)
    _check(family, other, TEXTS[0] if kind is None else SCRIPTS)


def test_another_id_is_noticed(tokenizer, monkeypatch):
    """Another id on the way to the model is seen by this test."""

    def other(rows, fill):
        return torch.tensor([[min(one, 5000) for one in row] for row in rows])

    monkeypatch.setattr("attnviz.inputs.text.padded", other)
    with pytest.raises(AssertionError, match="input_ids"):
        _check("bert", tokenizer)
