"""Properties found in a module: layouts, rotary angles, and the contribution of each head."""

import pytest
import torch
from families import TEXTS, tiny
from rotary_angles import rotary_angles
from torch import nn

import attnviz
from attnviz.capture.projections.find import (
    angles,
    find_attention_modules,
    read_inputs,
)


@pytest.mark.parametrize("family", ["bert", "phi3", "deepseek-v3"])
def test_matrices_are_copies_that_texts_share(family, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    own = {each.untyped_storage().data_ptr() for each in model.module.parameters()}
    for records in zip(*model.attend(TEXTS[:2]), strict=True):
        for part in ("query", "key", "value", "output"):
            first, second = (getattr(record.projection, part).weight for record in records)
            assert first.untyped_storage().data_ptr() not in own
            assert first.data_ptr() == second.data_ptr()


def test_mixing_without_attention_has_no_holder():
    mixer = nn.Module()
    mixer.in_proj, mixer.out_proj = nn.Linear(8, 32), nn.Linear(16, 8)
    assert find_attention_modules(nn.ModuleDict({"mixer": mixer})) == {}


def test_angles_in_every_form_that_models_pass():
    cos, sin = rotary_angles(torch.arange(5), 6)
    expected = cos.unsqueeze(0), sin.unsqueeze(0)
    once = cos[:, :3], sin[:, :3]
    pairs = tuple(part.repeat_interleave(2, -1) for part in once)
    forms = {
        "halves": (cos, sin),
        "once": once,
        "side by side": pairs,
        "with a dimension for heads": tuple(part[None, None] for part in (cos, sin)),
        "complex": torch.complex(*once),
        "sines, then cosines": torch.cat(once[::-1], -1),
        "a pair of sines and cosines": (sin, cos),
    }
    for name, form in forms.items():
        found = angles(form)
        assert all(torch.equal(*both) for both in zip(found, expected, strict=True)), name
    step = angles((sin[2:3], cos[2:3]))  # of a generation
    assert torch.equal(step[0][0], cos[2:3])
    assert angles(None) is None
    assert angles((cos, sin[:2])) is None
    assert angles((1, 2)) is None


def test_inputs_are_found_by_name_or_position():
    class Attention(nn.Module):
        def forward(self, states, mask=None, position_embeddings=None, key_value_states=None):
            raise NotImplementedError

    X, cos = torch.ones(1, 2, 4), torch.ones(2, 4)
    for args, kwargs in [
        ((X, None, (cos, cos), X), {}),
        ((), {"states": X, "position_embeddings": (cos, cos), "key_value_states": X}),
    ]:
        found = read_inputs(Attention(), args, kwargs, texts=1, rotations={})
        assert torch.equal(found.input, X)
        assert torch.equal(found.key_input, X)
        assert found.input is not X  # the model may modify it later
        assert found.rotation[0].shape == (1, 2, 4)
    nothing = read_inputs(Attention(), (), {}, texts=1, rotations={})
    assert (nothing.input, nothing.key_input, nothing.rotation) == (None, None, None)
    of_pictures = {"position_embeddings": (cos.expand(3, 1, 2, 4),) * 2}
    assert read_inputs(Attention(), (X,), of_pictures, texts=1, rotations={}).rotation is None


def test_angles_that_modules_share_are_read_once_while_nothing_writes_them():
    class Attention(nn.Module):
        def forward(self, states, position_embeddings=None):
            raise NotImplementedError

    both, known = (torch.ones(2, 4), torch.zeros(2, 4)), {}

    def rotation(given):
        return read_inputs(Attention(), (), {"position_embeddings": given}, 1, known).rotation

    first = rotation(both)
    assert rotation(both)[0] is first[0]
    assert rotation((both[0].clone(), both[1]))[0] is not first[0]
    both[0].mul_(0.5)
    assert rotation(both)[0].max() == 0.5
