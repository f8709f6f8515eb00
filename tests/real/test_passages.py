"""The passage with the fact is found in a prompt of a real model."""

import json

import pytest
from commands import run

import attnviz

pytestmark = pytest.mark.real
PASSAGES = (
    "The Danube is the second-longest river in Europe. It flows through ten countries.",
    "Maria Kovacs was born in Szeged. She works in Vienna as a baker.",
    "Copper melts at 1085 degrees.",
)
QUESTION = "Question: What is the job of Maria Kovacs?\nAnswer: Maria Kovacs is a"
PROMPT = "\n\n".join([*PASSAGES, QUESTION])


def test_the_passage_with_the_fact_is_named(smollm2, tmp_path):
    why = attnviz.explain(PROMPT, groups="passage", generate=2, model=smollm2)
    assert why.answer[0].startswith("baker")
    assert why.headline.startswith("Passage 2 raises the answer “baker")
    assert why.by_answer[0].nan_to_num().argmax() == 1
    assert "Hiding passage 2 lowers it by" in why.finding
    (tmp_path / "prompt.txt").write_text(PROMPT)
    options = "--group", "passage", "--generate", "2", "--model", "smollm2"
    path = tmp_path / "why.json"
    run(["explain", "--file", str(tmp_path / "prompt.txt"), *options, "--output", str(path)])
    assert json.loads(path.read_text())["headline"] == why.headline
