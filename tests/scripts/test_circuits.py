"""The compiled circuits: their known heads do the work, and a head that is moved is noticed."""

from dataclasses import replace

import pytest
import torch
from faithfulness import circuits, programs

import attnviz

CASES = {(case.name, case.family): case for case in programs.CASES}


def built(name, family):
    case = CASES[name, family]
    compiled, write = circuits.build(case)
    return case, compiled, write(16)


def test_the_cases_are_many_and_differ():
    assert len(programs.CASES) >= 20
    assert len({case.name for case in programs.CASES}) >= 8
    assert {case.family for case in programs.CASES} == {"gpt2", "llama", "bert-mask", "bert-class"}
    assert len({case.options["seed"] for case in programs.CASES}) == len(programs.CASES)


@pytest.mark.parametrize(
    "place", [("chain of two", "gpt2"), ("lookup", "llama"), ("comparison", "bert-class")]
)
def test_the_known_heads_do_the_work_and_ablate_names_them(place):
    case, compiled, texts = built(*place)
    circuits.expect_circuit(circuits.Truth(compiled, texts).measure(), case)
    lost = attnviz.ablate([str(text) for text in texts[:4]], model=compiled.model)
    assert lost.agreement.verdict == "verified"
    judged = {
        "heads": {"ablate": lost.mean.abs().tolist()},
        "size": compiled.size,
        "known": compiled.known,
    }
    assert circuits.of_heads(judged, "ablate") == (1.0, True)
    judged["known"] = [compiled.decoy, *compiled.known[1:]]
    assert circuits.of_heads(judged, "ablate")[1] is False


def test_a_head_that_was_moved_is_noticed():
    case, compiled, texts = built("induction", "gpt2")
    (layer, known), (_, decoy), heads = compiled.known[-1], compiled.decoy, compiled.size[1]
    attention = compiled.model.module.transformer.h[layer].attn
    order = list(range(heads))
    order[known], order[decoy] = decoy, known
    with torch.no_grad():
        for weight, dim in ((attention.c_attn.weight, 1), (attention.c_proj.weight, 0)):
            by_head = weight.unflatten(dim, (-1, heads, attention.head_dim))
            weight.copy_(by_head.index_select(dim + 1, torch.tensor(order)).flatten(dim, dim + 2))
    truth = circuits.Truth(compiled, texts)
    with pytest.raises(AssertionError, match="induction in gpt2 is not what it should be"):
        circuits.expect_circuit(truth.measure(), case)
    moved = replace(compiled, known=[compiled.known[0], compiled.decoy])
    circuits.expect_circuit(circuits.Truth(moved, texts).measure(), case)
    lost = attnviz.ablate([str(text) for text in texts[:4]], model=compiled.model)
    assert {lost.sets[n][0] for n in lost.strongest[:2]} == {*moved.known}


def test_a_text_without_any_contribution_is_not_condemned():
    """All that counts is in the first token, so the contributions are rounding, as their sum is."""
    _, compiled, texts = built("first word, no start", "gpt2")
    for text in texts[:3]:
        why = attnviz.explain(str(text), model=compiled.model)
        assert why.target == text.answer
        assert why.decomposition.credit.abs().sum() < 1e-3
        assert why.agreement.verdict == "verified"
        # The first word, the sink, is the source, and is not changed.
        assert why.headline.startswith(f"No word after “{text.answer}” alone changes")


def test_a_word_counts_only_where_it_is_first():
    text = {"words": [0, 1, 2], "sources": [1], "scores": {"right": [0, 2, 1], "wrong": [3, 2, 1]}}
    judged = {"words": [text]}
    assert circuits.of_words(judged, "right") == 1
    assert circuits.of_words(judged, "wrong") == 0
    assert circuits.chance_of_words(judged) == pytest.approx(1 / 3)


def test_an_interrupted_run_goes_on_from_its_store(tmp_path, monkeypatch):
    store, runs = tmp_path / "store.jsonl", []

    def judge(case):
        runs.append(case.name)
        if len(runs) == 2:
            raise KeyboardInterrupt
        return {"case": case.name, "family": case.family, "seed": case.options["seed"]}

    monkeypatch.setattr(circuits, "judge", judge)
    cases = [programs.CASES[0], programs.CASES[3]]
    with pytest.raises(KeyboardInterrupt):
        circuits.evaluate(cases, store=store)
    judged = circuits.evaluate(cases, store=store)
    assert runs == [cases[0].name, cases[1].name, cases[1].name]
    assert [one["case"] for one in judged] == [case.name for case in cases]
