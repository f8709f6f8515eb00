"""Ablated heads, compared with hooks and edited weights in plain transformers."""

import copy
import math
import re
from contextlib import contextmanager
from dataclasses import replace

import families
import pytest
import torch
from scipy import stats
from torch.testing import assert_close
from transformers.models.bert import modeling_bert
from transformers.models.llama import modeling_llama

import attnviz
from attnviz import InputError, ModelError

TEXT = "the bank was full of cash"
OTHER = "the shop was full of mud"  # as many tokens
MASKED = "the bank was full of [MASK]"

_small = families._small
# The class and the sizes of models that `families` has without a head.
WITH_HEAD = {
    "opt": ("OPTForCausalLM", families.FURTHER["opt"][1]),
    "gpt-neox": ("GPTNeoXForCausalLM", _small),
    "qwen2-head": ("Qwen2ForCausalLM", _small),
    "classifier": ("BertForSequenceClassification", _small | {"num_labels": 3}),
}
FAMILIES = ["gpt2", "llama", "bert", *WITH_HEAD]
# W^O of each layer
OUTPUT = re.compile(r"(attn\.c_proj|self_attn\.o(ut)?_proj|attention(\.output)?\.dense)$")


@pytest.fixture(scope="module")
def tiny_model(tokenizer):
    loaded = {}

    def load(family):
        if family not in loaded:
            with pytest.MonkeyPatch.context() as patch:
                if family in WITH_HEAD:
                    patch.setitem(families.FURTHER, family, WITH_HEAD[family])
                module = families.tiny(family, torch.float64)
            # Its eager softmax is float32 in some families, and that of torch's attention is not.
            module.set_attn_implementation("eager")
            loaded[family] = attnviz.load(module, tokenizer=tokenizer)
        return loaded[family]

    return load


def text_of(family):
    return MASKED if family == "bert" else TEXT


def encode(model, text):
    return {"input_ids": model.tokenizer(text, return_tensors="pt").input_ids}


def read_logits(model, module, text):
    """Return the logits of the last or the masked token, or of the classes, (V,)."""
    inputs = encode(model, text)
    with torch.no_grad():
        logits = module(**inputs)[0][0]
    if logits.dim() == 1:
        return logits
    masked = (inputs["input_ids"][0] == model.tokenizer.mask_token_id).nonzero()
    return logits[masked[0, 0] if len(masked) else -1]


def effects(before, after, token=None):
    """Return the log-probability lost and the divergence, (2,)."""
    before, after = before.log_softmax(-1), after.log_softmax(-1)
    token = before.argmax() if token is None else token
    divergence = torch.nn.functional.kl_div(after, before, reduction="sum", log_target=True)
    return torch.stack([before[token] - after[token], divergence])


def every_head(model):
    layers = model.module.config.num_hidden_layers
    return [(layer, head) for layer in range(layers) for head in range(4)]


@contextmanager
def mixing(module, change):
    """Call change(layer, x) for the input (1, T, H d_v) of each W^O, and use what it returns."""
    projections = [part for name, part in module.named_modules() if OUTPUT.search(name)]
    hooks = [
        projection.register_forward_pre_hook(
            lambda _, args, layer=layer: (change(layer, args[0].clone()),)
        )
        for layer, projection in enumerate(projections)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def mixes(model, text):
    """Return the input of each W^O, (1, T, H d_v) each."""
    recorded = []

    def record(_, x):
        recorded.append(x)
        return x

    with mixing(model.module, record):
        read_logits(model, model.module, text)
    return recorded


def features(x, head):
    """Return which numbers before W^O belong to a head."""
    width = x.shape[-1] // 4
    return slice(head * width, (head + 1) * width)


def logits_with(model, text, change):
    """Return the logits with a change before W^O."""
    with mixing(model.module, change):
        return read_logits(model, model.module, text)


def changed(model, text, change, token=None):
    """Return the effects of a change before W^O, (2,)."""
    whole = read_logits(model, model.module, text)
    return effects(whole, logits_with(model, text, change), token)


def scaling(heads, factor=0.0):
    """Return a change that scales heads."""

    def change(layer, x):
        for place, head in heads:
            if place == layer:
                x[..., features(x, head)] *= factor
        return x

    return change


def without(model, sets, text, token=None):
    """Return the effects of sets of heads that add nothing, (S, 2)."""
    changes = map(scaling, sets)
    return torch.stack([changed(model, text, change, token) for change in changes])


def measured(result, text=0):
    return torch.stack([result.lost[text], result.divergence[text]], dim=1)


def differ(a, b):
    """Return the largest difference, in units of the largest effect."""
    return ((a - b).abs().max() / b.abs().max()).item()


def zeroed(model, text, **options):
    return attnviz.ablate(text, model=model, how="zero", keep_sink=False, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_zeroed_head_adds_nothing_through_the_output_projection(family, tiny_model):
    model, text = tiny_model(family), text_of(family)
    heads = every_head(model)[:: 1 if family in ("gpt2", "llama", "bert") else 5]
    result = zeroed(model, text, heads=heads)
    expected = without(model, [[head] for head in heads], text)
    assert (expected.abs() > 1e-7).all()
    for mine, theirs in zip(measured(result).T, expected.T, strict=True):
        assert differ(mine, theirs) < 1e-10
    assert result.sets == tuple((head,) for head in heads)
    assert result.quantity == "log-probability"
    assert (result.divergence > 0).all()
    assert result.checked_agreement.verdict == "verified"
    if family == "classifier":
        (target,) = result.targets
        assert target == model.module.config.id2label[
            int(read_logits(model, model.module, text).argmax())
        ]  # fmt: skip


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_target_alone_and_against_another(family, tiny_model):
    model, text = tiny_model(family), text_of(family)
    cash, mud = (model.tokenizer.convert_tokens_to_ids(word) for word in ("cash", "mud"))
    heads = every_head(model)
    one = zeroed(model, text, target="cash")
    assert one.targets == ("cash",)
    expected = without(model, [[head] for head in heads], text, cash)
    assert differ(measured(one), expected) < 1e-10
    two = zeroed(model, text, target="cash", against="mud")
    assert (two.targets, two.quantity, two.unit) == (("cash over mud",), "difference", "logits")
    assert two.headline.startswith("The lead of “cash” over “mud” ")
    whole = read_logits(model, model.module, text)
    parts = [logits_with(model, text, scaling([head])) for head in heads]
    lost = [(whole[cash] - whole[mud]) - (part[cash] - part[mud]) for part in parts]
    assert differ(two.lost[0], torch.stack(lost)) < 1e-10
    assert differ(two.divergence, one.divergence) < 1e-12


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_heads_of_a_set_are_ablated_together(family, tiny_model):
    model, text = tiny_model(family), text_of(family)
    sets = [[(2, 1), (0, 3)], [(1, 0)], [(1, 1), (1, 2)], every_head(model)]
    result = zeroed(model, text, heads=[sets[0], sets[1][0], *sets[2:]])
    assert differ(measured(result), without(model, sets, text)) < 1e-10
    assert result.names[:3] == ("2.1+0.3", "1.0", "1.1+1.2")
    assert result.grid(result.mean) is None
    alone = zeroed(model, text, heads=sets[0])
    assert (result.lost[0, 0] - alone.lost.sum()).abs() > 1e-4
    assert_close(result.estimate[0, 0], alone.estimate.sum())


@pytest.mark.parametrize(("family", "count"), [("gpt2", 2), ("llama", 1)])
def test_the_mean_replaces_a_head_at_all_positions_but_the_sink(family, count, tiny_model):
    model, texts = tiny_model(family), [TEXT, "a river runs through it"][:count]
    every = [mixes(model, text) for text in texts]
    result = attnviz.ablate(texts, model=model)
    for text in range(count):
        expected = []
        for layer, head in every_head(model):
            mean = torch.cat([mix[layer][0, 1:] for mix in every]).mean(0)

            def change(place, x, layer=layer, head=head, mean=mean):
                if place == layer:
                    x[:, 1:, features(x, head)] = mean[features(x, head)]
                return x

            expected.append(changed(model, texts[text], change))
        assert differ(measured(result, text), torch.stack(expected)) < 1e-5
    assert result.how.endswith("at all positions but the attention sink")


def test_another_text_replaces_a_head(tiny_model):
    """With several texts it is the next one, which starts anew where it is shorter."""
    model, texts = tiny_model("gpt2"), [TEXT, "a river runs"]
    other = mixes(model, texts[1])
    result = attnviz.ablate(texts, heads=[(1, 2)], how="resample", model=model)

    def change(layer, x):
        if layer == 1:
            rows = [1 + row % (other[1].shape[1] - 1) for row in range(x.shape[1] - 1)]
            x[:, 1:, features(x, 2)] = other[1][:, rows][..., features(x, 2)]
        return x

    assert differ(measured(result)[0], changed(model, TEXT, change)) < 1e-10


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_word_knocked_out_equals_masked_scores(family, tiny_model, monkeypatch):
    """Compared with an attention function that adds -∞ to the scores of some heads."""
    model, text = tiny_model(family), text_of(family)
    code = {"llama": modeling_llama, "bert": modeling_bert}[family]
    sets = [[head] for head in every_head(model)] + [[(0, 1), (2, 3)]]
    result = attnviz.ablate(text, heads=sets, knock_out="bank", model=model)
    key = encode(model, text)["input_ids"][0].tolist().index(
        model.tokenizer.convert_tokens_to_ids("bank")
    )  # fmt: skip
    eager, module, hidden = code.eager_attention_forward, copy.deepcopy(model.module), []
    module.set_attn_implementation("eager")
    holders = [holder for holder in module.modules() if hasattr(holder, "scaling")]
    attentions = {id(holder): layer for layer, holder in enumerate(holders)}
    assert len(attentions) == 3

    def attend(holder, query, key_states, value, mask, **options):
        T = query.shape[2]
        extra = torch.zeros(1, 4, T, T, dtype=query.dtype)
        for layer, head in hidden:
            if attentions[id(holder)] == layer:
                extra[:, head, :, key] = -torch.inf
                extra[:, head, key, key] = 0
        mask = extra if mask is None else mask[..., :T] + extra
        return eager(holder, query, key_states, value, mask, **options)

    monkeypatch.setattr(code, "eager_attention_forward", attend)
    whole, expected = read_logits(model, module, text), []
    assert_close(whole, read_logits(model, model.module, text), atol=1e-5, rtol=1e-5)
    for heads in sets:
        hidden[:] = heads
        expected.append(effects(whole, read_logits(model, module, text)))
    expected = torch.stack(expected)
    assert (expected[:, 0].abs() > 1e-5).sum() > 8
    assert differ(measured(result), expected) < 1e-5
    assert result.estimate.isnan().all()
    assert result.rank_correlation is None
    assert result.how == "the head may not attend to “bank”"


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_a_direct_effect_equals_a_patched_path(family, tiny_model):
    """The head is zeroed where the output is read; the inputs of all W^O are fixed by hooks."""
    model, text = tiny_model(family), text_of(family)
    heads, fixed = every_head(model), mixes(model, text)
    ids = encode(model, text)["input_ids"][0].tolist()
    row = ids.index(model.tokenizer.mask_token_id) if family == "bert" else len(ids) - 1
    direct = zeroed(model, text, effect="direct")
    total = zeroed(model, text)
    expected = []
    for layer, head in heads:

        def change(place, x, layer=layer, head=head):
            x = fixed[place].clone()
            if place == layer:
                x[:, row, features(x, head)] = 0
            return x

        expected.append(changed(model, text, change))
    expected = torch.stack(expected)
    assert differ(measured(direct), expected) < 1e-10
    difference = (measured(direct) - measured(total)).abs()
    assert (difference[:-4] > 1e-6).any(1).all()
    assert (difference[-4:] < 1e-6).all()  # nothing attends after the last layer
    assert direct.estimate.isnan().all()
    assert direct.rank_correlation is None
    assert direct.effect == "direct"


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_all_heads_of_another_text_give_its_prediction(family, tiny_model):
    """Both texts end with the same token, and the rest reaches it through the heads alone."""
    model = tiny_model(family)
    before, after = (read_logits(model, model.module, text) for text in (TEXT, OTHER))
    every = [every_head(model)]
    result = attnviz.ablate(TEXT, heads=every, patch=OTHER, keep_sink=False, model=model)
    expected = effects(before, after)
    assert expected[1] > 1e-3
    assert differ(measured(result)[0], expected) < 1e-10
    with pytest.raises(InputError, match="is the same as the text"):
        attnviz.ablate(TEXT, patch=TEXT, model=model)


def test_the_vector_of_a_word_moves(model):
    """Of the bundled model, compared with zeroed columns of W^O."""
    text, heads = "He sat on the bank of the river", [(1, 4), (5, 2)]
    result = zeroed(model, text, word="bank", heads=heads)
    device = model.module.device
    ids = model.tokenizer(text, return_tensors="pt").input_ids.to(device)
    row = ids[0].tolist().index(model.tokenizer.convert_tokens_to_ids("bank"))

    def vector(module):
        with torch.no_grad():
            return module(ids)[0][0, row].double()

    whole = vector(model.module)
    for index, (layer, head) in enumerate(heads):
        module = copy.deepcopy(model.module)
        dense = module.encoder.layer[layer].attention.output.dense
        with torch.no_grad():
            dense.weight[:, head * 32 : head * 32 + 32] = 0
        moved = (vector(module) - whole).norm() / whole.norm()
        assert moved > 1e-3
        assert result.lost[0, index].item() == pytest.approx(moved.item(), rel=1e-4)
    assert result.targets == ("bank",)
    assert result.divergence.isnan().all()
    assert result.estimate.isnan().all()
    assert result.headline.startswith("The vector of “bank” moves by ")
    assert f"moves by {float(result.mean.max()):.0%} of its length without" in result.headline


@pytest.mark.parametrize("family", ["gpt2", "bert", "classifier"])
def test_the_estimate_is_the_slope_of_what_is_lost(family, tiny_model):
    """Compared with heads that are scaled by a little less and a little more than 1."""
    model, text, step = tiny_model(family), text_of(family), 1e-3
    result = zeroed(model, text)
    token = read_logits(model, model.module, text).argmax()
    slopes = []
    for head in every_head(model):
        less, more = (
            logits_with(model, text, scaling([head], factor)).log_softmax(-1)[token]
            for factor in (1 - step, 1 + step)
        )
        slopes.append((more - less) / (2 * step))
    assert differ(result.estimate[0], torch.stack(slopes)) < 1e-3


@pytest.fixture(scope="module")
def several(tiny_model):
    texts = [TEXT, OTHER, "a river runs through it", "my sister wrote a long letter"]
    return zeroed(tiny_model("gpt2"), texts, target="cash")


def test_means_over_texts_have_intervals_and_ranks(several, tiny_model):
    alone = [zeroed(tiny_model("gpt2"), text, target="cash").lost[0] for text in several.texts]
    assert_close(several.lost, torch.stack(alone))
    low, high = several.intervals.unbind(1)
    assert_close(several.mean, several.lost.mean(0))
    assert (low < several.mean).all()
    assert (several.mean < high).all()
    one, *_ = several.lost.T.double()
    expected = stats.t.interval(0.95, 3, one.mean(), stats.sem(one))
    assert_close(several.intervals[0], torch.tensor(expected, dtype=torch.float64))
    excludes_0 = (low > 0) | (high < 0)
    assert (excludes_0 | ~several.is_certain).all()  # corrected for the number of heads
    ranked = stats.spearmanr(several.estimate.mean(0), several.mean).statistic
    assert several.rank_correlation == pytest.approx(ranked)
    unknown = several.estimate.clone()
    unknown[0, 0] = math.nan
    assert replace(several, estimate=unknown).rank_correlation is None
    one = zeroed(tiny_model("gpt2"), TEXT, heads=[(0, 0), (1, 1)])
    assert one.rank_correlation is None
    assert one.intervals.isnan().all()
    assert one.is_certain.all()


def test_distances_of_several_texts_are_not_tested(model):
    """A distance is above 0 in every text, even where a head does nothing."""
    result = attnviz.ablate([TEXT, OTHER.replace("mud", "bank")], word="bank", model=model)
    noise = replace(result, lost=torch.rand_like(result.lost) * 1e-6)
    for one in (result, noise):
        assert not one.is_tested
        assert not one.is_certain.any()
        assert "certain" not in one.headline
        assert all(bar.get_facecolor()[3] == 1 for bar in one.plot().axes[1].patches)


def test_the_headline_says_what_is_certain(several):
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)[:, None]
    uncertain = replace(several, lost=0.1 + signs.expand_as(several.lost).clone())
    assert not uncertain.is_certain.any()
    assert uncertain.headline.endswith("without head 0.0, but not for certain (4 texts)")
    lost = uncertain.lost.clone()
    lost[:, 5] = -0.25  # certain, though other heads change more in each text
    result = replace(uncertain, lost=lost)
    rises = "The log-probability of “cash” rises on average by 0.25 nats without head 1.1"
    assert result.headline == rises
    lost[:, 7] = 9.0 * signs[:, 0] + 1.0  # the mean is the largest, and the interval includes 0
    bars = replace(result, lost=lost).plot().axes[1].patches
    assert [bar.get_alpha() or bar.get_facecolor()[3] for bar in bars[:2]] == [0.4, 1.0]
    falls = replace(uncertain, lost=-lost).headline
    assert falls == rises.replace("rises", "falls")
    sets = (((0, 1), (2, 3)),)
    pair = {name: getattr(several, name)[:1, :1] for name in ("lost", "divergence", "estimate")}
    two = replace(several, sets=sets, texts=several.texts[:1], targets=("cash",), **pair)
    assert two.headline.endswith("without heads 0.1 and 2.3")


def test_a_change_that_is_printed_as_nothing_is_none(several):
    none = replace(several, lost=several.lost.sign() * 0.004)
    said = "No head alone changes the log-probability of “cash” on average by 0.01 nats"
    assert none.headline == said
    lost = none.lost.clone()
    lost[:, 5] = torch.tensor([0.3, 0.2, 0.3, 0.2], dtype=lost.dtype)
    found = replace(none, lost=lost).headline
    assert found == "The log-probability of “cash” falls on average by 0.25 nats without head 1.1"


BAD = {
    "word and target": ((TEXT,), {"word": "bank", "target": "cash"}, "A word and a target are"),
    "word and other": ((TEXT,), {"word": "bank", "against": "cash"}, "A word and a target are"),
    "same choices": ((TEXT,), {"target": "cash", "against": "cash"}, "Both choices are"),
    "no such layer": ((TEXT,), {"heads": [(3, 0)]}, "no head 0 in layer 3"),
    "no such head": ((TEXT,), {"heads": [[(0, 0), (1, 4)]]}, "no head 4 in layer 1"),
    "negative": ((TEXT,), {"heads": [(-1, 0)]}, "no head 0 in layer -1"),
    "heads in words": ((TEXT,), {"heads": "some"}, 'heads must be "all", or pairs'),
    "no heads": ((TEXT,), {"heads": []}, 'heads must be "all", or pairs'),
    "an empty set": ((TEXT,), {"heads": [(0, 1), []]}, 'heads must be "all", or pairs'),
    "one pair": ((TEXT,), {"heads": (0, 1)}, 'heads must be "all", or pairs'),
    "triples": ((TEXT,), {"heads": [(0, 1, 2)]}, 'heads must be "all", or pairs'),
    "a bool": ((TEXT,), {"heads": [(True, 1)]}, 'heads must be "all", or pairs'),
    "knocked out directly": ((TEXT,), {"knock_out": "bank", "effect": "direct"}, "Knocking a word"),
    "knocked out and patched": ((TEXT,), {"knock_out": "bank", "patch": OTHER}, "Give one"),
    "longer": ((TEXT,), {"patch": f"{OTHER} now"}, "has 9 tokens, but the text has 8"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_give_one_line(case, tiny_model):
    arguments, options, message = BAD[case]
    with pytest.raises(InputError, match=message) as error:
        attnviz.ablate(*arguments, model=tiny_model("gpt2"), **options)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


def test_a_model_without_a_head_needs_a_word(model):
    with pytest.raises(ModelError, match="has no head that predicts a token or a class"):
        attnviz.ablate(TEXT, model=model)


def test_the_floor_is_the_rounding_of_the_logits_not_a_relative_error(several):
    """Where the output is near 0, the relative tolerance is huge, and says nothing of logits."""
    report = several.agreement
    output = replace(report.output, tolerance=11.7)
    huge = replace(several, agreement=replace(report, output=output))
    assert huge.least == several.least == 0.005
    assert huge.headline == several.headline
    assert replace(several, rounding=11.7).headline.startswith("No head alone changes")
