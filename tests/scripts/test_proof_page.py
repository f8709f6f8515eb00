"""The page of planted faults is what its script makes, checked on a small selection."""

import re
from pathlib import Path

import pytest
from planted import formula, honest, models
from planted.cases import Case, append, read
from planted.page import page
from planted.rules import RULES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "gallery" / "guides" / "proof.md").read_text(encoding="utf-8")
FORMULA = frozenset({"scale_one_percent_off", "two_heads_swapped"})
REPLACED = "registered attention replaced by eager"
MODEL = frozenset({"query twice", "labels shifted by one", REPLACED})


@pytest.fixture(scope="module")
def results():
    """The results of a few faults in one model, in two dtypes."""
    of_formula = {
        Case("formula", "bert", dtype): formula.run("bert", dtype, FORMULA)
        for dtype in ("float32", "bfloat16")
    }
    return of_formula | {Case("model", "bert", "bfloat16"): models.run("bert", "bfloat16", MODEL)}


def rows(text, first):
    """Return the cells of all table rows that start with `first`."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in lines if cells[0].strip() == first]


def test_attnviz_catches_the_faults_and_raises_no_alarm(results):
    for result in results.values():
        assert all(not alarms["attnviz"] for alarms in result["unplanted"])
        for row in result["planted"]:
            assert row["attnviz"] == "caught", row


def test_the_other_rules_judge_the_same_numbers(results):
    planted = {
        (row["fault"], row["text"]): row for row in results["formula", "bert", "float32"]["planted"]
    }
    assert planted["scale one percent off", 0]["cosine ≥ .9999"] == "missed"
    assert planted["two heads swapped", 0]["cosine ≥ .9999"] == "caught"
    rejected = results["formula", "bert", "bfloat16"]["unplanted"][0]
    assert rejected["assert_close"] > rejected["attnviz"] == 0


def test_the_page_has_the_sections_and_tables_of_the_script(results):
    made = page(results)
    headings = [line for line in PAGE.splitlines() if line.startswith("#")]
    assert [line for line in made.splitlines() if line.startswith("#")] == headings
    assert rows(made, "rule") == rows(PAGE, "rule")
    start = made.index("\n## Summary")
    assert made[:start].split("with torch")[0] == PAGE[:start].split("with torch")[0]


def test_the_page_counts_all_that_is_planted():
    heads, *_ = rows(PAGE, "rule")
    assert heads[2:6] == ["planted", "caught", "missed", "says nothing"]
    totals = {tuple(row[2] for row in rows(PAGE, rule)[:3]) for rule in RULES}
    assert len(totals) == 1  # all rules judge the same
    for rule in RULES:
        for row in rows(PAGE, rule)[:3]:
            planted, *outcomes = (int(cell.replace(",", "")) for cell in row[2:6])
            assert sum(outcomes) == planted
            assert re.fullmatch(r"[\d,]+ of [\d,]+ \(.* %\)", row[6])


def test_a_batch_of_sentences_is_the_same_every_time():
    assert honest.batch("minilm", 3) == honest.batch("minilm", 3) != honest.batch("minilm", 4)
    assert len(honest.sentences()) > 300


def test_results_are_stored_by_case(tmp_path):
    file = tmp_path / "results.jsonl"
    case = Case("formula", "bert", "float32")
    append(file, case, {"planted": [], "unplanted": []})
    with file.open("a") as out:
        out.write('["formula", "gpt2", "fl')  # a run that was killed
    assert read(file) == {case: {"planted": [], "unplanted": []}}
