"""The benchmark of attribution in decoders: its frozen texts, its scores, and separate draws."""

import json
from collections import Counter
from pathlib import Path

import next_token_prompts
import pytest
import torch
from faithfulness import decoders

ROOT = Path(__file__).parents[2]


def test_the_frozen_prompts_are_well_formed():
    content = json.loads(decoders.PROMPTS.read_text("utf-8"))
    prompts = content["prompts"]
    assert len(prompts) >= 60
    assert "no attribution is computed" in content["how"]
    assert len({entry["prompt"] for entry in prompts}) == len(prompts)
    assert set(Counter(entry["category"] for entry in prompts)) == set(
        next_token_prompts.CANDIDATES
    )
    candidates = list(next_token_prompts.candidates())
    for entry in prompts:
        assert entry["target"] != entry["against"]
        assert 6 <= len(entry["prompt"].split()) <= 13
        assert entry["logit_difference"] > next_token_prompts.MARGIN
        assert {key: entry[key] for key in candidates[0]} in candidates


def test_the_frozen_sentences_are_new():
    sentences = json.loads(decoders.SENTENCES.read_text("utf-8"))["sentences"]
    assert len(set(sentences)) == len(sentences) >= 16
    assert "He walked to the river and sat down on the bank" not in sentences
    older = (ROOT / "tests" / "data" / "sense_sentences.json").read_text("utf-8")
    assert not any(sentence in older for sentence in sentences)


def planted(sign):
    texts = []
    for seed in range(5):
        truth = torch.randn(7, generator=torch.Generator().manual_seed(seed)).double()
        effects = dict.fromkeys([*decoders.TRUTHS, "consensus"], truth)
        texts.append(decoders.Judged({"planted": sign * truth}, effects, {}, 0.0))
    return texts


@pytest.mark.parametrize("sign", [1, -1])
def test_a_perfect_method_scores_1_and_a_reversed_one_minus_1(sign):
    texts = planted(sign)
    assert decoders.correlations(texts, "planted") == pytest.approx([sign] * 5)
    assert decoders.top_agreement(texts, "planted") == (sign == 1)


def test_a_method_that_reads_the_words_of_the_truth_is_refused():
    embedding = torch.nn.Embedding(10, 2)
    module = torch.nn.Module()
    module.get_input_embeddings = lambda: embedding
    with decoders.tokens_read(module) as tokens:
        embedding(torch.tensor([[1, 2, 7]]))
    embedding(torch.tensor([[9]]))  # after the methods ran
    assert tokens == {1, 2, 7}
    decoders.expect_separate(tokens - {1, 2}, [3, 9])
    with pytest.raises(ValueError, match=r"share the replacements \[7\]"):
        decoders.expect_separate(tokens - {1, 2}, [3, 7])


def test_an_interrupted_run_goes_on_from_its_store(tmp_path, monkeypatch):
    prompts, store, runs = tmp_path / "prompts.json", tmp_path / "store.jsonl", []
    entries = [{"prompt": name} for name in ("first", "short", "third")]
    prompts.write_text(json.dumps({"prompts": entries}), "utf-8")

    def evaluate_text(_, entry, __):
        runs.append(entry["prompt"])
        if runs == ["first", "short", "third"]:
            raise KeyboardInterrupt
        return None if entry["prompt"] == "short" else planted(len(entry["prompt"]))[0]

    monkeypatch.setattr(decoders.attnviz, "load", lambda _: None)
    monkeypatch.setattr(decoders, "next_token", evaluate_text)
    with pytest.raises(KeyboardInterrupt):
        decoders.evaluate("next-token", prompts, store=store)
    judged = decoders.evaluate("next-token", prompts, store=store)
    assert runs == ["first", "short", "third", "third"]
    assert len(judged) == 2
    again = decoders.evaluate("next-token", prompts, store=store)
    for one, other in zip(judged, again, strict=True):
        assert torch.equal(one.attributions["planted"], other.attributions["planted"])
        assert decoders.correlations([one], "planted") == decoders.correlations([other], "planted")
