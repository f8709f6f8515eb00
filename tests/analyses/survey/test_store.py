"""The folder of a survey: stored measurements are reused and protected against corruption."""

import json
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from commands import run
from families import tiny

import attnviz
from attnviz import InputError

EXACT = ("mean", "low", "high", "even", "shuffled", "p_even", "p_shuffled", "count")


def same(one, other):
    for name in EXACT:
        torch.testing.assert_close(
            getattr(one, name), getattr(other, name), rtol=0, atol=0, equal_nan=True
        )
    assert one.roles == other.roles


def rows(folder):
    # As text, because NaN is not equal to itself: a shuffled text may lack such a token.
    found = [tuple(row.values()) for row in pq.read_table(folder / "parts").to_pylist()]
    return sorted((*row[:6], *map(str, row[6:])) for row in found)


@pytest.fixture(scope="module")
def saved(small, tmp_path_factory):
    """Return a folder with the tiny model."""
    folder = tmp_path_factory.mktemp("models") / "small"
    small.module.save_pretrained(folder)
    small.tokenizer.save_pretrained(folder)
    return str(folder)


def test_the_table_has_every_text_once(small, texts, tmp_path):
    census = attnviz.survey(texts[:8], model=small, out=tmp_path / "a")
    table = rows(tmp_path / "a")
    assert len({row[:6] for row in table}) == len(table)
    assert {row[0] for row in table} == set(range(census.texts))
    entropies = [row for row in table if row[5] == "entropy"]
    assert len(entropies) == census.texts * 12
    about = json.loads((tmp_path / "a" / "survey.json").read_text())
    assert about["model"] == small.name
    assert len(about["weights"]) == 64


def test_only_missing_and_damaged_chunks_are_measured_again(
    tmp_path, texts, small, monkeypatch, once
):
    monkeypatch.setattr("attnviz.analyses.survey.corpus.PART", 2)
    whole = attnviz.survey(texts[:10], model=small, out=tmp_path / "a")
    table = rows(tmp_path / "a")
    parts = sorted((tmp_path / "a" / "parts").iterdir())
    assert len(parts) == 5
    before = {part: part.stat().st_mtime_ns for part in parts}
    parts[1].unlink()
    parts[3].write_bytes(parts[3].read_bytes()[:1000])  # as after a full disk
    for part, place in ((parts[0], 0.1), (parts[4], 0.5)):
        damaged = bytearray(part.read_bytes())
        damaged[int(place * len(damaged))] ^= 1
        part.write_bytes(damaged)
    again = attnviz.survey(texts[:10], model=small, out=tmp_path / "a", resume=True)
    same(whole, again)
    assert rows(tmp_path / "a") == table
    assert [part.stat().st_mtime_ns != before[part] for part in parts] == [
        True, True, False, True, True,
    ]  # fmt: skip


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


def test_a_folder_with_another_survey_is_refused(tmp_path, texts, small, tokenizer):
    attnviz.survey(texts[:4], model=small, out=tmp_path / "a")
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*.*")}
    with pytest.raises(InputError, match=r"holds a survey\. Continue it with --resume"):
        attnviz.survey(texts[:4], model=small, out=tmp_path / "a")
    reordered = [*texts[:2], texts[3], texts[2]]
    for other in (texts[4:8], [texts[4], *texts[:3]], reordered):
        with pytest.raises(InputError, match="another corpus: its texts or their tokens differ"):
            attnviz.survey(other, model=small, out=tmp_path / "a", resume=True)
    other = attnviz.load(tiny("bert", torch.float32, seed=1), tokenizer=tokenizer)
    with pytest.raises(InputError, match="holds a survey whose weights is "):
        attnviz.survey(texts[:4], model=other, out=tmp_path / "a", resume=True)
    assert {path: path.read_bytes() for path in before} == before
    (tmp_path / "b" / "parts").mkdir(parents=True)
    (tmp_path / "b" / "parts" / "mine.parquet").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"no valid survey\.json"):
        attnviz.survey(texts[:4], model=small, out=tmp_path / "b")


def test_other_tokens_of_the_same_text_are_another_survey(tmp_path, texts, tokenizer):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    module = tiny("bert", torch.float32)
    attnviz.survey(
        texts[:4],
        model=attnviz.load(module, tokenizer=tmp_path / "tokenizer"),
        out=tmp_path / "out",
    )
    file = tmp_path / "tokenizer" / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["the"], vocabulary["train"] = vocabulary["train"], vocabulary["the"]
    file.write_text(json.dumps(content))
    other = attnviz.load(module, tokenizer=tmp_path / "tokenizer")
    with pytest.raises(InputError, match="is of another corpus: its texts or their tokens differ"):
        attnviz.survey(texts[:4], model=other, out=tmp_path / "out", resume=True)


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
def test_a_full_disk_loses_and_duplicates_nothing(
    tmp_path, texts, saved, monkeypatch, capsys, once
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attnviz.analyses.survey.corpus.PART", 4)
    # The first chunk is smaller than the second: none of its words occurs twice.
    corpus = [*["the cat saw it", "a dog ran"] * 2, *texts[:8]]
    (tmp_path / "corpus.txt").write_text("\n".join(corpus))
    attnviz.survey("corpus.txt", model=saved, out="whole")
    sizes = [path.stat().st_size for path in sorted((tmp_path / "whole" / "parts").iterdir())]
    assert sizes[0] < min(sizes[1:])
    with room(sizes[0]):
        assert run(["survey", "corpus.txt", "-m", saved, "-o", "out"]) == 4
    (error,) = capsys.readouterr().err.splitlines()
    assert "000001.parquet cannot be written: " in error
    assert "File too large" in error
    assert [path.name for path in (tmp_path / "out" / "parts").iterdir()] == ["000000.parquet"]
    attnviz.survey("corpus.txt", model=saved, out="out", resume=True)
    assert rows(tmp_path / "out") == rows(tmp_path / "whole")


def test_old_data_are_overwritten_with_force_only(tmp_path, monkeypatch, texts, saved, once):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("\n".join(texts[:4]))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "survey.safetensors").write_bytes(b"mine")
    assert run(["survey", "corpus.txt", "-m", saved, "-o", "out"]) == 4
    assert (tmp_path / "out" / "survey.safetensors").read_bytes() == b"mine"
    assert run(["survey", "corpus.txt", "-m", saved, "-o", "out", "--force", "--resume"]) == 0


def test_force_replaces_a_survey(tmp_path, texts, small):
    attnviz.survey(texts[:8], model=small, out=tmp_path / "a")
    with pytest.raises(InputError, match="replace it with --force"):
        attnviz.survey(texts[:4], model=small, out=tmp_path / "a")
    fewer = attnviz.survey(texts[:4], model=small, out=tmp_path / "a", force=True)
    assert fewer.texts == 4
    assert {row[0] for row in rows(tmp_path / "a")} == {0, 1, 2, 3}
    with pytest.raises(InputError, match="'previous token' is not a statistic"):
        fewer.of("previous token")
