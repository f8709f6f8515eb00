"""List installed architectures without importing them, and join the results of the last check."""

import sys
from collections import Counter
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import transformers

import attnviz
from attnviz import InputError
from attnviz.models import architectures as catalogue
from attnviz.results.projection import STAGES

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))


def test_names_read_from_the_source_match_transformers():
    assert catalogue.installed() == set(transformers.CONFIG_MAPPING)


def test_transformers_is_imported_if_its_source_has_another_form(monkeypatch):
    monkeypatch.setattr(catalogue, "_CONFIG_CLASS", "nothing that it says")
    assert catalogue.installed.__wrapped__() == set(transformers.CONFIG_MAPPING)


def test_nearly_all_architectures_agree_and_each_exception_has_a_reason():
    checked = catalogue.last_check().architectures.values()
    agreeing = [one for one in checked if one.state == "agrees"]
    assert len(agreeing) >= 465
    for one in checked:
        assert one.state in catalogue.STATES
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


def test_parts_are_listed_only_where_they_are_named():
    names = {one.name for one in attnviz.architectures()}
    assert "sam2" in names
    assert "sam2_vision_model" not in names
    (part,) = attnviz.architectures("sam2_vision_model")
    assert (part.state, part.reason) == ("part", "checked with sam2")
    assert part in attnviz.architectures(state="part")


def test_several_parts_of_names_are_searched_for():
    found = {one.name for one in attnviz.architectures(["BLOOM", "mamba"])}
    assert {"bloom", "mamba", "mamba2"} <= found
    assert all("bloom" in name or "mamba" in name for name in found)
    assert {one.name for one in attnviz.architectures("mamba", state="agrees")} < found


def test_a_model_newer_than_the_check_is_not_checked(monkeypatch):
    monkeypatch.setattr(catalogue, "installed", lambda: frozenset({"bert", "brandnew"}))
    found = attnviz.architectures()
    assert [(one.name, one.state) for one in found] == [
        ("bert", "agrees"),
        ("brandnew", "not checked"),
    ]
    assert catalogue.summary(found).startswith(
        "1 of 1 architectures with attention agree, 1 not checked; checked with "
    )


def test_errors_are_reported():
    with pytest.raises(InputError, match=r"has no model 'brt'\. Did you mean bert"):
        attnviz.architectures("brt")
    with pytest.raises(InputError, match=r"'good' is not a state: choose one of agrees, differs"):
        attnviz.architectures(state="good")
    with pytest.raises(FrozenInstanceError):
        attnviz.architectures("bert")[0].name = "other"


def test_the_docs_page_matches_the_package_data():
    from architectures.results import COLUMNS

    page = (ROOT / "gallery" / "architectures.md").read_text(encoding="utf-8")
    checked = catalogue.last_check().architectures
    assert [f"| `{name}` |" in page for name in checked] == [True] * len(checked)
    assert catalogue.summary(checked.values()) in page
    assert set(COLUMNS) == set(vars(checked["bert"]))


def test_the_readme_counts_what_the_table_counts():
    checked = catalogue.last_check().architectures.values()
    states = Counter(one.state for one in checked)
    used = Counter(one.use["float32"] for one in checked if "float32" in one.use)
    of = sum(used.values()) - used["no attention"] - used["not run"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    captured = f"{states['agrees']} of the {sum(states[one] for one in catalogue.STATES[:4])}"
    assert f"{captured} architectures of transformers with attention agree" in readme
    assert f"{used['verified']} of {of} are verified](gallery/architectures.md)" in readme
    assert f"{used['not proven']} not proven" in readme
    assert not used["failed"] + used["refused"] + used["crash"]
