"""Exploring heads: examples against a search by hand, planes, written tokens, effects, the page."""

import json

import pytest
import torch
from families import tiny

import attnviz
from attnviz.analyses.explore.compute import _SAMPLE, STRONGEST, Examples, _outputs_of_heads
from attnviz.app import run
from attnviz.errors import InputError
from attnviz.heads import Positions

TEXTS = [
    "the bank was full of cash", "we sat on the bank of the river", "the mud was deep",
    "a letter came from the old city", "rain fell all night", "the river rose and the bank broke",
    "she wrote it down", "cash is kept at the bank", "the city has a river and a bank",
    "they walked home in the rain", "mud and rain",
]  # fmt: skip


@pytest.fixture(scope="module")
def explored(model):
    """Return the heads of the bundled model, explored on some texts."""
    return attnviz.explore(TEXTS, model=model)


@pytest.fixture(scope="module")
def decoder(tokenizer):
    """Return a tiny decoder that predicts tokens."""
    return attnviz.load(tiny("llama"), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def plain(decoder):
    """Return the heads of the tiny decoder, explored on some of the texts."""
    return attnviz.explore(TEXTS[:3], model=decoder)


def searched(results, weights_of, roles):
    """Return for each head the largest weight on a token that counts, of each text, by hand.

    Of several texts with the same query and the same key, the largest is taken.
    """
    best = [[] for _ in roles]
    for number, (result, weights) in enumerate(zip(results, weights_of, strict=True)):
        special = torch.tensor(result.records[0].query_axis.special)
        T = weights.shape[-1]
        for k, role in enumerate(roles):
            counts = ~special[None].expand(T, T)
            if role != "own token":
                counts = counts & ~torch.eye(T, dtype=torch.bool)
            if role.startswith("rests"):
                counts = counts | special[None]
            strength = weights[k].masked_fill(~counts, 0)[~special]
            row, key = divmod(int(strength.argmax()), T)
            labels = result.records[0].query_axis.labels
            row = int((~special).nonzero()[row, 0])
            best[k].append((float(strength.max()), number, (labels[row], labels[key])))
    return [different(one)[:STRONGEST] for one in best]


def different(examples):
    """Return the largest weight of each pair of tokens, the largest first."""
    largest = {}
    for one in sorted(examples, reverse=True):
        largest.setdefault(one[2], one)
    return list(largest.values())


@pytest.mark.long  # of tiny models: test_explored_by_hand.py
def test_the_strongest_examples_are_those_of_a_search(explored, model):
    results = [model.attend(text) for text in TEXTS]
    weights_of = [result.weights().flatten(0, 1) for result in results]
    for k, expected in enumerate(searched(results, weights_of, explored.survey.roles)):
        found = explored.examples[k]
        assert [one.weight for one in found] == pytest.approx([w for w, *_ in expected], abs=1e-5)
        assert len({one.text for one in found}) == len(found)
        for one in found[:2]:
            row = weights_of[one.text][k, one.row]
            assert list(one.weights) == pytest.approx(row.tolist(), abs=1e-5)
            assert one.weight == pytest.approx(float(row[one.key]), abs=1e-5)
            assert len(explored.tokens[str(one.text)]) == len(row)


def test_typical_examples_are_in_order_and_come_again_with_the_seed(explored, decoder, plain):
    for several in explored.deciles:
        weights = [one.weight for one in several]
        assert weights == sorted(weights, reverse=True)
        assert len(weights) == 9
    again = attnviz.explore((text for text in TEXTS[:3]), model=decoder)
    assert again.deciles == plain.deciles
    assert attnviz.explore(TEXTS[:3], model=decoder, seed=1).deciles != plain.deciles


def test_memory_does_not_grow_with_the_texts():
    examples = Examples(["", "own token"], seed=0)
    tokens = type("Tokens", (), {})()
    tokens.real = torch.ones(1, 5, dtype=torch.bool)
    tokens.special = torch.zeros(1, 5, dtype=torch.bool)
    tokens.ids = torch.zeros(1, 5, dtype=torch.long)
    for number in range(300):
        weights = torch.rand(1, 2, 5, 5, generator=torch.Generator().manual_seed(number))
        examples.add(slice(0, 2), [number], weights, tokens)
    assert all(len(kept) == STRONGEST for kept in examples.strongest)
    assert len(examples.texts) <= 2 * (STRONGEST + _SAMPLE)


def test_a_single_token_has_a_plane(model):
    result = attnviz.explore(["mud"], model=model)
    for plane in result.planes:
        assert plane.tokens == ("mud",)
        assert plane.queries.abs().max() == plane.explained == 0  # nothing to tell apart
    head = result.payload()["heads"][0]
    assert head["plane"]["keys"] == [["mud", 0.0, 0.0]]
    assert len(head["deciles"]) <= 1  # its example stands once, not at each decile


def test_heads_are_in_the_order_of_the_survey(explored, decoder):
    names = [one["name"] for one in explored.payload()["heads"]]
    assert (
        names
        == [str(head) for head in explored.survey.heads]
        == [f"{layer}.{head}" for layer in range(6) for head in range(12)]
    )
    assert explored.written == ()
    assert explored.effects is None
    assert "predicts no tokens" in explored.notes[0]
    assert explored.checked_agreement.verdict == "verified"


def test_the_payload_is_json_and_the_result_is_saved(explored, tmp_path):
    payload = json.loads(json.dumps(explored.payload(), allow_nan=False))
    used = {str(one["text"]) for head in payload["heads"] for one in head["examples"]}
    assert used <= payload["texts"].keys()
    explored.save(tmp_path / "heads.safetensors")
    again = attnviz.load_result(tmp_path / "heads.safetensors")
    assert again.examples == explored.examples
    assert again.payload()["heads"] == explored.payload()["heads"]
    assert len(explored.to_frame()) == 72 * len(explored.survey.statistics)
    assert "72 heads on 11 texts" in repr(explored)
    assert "<iframe" in explored.page()._repr_html_()
    with pytest.raises(InputError, match="has no options"):
        attnviz.view(explored, layer=1)


def test_the_command_writes_a_page(tmp_path, capsys):
    corpus, page = tmp_path / "texts.txt", tmp_path / "heads.html"
    corpus.write_text("\n".join(TEXTS[:2]), encoding="utf-8")
    assert run(["explore", str(corpus), "-o", str(page)]) == 0
    assert "What the heads of all-MiniLM-L6-v2 do" in page.read_text("utf-8")
    capsys.readouterr()
    for arguments in (["-"], [str(tmp_path / "none.txt")], [str(corpus), "-o", "heads.png"]):
        other = [] if "-o" in arguments else ["-o", str(tmp_path / "other.html")]
        assert run(["explore", *arguments, *other]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "other.html").exists()


def test_the_first_token_of_a_causal_model_counts_only_for_heads_at_rest(decoder):
    """By hand: heads that put nearly all of their weight on it, and a little on the one before."""
    result = decoder.attend("the bank was full of cash")
    special = torch.tensor(result.records[0].query_axis.special)
    for record in result.records:
        rows, _ = _outputs_of_heads(record)
        weights = record.weights().tril(-1).masked_fill(special, 0)
        weights[..., 0] = 0
        weights[:, special] = -1
        assert rows == weights.amax(-1).argmax(-1).tolist()
    T = 6
    weights = torch.eye(T).roll(-1, 1).tril(-1) * 0.1
    weights[:, 0] = 0.8
    everywhere = torch.ones(1, T, dtype=torch.bool)
    tokens = Positions(torch.arange(T)[None], everywhere, ~everywhere, ~everywhere)
    for role, key in (("", 1), ("rests on the first token", 0)):
        kept = Examples([role], seed=0)
        kept.add(slice(0, 1), [0], weights[None, None], tokens)
        assert (kept.strongest[0][0].key == 0) == (key == 0)
