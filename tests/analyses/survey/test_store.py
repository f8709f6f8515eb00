"""The folder of a survey: its files are whole, and of one survey."""

import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from commands import run

import attnviz
from attnviz import InputError, OutputError
from attnviz.analyses.survey.measure import HeadStatistics

EXACT = ("mean", "low", "high", "even", "shuffled", "p_even", "p_shuffled", "count")


def same(one, other):
    for name in EXACT:
        torch.testing.assert_close(
            getattr(one, name), getattr(other, name), rtol=0, atol=0, equal_nan=True
        )
    assert one.roles == other.roles


def rows(folder):
    # As text, because NaN is not equal to itself: a shuffled text may lack such a token.
    found = [tuple(row.values()) for row in pq.read_table(folder / "texts.parquet").to_pylist()]
    return sorted((*row[:6], *map(str, row[6:])) for row in found)


@pytest.fixture(scope="module")
def saved(small, tmp_path_factory):
    """Return a folder with the tiny model."""
    folder = tmp_path_factory.mktemp("models") / "small"
    small.module.save_pretrained(folder)
    small.tokenizer.save_pretrained(folder)
    return str(folder)


def test_the_table_has_every_text_once(small, texts, tmp_path, monkeypatch):
    monkeypatch.setattr("attnviz.analyses.survey.corpus.PART", 3)
    census = attnviz.survey(texts[:8], model=small, out=tmp_path / "a")
    table = rows(tmp_path / "a")
    assert len({row[:6] for row in table}) == len(table)
    assert {row[0] for row in table} == set(range(census.texts))
    entropies = [row for row in table if row[5] == "entropy"]
    assert len(entropies) == census.texts * 12
    schema = pq.read_schema(tmp_path / "a" / "texts.parquet")
    assert schema.names == [
        "sentence", "tokens", "stack", "layer", "head", "statistic",
        "value", "even", "shuffled", "shuffled_keys",
    ]  # fmt: skip
    files = {path.name for path in (tmp_path / "a").iterdir()}
    assert files == {"texts.parquet", "summary.parquet", "survey.safetensors"}


def test_a_part_is_written_before_the_next_is_measured(small, texts, tmp_path, monkeypatch, once):
    monkeypatch.setattr("attnviz.analyses.survey.corpus.PART", 4)
    sizes, measure = [], HeadStatistics.measure

    def measured(heads, some):
        sizes.append(sum(path.stat().st_size for path in (tmp_path / "a").iterdir()))
        return measure(heads, some)

    monkeypatch.setattr(HeadStatistics, "measure", measured)
    attnviz.survey(texts[:12], model=small, out=tmp_path / "a")
    assert len(sizes) == 3
    assert sizes == sorted(set(sizes))


def test_a_survey_in_memory_equals_one_in_a_folder(tmp_path, texts, small, monkeypatch, once):
    monkeypatch.setattr("attnviz.analyses.survey.corpus.PART", 4)
    corpus = [*texts[:8], ".", "one"]  # a text without most statistics, and a single word
    same(
        attnviz.survey(corpus, model=small),
        attnviz.survey(corpus, model=small, out=tmp_path / "a"),
    )


def test_only_folders_and_parquet_need_pyarrow(tmp_path, small, monkeypatch, once):
    package = Path(attnviz.__file__).parent
    imported_at_once = re.compile("^(import|from) pyarrow", re.MULTILINE)
    needing = [at.name for at in package.rglob("*.py") if imported_at_once.search(at.read_text())]
    assert needing == ["store.py"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "attnviz.analyses.survey.store", raising=False)
    monkeypatch.setattr("attnviz.errors.find_spec", lambda _: None)
    assert attnviz.survey(["one two", "three four"], model=small).texts == 2
    corpus = tmp_path / "corpus.parquet"
    corpus.write_bytes(b"PAR1")
    for texts, more in ((["one two"], {"out": tmp_path / "folder"}), (corpus, {})):
        with pytest.raises(InputError, match="pip install 'attnviz\\[survey\\]'"):
            attnviz.survey(texts, model=small, **more)
    assert [*tmp_path.iterdir()] == [corpus]


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["measure.HeadStatistics.measure", "compute.save_result"])
def test_an_interrupted_survey_writes_and_replaces_nothing(
    step, tmp_path, texts, small, monkeypatch, once
):
    attnviz.survey(texts[:4], model=small, out=tmp_path / "a")
    before = {path: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(f"attnviz.analyses.survey.{step}", interrupted)
        for name in ("a", "b"):
            with pytest.raises(KeyboardInterrupt):
                attnviz.survey(texts[:8], model=small, out=tmp_path / name, force=name == "a")
    assert {path: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before
    assert [*(tmp_path / "b").iterdir()] == []


@contextmanager
def room(size):
    """Let no file become larger."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of POSIX")
def test_a_full_disk_leaves_nothing_half_written(tmp_path, texts, saved, monkeypatch, capsys, once):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("\n".join(texts[:8]))
    with room(2000):
        assert run(["survey", "corpus.txt", "-m", saved, "-o", "out"]) == 4
    (error,) = capsys.readouterr().err.splitlines()
    assert "texts.parquet cannot be written: " in error
    assert "File too large" in error
    assert [*(tmp_path / "out").iterdir()] == []


@pytest.mark.parametrize("name", ["texts.parquet", "summary.parquet", "survey.safetensors"])
def test_old_data_are_overwritten_with_force_only(name, tmp_path, monkeypatch, texts, small):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_bytes(b"mine")
    with pytest.raises(OutputError, match=f"{name} exists, and data are not overwritten"):
        attnviz.survey(["a corpus", 3], model="no model", out="~/out")
    assert (tmp_path / "out" / name).read_bytes() == b"mine"
    attnviz.survey(texts[:2], model=small, out="~/out", force=True)
    assert len({row[0] for row in rows(tmp_path / "out")}) == 2


def test_force_replaces_a_survey(tmp_path, texts, saved, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("\n".join(texts[:4]))
    attnviz.survey(texts[:8], model=saved, out="out")
    assert run(["survey", "corpus.txt", "-m", saved, "-o", "out"]) == 4
    assert run(["survey", "corpus.txt", "-m", saved, "-o", "out", "--force"]) == 0
    fewer = attnviz.load_result("out/survey.safetensors", attnviz.SurveyResult)
    assert fewer.texts == 4
    assert {row[0] for row in rows(tmp_path / "out")} == {0, 1, 2, 3}
    with pytest.raises(InputError, match="'previous token' is not a statistic"):
        fewer.of("previous token")
