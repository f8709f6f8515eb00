"""A model is searched once; whatever may add an attention makes it be searched again."""

import pytest
import torch
from families import TEXTS, tiny
from transformers.models.bert import modeling_bert

import attnviz
from attnviz.capture import search

SHORT, LONG = TEXTS[2], TEXTS[0]


@pytest.fixture
def searches(monkeypatch):
    """Return the searches of this test, which starts without plans."""
    made = []
    search._plan_of.cache_clear()

    class Counted(search.Search):
        def __init__(self, model, **options):
            super().__init__(model, **options)
            made.append(self)

    monkeypatch.setattr(search, "Search", Counted)
    return made


@pytest.mark.parametrize("family", ["bert", "mistral", "gemma2", "gpt-oss"])
def test_by_a_plan_the_same_is_recorded(family, tokenizer, searches):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    searched = model.attend(LONG)
    assert len(searches) == 1  # the first run; the second follows its plan
    by_plan = model.attend(LONG)
    assert len(searches) == 1
    assert by_plan.agreement.verdict == "verified"
    assert by_plan.agreement.digests == searched.agreement.digests
    assert by_plan.notes == searched.notes
    model.attend(SHORT)  # another length needs no other plan
    assert len(searches) == 1


def test_a_model_of_the_same_kind_follows_the_plan_of_another(tokenizer, searches):
    first, second = (attnviz.load(tiny("mistral"), tokenizer=tokenizer) for _ in range(2))
    first.attend(LONG)
    with torch.no_grad():
        second.module.layers[0].self_attn.q_proj.weight.mul_(2)
    assert second.attend(LONG).agreement.verdict == "verified"
    assert len(searches) == 1
    second.module.layers[1].self_attn.scaling = 0.1
    assert second.attend(LONG).agreement.verdict == "verified"
    assert len(searches) == 2


@pytest.mark.parametrize("family", ["deberta", pytest.param("longformer", marks=pytest.mark.long)])
def test_attention_beside_the_interface_is_searched_each_time(family, tokenizer, searches):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    for count in (2, 4):
        model.attend(LONG)
        assert len(searches) == count


def add_hook(module, monkeypatch):
    module.bert.encoder.layer[0].register_forward_hook(lambda *_: None)


def replace_forward(module, monkeypatch):
    layer = module.bert.encoder.layer[0]
    own = layer.forward
    monkeypatch.setattr(layer, "forward", lambda *args, **kwargs: own(*args, **kwargs))


def replace_submodule(module, monkeypatch):
    class Other(type(module.bert.encoder.layer[0].output)):
        pass

    module.bert.encoder.layer[0].output.__class__ = Other


def change_config(module, monkeypatch):
    module.config.chunk_size_feed_forward = 1


def replace_function(module, monkeypatch):
    own = modeling_bert.eager_attention_forward
    other = lambda *args, **kwargs: own(*args, **kwargs)  # noqa: E731
    monkeypatch.setattr(modeling_bert, "eager_attention_forward", other)


@pytest.mark.parametrize(
    "change", [add_hook, replace_forward, replace_submodule, change_config, replace_function]
)
def test_another_code_is_searched_again(change, tokenizer, searches, monkeypatch):
    module = tiny("bert")
    model = attnviz.load(module, tokenizer=tokenizer)
    model.attend(SHORT)
    change(module, monkeypatch)
    model.attend(SHORT)
    assert len(searches) == 2


def softmax_attention(states):
    return torch.softmax(states @ states.mT, -1) @ states


def written_out(states):
    exponentials = (states @ states.mT).exp()
    return exponentials / exponentials.sum(-1, keepdim=True) @ states


def decayed_sum(states):
    decay = torch.sigmoid(states[..., :1])
    sums = [states[:, 0]]
    for position in range(1, states.shape[1]):
        sums.append(decay[:, position] * sums[-1] + states[:, position])
    return torch.stack(sums, 1)


@pytest.mark.parametrize("mix", [softmax_attention, written_out, decayed_sum])
def test_an_attention_of_long_texts_only_is_found(mix, tokenizer, searches, monkeypatch):
    module = tiny("bert")
    intermediate = module.bert.encoder.layer[1].intermediate
    own = type(intermediate).forward

    def forward(states):
        result = own(intermediate, states)
        return result + mix(states).mean() if states.shape[1] > 12 else result

    monkeypatch.setattr(intermediate, "forward", forward)
    model = attnviz.load(module, tokenizer=tokenizer)
    short = model.attend(SHORT)
    assert len(short) == len(model.attend(SHORT))
    assert len(searches) == 1
    try:
        found = len(model.attend(LONG)) > len(short)
    except attnviz.errors.ModelError:
        found = True
    assert len(searches) > 1
    assert found or mix is decayed_sum  # it lies in no function of the model: not shown


def test_one_token_is_no_plan(tokenizer, searches):
    model = attnviz.load(tiny("mistral"), tokenizer=tokenizer)
    for count in (3, 6):  # one of the token repeated, for what mixes tokens without a softmax
        model.attend(torch.tensor([[5]]))
        assert len(searches) == count
