"""List installed architectures without importing them, and join the results of the last check."""

import sys
from collections import Counter
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import transformers
from families import STAGES

import attnviz
from attnviz import InputError

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))


def test_names_read_from_the_source_match_transformers():
    listed = (*attnviz.architectures(), *attnviz.architectures(state="part"))
    assert {one.name for one in listed} == set(transformers.CONFIG_MAPPING)


def test_nearly_all_architectures_agree_and_each_exception_has_a_reason():
    checked = attnviz.architectures()
    agreeing = [one for one in checked if one.state == "agrees"]
    assert len(agreeing) >= 465
    for one in checked:
        assert set(one.stages) <= set(STAGES)
        assert bool(one.reason) or one.state in ("agrees", "no attention", "differs")
    for one in agreeing:
        assert one.difference <= 1e-5
        if one.attentions:
            assert {"scores", "weights"} <= set(one.stages)
            assert one.reached in ("interface", "operators", "both")
        else:
            assert one.linear > 0
            assert {"weights", "head output"} <= set(one.stages)
            assert one.reached == "functions"
    assert sum(one.linear > 0 for one in agreeing) >= 26


def test_a_model_newer_than_the_check_is_not_checked(monkeypatch):
    known = frozenset({"bert", "brandnew"})
    monkeypatch.setattr("attnviz.models.installed", lambda: known)
    found = [(one.name, one.state) for one in attnviz.architectures()]
    assert found == [("bert", "agrees"), ("brandnew", "not checked")]


def test_parts_are_listed_only_where_they_are_named():
    names = {one.name for one in attnviz.architectures()}
    assert "sam2" in names
    assert "sam2_vision_model" not in names
    (part,) = attnviz.architectures("sam2_vision_model")
    assert (part.state, part.reason) == ("part", "checked with sam2")
    assert part in attnviz.architectures(state="part")


def test_errors_are_reported():
    with pytest.raises(InputError, match=r"has no model 'brt'\. Did you mean bert"):
        attnviz.architectures("brt")
    with pytest.raises(InputError, match=r"'good' is not a state: choose one of agrees, differs"):
        attnviz.architectures(state="good")
    with pytest.raises(FrozenInstanceError):
        attnviz.architectures("bert")[0].name = "other"


def test_the_page_and_the_readme_count_what_the_table_counts():
    from architectures.results import COLUMNS

    page, readme = (
        " ".join((ROOT / name).read_text(encoding="utf-8").split())
        for name in ("gallery/architectures.md", "README.md")
    )
    checked = [one for one in attnviz.architectures() if one.state != "not checked"]
    assert [f"| `{one.name}` |" in page for one in checked] == [True] * len(checked)
    assert set(COLUMNS) == set(vars(checked[0]))
    states = Counter(one.state for one in checked)
    used = Counter(one.use["float32"] for one in checked if "float32" in one.use)
    with_attention = sum(states[one] for one in ("agrees", "differs", "not read", "random"))
    captured = f"{states['agrees']} of {with_attention} architectures"
    assert f"{captured} with attention agree" in page
    captured = captured.replace(" of ", " of the ")
    assert f"{captured} of transformers with attention agree" in readme
    of = sum(used.values()) - used["no attention"] - used["not run"]
    assert f"{used['verified']} of {of} are verified](gallery/architectures.md)" in readme
    assert f"{used['not proven']} not proven" in readme
    assert not used["failed"] + used["refused"] + used["crash"]
