"""Every head of tiny models, explored, against the same numbers computed with plain torch."""

import itertools
import json

import numpy as np
import pytest
import torch
from families import tiny
from torch.testing import assert_close

import attnviz

STRONGEST, DECILES = 8, tuple(range(90, 0, -10))  # how many examples, and at which quantiles
TEXTS = [
    "the bank was full of cash", "we sat on the bank of the river until the rain began to fall",
    "mud", "a letter came from the old city", "rain fell all night", "she wrote it down",
    "the river rose and the bank broke", "cash is kept at the bank", "mud and rain",
    "the city has a river and a bank", "they walked home in the rain",
]  # fmt: skip
SAMPLE = TEXTS[::2]  # on which heads are compared: at most 8, evenly chosen
# The blocks, W^O as (features of heads, d), the final norm and the unembedding.
PARTS = {
    "llama": (lambda m: m.model.layers, lambda b: b.self_attn.o_proj, lambda m: m.model.norm),
    "gpt2": (lambda m: m.transformer.h, lambda b: b.attn.c_proj, lambda m: m.transformer.ln_f),
}


@pytest.fixture(scope="module")
def explored(tokenizer, bare_tokenizer):
    """Return a function from a family to its tiny model and its heads, explored."""
    done = {}

    def explore(family):
        if family not in done:
            name, _, without = family.partition(" ")
            model = attnviz.load(tiny(name), tokenizer=bare_tokenizer if without else tokenizer)
            done[family] = model, attnviz.explore(TEXTS, model=model)
        return done[family]

    return explore


def one_by_one(model):
    """Return the weights of all heads in each text, (K, T, T), its special tokens, and labels."""
    for text in TEXTS:
        result = model.attend(text)  # alone, so without any padding
        axis = result.records[0].query_axis
        yield result.weights().flatten(0, 1), torch.tensor(axis.special), axis.labels


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_examples_of_texts_of_different_lengths_are_those_of_a_search(family, explored):
    model, result = explored(family)
    found = list(one_by_one(model))
    assert len({weights.shape[-1] for weights, *_ in found}) > 4
    for k, role in enumerate(result.survey.roles):
        best = {}  # of each pair of a query and a key
        for weights, special, labels in found:
            allowed = ~special.expand(len(special), -1)
            if role != "own token":
                allowed = allowed & ~torch.eye(len(special), dtype=torch.bool)
            if role.startswith("rests"):
                allowed = allowed | special
            rows = weights[k] * allowed * ~special[:, None]
            if (weights * allowed)[:, ~special].any():
                row, key = divmod(int(rows.argmax()), len(special))
                pair = labels[row], labels[key]
                best[pair] = max(best.get(pair, 0.0), float(rows.max()))
        largest = sorted(best.values(), reverse=True)[:STRONGEST]
        shown = result.examples[k]
        assert [one.weight for one in shown] == pytest.approx(largest, abs=1e-5)
        assert len({one.text for one in shown}) == len(shown)
        for one in (*shown, *result.deciles[k]):
            row = found[one.text][0][k, one.row]
            assert list(one.weights) == pytest.approx(row.tolist(), abs=1e-5)
            assert one.weight == pytest.approx(float(row[one.key]), abs=1e-5)
            assert not found[one.text][1][one.row]
        assert 2 not in {one.text for one in shown} or role  # "mud" has no other token to read


def test_deciles_are_quantiles_of_the_texts(tokenizer):
    """Of two words, only the second can read the other, so that each text has one weight."""
    words = ["bank", "river", "rain", "mud", "city", "letter", "cash", "night"]
    texts = [" ".join(two) for two in itertools.permutations(words, 2)]
    model = attnviz.load(tiny("llama"), tokenizer=tokenizer)
    weights = torch.stack([model.attend(text).weights()[:, :, 2, 1].flatten() for text in texts])
    order = np.random.default_rng(3).permutation(len(texts))[:50].tolist()
    result = attnviz.explore([texts[n] for n in order], model=model)
    for k, role in enumerate(result.survey.roles):
        if not role:
            found = [one.weight for one in result.deciles[k]]
            known = weights[order, k].double().numpy()
            expected = [np.quantile(known, q / 100, method="nearest") for q in DECILES]
            assert found == pytest.approx(expected, abs=1e-5)
            largest = sorted(known, reverse=True)[:STRONGEST]
            assert [one.weight for one in result.examples[k]] == pytest.approx(largest, abs=1e-5)
    assert not all(result.survey.roles)
    of_many = attnviz.explore(texts, model=model)  # of a sample of 50
    assert all(len(one) == len(DECILES) for one in of_many.deciles)


@torch.no_grad()
def written_by_hand(model, family, layer, head):
    """Return the change of all logits in each text: with the head minus without it, centered."""
    module = model.module
    blocks, projection, norm = PARTS[family.partition(" ")[0]]
    W = projection(blocks(module)[layer]).weight
    W = W if family == "gpt2" else W.T  # (features of heads, d)
    size = W.shape[0] // 4
    part = slice(head * size, (head + 1) * size)
    changes = []
    for text in SAMPLE:
        inputs = model.tokenizer(text, return_tensors="pt").input_ids
        seen = {}
        hooks = [
            projection(blocks(module)[layer]).register_forward_pre_hook(
                lambda _, x, seen=seen: seen.update(mix=x[0][0])
            ),
            norm(module).register_forward_pre_hook(
                lambda _, x, seen=seen: seen.update(last=x[0][0])
            ),
        ]
        module(inputs)
        for hook in hooks:
            hook.remove()
        result = model.attend(text)
        special = torch.tensor(result.records[0].query_axis.special)
        weights = result.weights(layer=layer, head=head).float()
        other = weights * ~special * ~torch.eye(len(special), dtype=torch.bool)
        if not special.any():
            other[:, 0] = 0  # the sink
        first = int((~special).nonzero()[0])
        row = int((other.amax(1) * ~special).argmax()) if other[~special].any() else first
        states = seen["last"][row].repeat(2, 1)
        states[1] -= seen["mix"][row, part] @ W[part]
        whole, without = module.lm_head(norm(module)(states))
        changes.append(whole - without - (whole - without).mean())
    return torch.stack(changes)


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("family", ["llama", "gpt2", "llama without special tokens"])
@pytest.mark.parametrize(("layer", "head"), [(0, 0), (1, 3), (2, 2)])
def test_written_tokens_equal_the_direct_path_by_hand(family, layer, head, explored):
    model, result = explored(family)
    changes = written_by_hand(model, family, layer, head)
    mean = changes.mean(0)
    written = result.written[layer * 4 + head]
    for sign, listed in ((1, written.raises), (-1, written.lowers)):
        values, ids = (sign * mean).topk(6)
        assert [change for _, change, _ in listed] == pytest.approx(
            (sign * values).tolist(), abs=1e-4 * float(mean.abs().max())
        )
        words = {model.tokenizer.decode([token]): token for token in ids.tolist()}
        assert {word for word, _, _ in listed} == {*words}
        for word, change, count in listed:
            assert change * sign > 0
            assert count == int((sign * changes[:, words[word]] > 0).sum())
            assert 1 <= count <= len(SAMPLE)


@torch.no_grad()
def lost_by_hand(model, layer, head):
    """Return the log-probability of next tokens lost with the mean output of a head."""
    projection = model.module.model.layers[layer].self_attn.o_proj
    size = projection.in_features // 4
    part = slice(head * size, (head + 1) * size)
    texts = [model.tokenizer(text, return_tensors="pt").input_ids for text in SAMPLE]
    texts = [ids for ids in texts if ids.shape[1] > 1]
    outputs = []
    hook = projection.register_forward_pre_hook(lambda _, x: outputs.append(x[0][0, 1:, part]))
    for ids in texts:
        model.module(ids)
    hook.remove()
    mean = torch.cat(outputs).mean(0)

    def replace(_, args):
        (x,) = args
        x = x.clone()
        x[0, 1:, part] = mean  # not at the sink
        return (x,)

    def log_probability(ids):
        shares = model.module(ids).logits[0, :-1].double().log_softmax(-1)
        return shares.gather(1, ids[0, 1:, None]).mean()

    whole = torch.stack([log_probability(ids) for ids in texts])
    hook = projection.register_forward_pre_hook(replace)
    without = torch.stack([log_probability(ids) for ids in texts])
    hook.remove()
    return (whole - without).mean()


@pytest.mark.parametrize(("layer", "head"), [(0, 1), (1, 2), (2, 3)])
def test_an_effect_is_the_log_probability_lost_with_a_mean_output(layer, head, explored):
    model, result = explored("llama")
    expected = lost_by_hand(model, layer, head)
    assert_close(result.effects[layer * 4 + head], expected, atol=1e-6, rtol=1e-4)
    assert abs(expected) > 1e-4


def test_without_special_tokens_the_first_token_is_a_sink(explored):
    """It is not ablated, and is an example only of heads at rest."""
    model, result = explored("llama without special tokens")
    assert result.notes == ()  # though one text is a single token
    assert_close(result.effects[6], lost_by_hand(model, 1, 2), atol=1e-6, rtol=1e-4)
    for role, shown in zip(result.survey.roles, result.examples, strict=True):
        assert role.startswith("rests") or all(one.key for one in shown)
    none = attnviz.explore(["mud", "rain"], model=model)
    assert none.effects is None
    assert none.examples == none.deciles == ((),) * 12
    assert any("no text of the sample" in note and "next token" in note for note in none.notes)
    json.dumps(none.payload(), allow_nan=False)


def test_an_example_stands_once_not_at_each_decile(model):
    head = attnviz.explore(["mud"], model=model).payload()["heads"][0]
    assert len(head["deciles"]) <= 1


def test_texts_that_are_cut_leave_what_heads_write_and_the_effects_of_others(explored):
    model, _ = explored("llama")  # which reads 64 tokens
    long = "rain fell " * 40
    result = attnviz.explore([long, *TEXTS[:2]], model=model, truncate=True)
    assert len(result.written) == 12
    whole = attnviz.explore(TEXTS[:2], model=model)
    assert_close(result.effects, whole.effects)
    assert not [note for note in result.notes if "left out" in note]
    only = attnviz.explore([long], model=model, truncate=True)
    assert only.effects is None
    assert len(only.written) == 12
    assert len(only.tokens["0"]) == 64


def test_heads_have_the_same_order_everywhere(explored):
    model, result = explored("gpt2")
    names = [f"{layer}.{head}" for layer in range(3) for head in range(4)]
    assert [str(head) for head in result.survey.heads] == names
    data = result.payload()["heads"]
    assert [one["name"] for one in data] == names
    by_survey = attnviz.survey(TEXTS, model=model)
    assert result.survey.heads == by_survey.heads
    assert_close(result.survey.mean, by_survey.mean, equal_nan=True)
    for k, one in enumerate(data):
        assert one["examples"][0]["weight"] == round(result.examples[k][0].weight, 3)
        assert one["effect"] == round(float(result.effects[k]), 4)
        assert one["writes"]["raises"][0][0] == result.written[k].raises[0][0]


@pytest.mark.parametrize("family", ["distilbert", "bert", "llama"])
def test_what_a_model_lacks_is_named(family, explored):
    _, result = explored(family)
    head, causal = family != "distilbert", family == "llama"
    assert len(result.written) == (12 if head else 0)
    assert (result.effects is not None) == causal
    expected = (
        () if causal
        else ("the effects of heads are left out: it does not predict next tokens",) if head
        else ("DistilBertModel predicts no tokens, so nothing shows what its heads write",)
    )  # fmt: skip
    assert result.notes == expected
    payload = result.payload()
    assert [*expected] == payload["caption"][-len(expected) :] or not expected
    one = payload["heads"][0]
    assert ((one["writes"] is None), (one["effect"] is None)) == (not head, not causal)
    columns = set(result.to_frame().columns)
    assert ("effect" in columns) == causal


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_the_payload_has_the_tokens_of_every_example(family, explored):
    model, result = explored(family)
    payload = json.loads(json.dumps(result.payload(), allow_nan=False))
    assert "img-src" not in result.page().html  # no pictures
    shown = [one for head in payload["heads"] for one in head["examples"] + head["deciles"]]
    assert {str(one["text"]) for one in shown} == payload["texts"].keys()
    for one in shown:
        tokens = payload["texts"][str(one["text"])]
        ids = model.tokenizer(TEXTS[one["text"]]).input_ids
        assert tokens == [model.tokenizer.decode([token]) for token in ids]
        assert len(one["weights"]) == len(tokens) > max(one["row"], one["key"])
    for head in payload["heads"]:
        count = len(payload["statistics"])
        assert {len(head[name]) for name in ("values", "low", "high", "even")} == {count}
        deciles = [one.pop("decile") for one in head["deciles"]]
        assert deciles[0] == 90
        assert set(deciles) <= {*DECILES}
        pairs = itertools.pairwise(head["deciles"])
        assert all(one != other for one, other in pairs)  # one at several deciles stands once
        assert len(head["examples"]) == STRONGEST
        assert len({one["text"] for one in head["examples"]}) == STRONGEST
        assert len(head["similar"]) == 5
        assert payload["heads"].index(head) not in head["similar"]
