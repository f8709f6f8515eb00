"""A file appears whole or not at all, and nothing of anybody else's is lost."""

import os
import random
import shutil
import stat
import threading
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image, PngImagePlugin
from safetensors.torch import load_file, save_file

import attnviz
from attnviz.analyses.maps.compute import attention_map
from attnviz.app import run
from attnviz.errors import OutputError
from attnviz.io.files import (
    DATA_SUFFIXES,
    FIGURE_SUFFIXES,
    atomic,
    check_output,
)
from attnviz.io.marks import is_ours

ENDINGS = (*FIGURE_SUFFIXES, ".html", *DATA_SUFFIXES)
TEXT = "the train left the station"


@pytest.fixture(scope="module")
def ours(train, tmp_path_factory):
    """Return a file of every format that attnviz wrote."""
    folder = tmp_path_factory.mktemp("ours")
    for ending in ENDINGS:
        save(train, folder / f"x{ending}")
    return folder


def save(result, path, **how):
    """Write what the ending asks for."""
    if path.suffix in FIGURE_SUFFIXES:
        figure = attnviz.plot.heatmap(result, layer=0, head=0).figure
        attnviz.plot.save(figure, path, **how)
        plt.close(figure)
    elif path.suffix in DATA_SUFFIXES:
        attnviz.save_result(attention_map(result, layer=0, head=0), path, **how)
    else:
        attnviz.view(result).save(path, **how)


# --- whose file it is


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_attnviz_wrote_it_knows_and_writes_again(ours, train, tmp_path, ending):
    path = Path(shutil.copy(ours / f"x{ending}", tmp_path))
    assert is_ours(path)
    save(train, path)
    assert is_ours(path)


def foreign(path):
    """Write a user's own file, which speaks of attnviz wherever the format lets it."""
    figure = plt.figure()
    figure.text(0, 0, "attnviz")
    said = {"Title": "attnviz"}
    array = np.eye(2)
    match path.suffix:
        case ".png":
            text = PngImagePlugin.PngInfo()
            text.add_text("Comment", "Software attnviz")
            Image.new("RGB", (4, 4)).save(path, pnginfo=text)
        case ".svg" | ".pdf":
            figure.savefig(path, metadata=said | {"Creator": "me, not attnviz"})
        case ".html":
            path.write_text(
                '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
                '<meta name="description" content="attnviz"><p>attnviz'
            )
        case ".json":
            path.write_text('{"attnviz": "0.1.0", "tool": {"generator": "attnviz"}}')
        case ".npz":
            np.savez(path, attnviz=array, about=np.array("attnviz"))
        case ".safetensors":
            save_file({"attnviz": torch.eye(2)}, path, metadata={"about": "attnviz"})
        case ".parquet":
            table = pa.table({"generator": ["attnviz"]})
            pq.write_table(table.replace_schema_metadata({"about": "attnviz"}), path)
    plt.close(figure)


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_another_wrote_is_kept_unless_force_is_said(train, tmp_path, ending):
    path = tmp_path / f"x{ending}"
    foreign(path)
    before = path.read_bytes()
    with pytest.raises(OutputError, match=r"not written by attnviz.*--force, in Python force=True"):
        save(train, path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    save(train, path, force=True)
    assert is_ours(path)


def test_what_was_saved_again_by_another_program_is_no_longer_ours(ours, tmp_path):
    Image.open(ours / "x.png").save(tmp_path / "x.png")
    with np.load(ours / "x.npz") as arrays:
        np.savez(tmp_path / "x.npz", **arrays)
    save_file(load_file(ours / "x.safetensors"), tmp_path / "x.safetensors")
    assert not [path for path in tmp_path.iterdir() if is_ours(path)]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_mark_is_sought_in_anything_without_an_error(ours, tmp_path, ending):
    whole, path = (ours / f"x{ending}").read_bytes(), tmp_path / f"x{ending}"
    chance = random.Random(0)
    pieces = [whole[: chance.randrange(len(whole))] for _ in range(20)]
    pieces += [whole[chance.randrange(1, len(whole)) :] for _ in range(20)]
    pieces += [chance.randbytes(chance.randrange(300)) for _ in range(20)]
    pieces += [b"\xff" * 8 + whole, b"[" * 100_000, b'{"__metadata__":"attnviz"}']
    pieces += [(2**62).to_bytes(8, "little") + b"{}", b"\xff\xff\xff\x7fPAR1"]
    for piece in pieces:
        path.write_bytes(piece)
        assert is_ours(path) in (True, False)
    path.write_bytes(bytes(30) + b"\x07\0attnviz")  # ends as a .npz of ours
    assert not is_ours(path)
    assert not is_ours(tmp_path / f"none{ending}")


def test_of_an_empty_file_nothing_is_lost_and_a_read_only_one_is_left(train, tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.touch()
    save(train, path)
    assert is_ours(path)
    path.chmod(0o400)
    if os.geteuid() == 0:  # root may write everywhere
        monkeypatch.setattr(os, "access", lambda at, mode: at != path)
    with pytest.raises(OutputError, match=r"it is read-only\. Name another file"):
        save(train, path)
    save(train, path, force=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o400


@pytest.mark.parametrize("target", ["data.json", "plain"])
def test_the_ending_of_a_link_chooses_the_format_not_that_of_what_it_points_to(
    train, tmp_path, target
):
    link = tmp_path / "x.png"
    link.symlink_to(target)
    for _ in range(2):  # the second time it is ours
        save(train, link)
        assert (tmp_path / target).read_bytes().startswith(b"\x89PNG")
    assert link.is_symlink()


def test_a_whole_result_gives_way_to_nothing_but_another(train, tmp_path):
    path = tmp_path / "x.safetensors"
    attnviz.save_result(train, path)
    with pytest.raises(OutputError, match=r"a whole result is kept there.*Name another file"):
        save(train, path)
    attnviz.save_result(train, path)
    assert isinstance(attnviz.load_result(path), attnviz.AttentionResult)
    save(train, path, force=True)
    attnviz.save_result(train, path)  # a map does give way


def test_a_file_that_came_while_the_model_ran_is_kept(train, tmp_path):
    path = check_output(tmp_path / "x.json")
    path.write_text("meanwhile")
    with pytest.raises(OutputError, match="not written by attnviz"):
        save(train, path)
    assert path.read_text() == "meanwhile"


WRITING = {
    "heatmap": ["heatmap", TEXT],
    "heads": ["heads", TEXT],
    "steps": ["steps", TEXT],
    "view": ["view", TEXT],
    "senses": ["senses", "bank"],
    "shift": ["shift", "bank", "the bank was full of mud"],
    "example": ["example", "cat"],
}


@pytest.mark.parametrize("arguments", WRITING.values(), ids=WRITING)
def test_every_command_keeps_what_is_not_ours_before_it_loads_a_model(
    capsys, monkeypatch, tmp_path, arguments
):
    monkeypatch.setattr(
        "attnviz.pipeline.attend.load", lambda *a, **k: pytest.fail("a model was loaded")
    )
    path = tmp_path / ("x.html" if arguments[0] == "view" else "x.png")
    path.write_text("mine")
    assert run([*arguments, "-o", str(path)]) == 4
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--force" in err
    assert path.read_text() == "mine"


def test_a_command_overwrites_where_it_is_told_to(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("mine")
    assert run(["example", "cat", "-o", str(path), "--force"]) == 0
    assert is_ours(path)
    assert run(["example", "cat", "-o", str(path)]) == 0


# --- how it is written


def test_a_file_is_private_until_it_is_whole_and_keeps_its_permissions(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda h: (synced.append(os.fstat(h).st_mode), fsync(h)))
    path = tmp_path / "x.json"
    path.touch()
    path.chmod(0o604)
    with atomic(path) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".")
        assert temporary.suffix not in ENDINGS
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    assert [stat.S_ISREG(synced[0]), stat.S_ISDIR(synced[1])] == [True, True]


def test_threads_that_write_at_once_leave_whole_files_and_the_umask(tmp_path, monkeypatch):
    mask = os.umask(0o027)
    at_once = os.umask
    # Slow enough for one thread to come between the two calls of another.
    monkeypatch.setattr(os, "umask", lambda new: (at_once(new), time.sleep(0.001))[0])
    try:

        def write(number):
            for turn in range(20):
                path = tmp_path / f"{turn}.json"
                with atomic(path) as temporary:
                    temporary.write_text(str(number) * 50_000)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(mask)
    assert {path.name for path in tmp_path.iterdir()} == {f"{turn}.json" for turn in range(20)}
    for path in tmp_path.iterdir():
        text = path.read_text()
        assert text == text[0] * 50_000
        assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_only_what_a_killed_run_left_long_ago_is_removed(tmp_path):
    old = time.time() - 2 * 24 * 60 * 60
    for name in (
        ".attnviz-0123456789abcdef.tmp",
        ".attnviz-notes.tmp",
        ".attnviz-0123456789abcdef.png",
    ):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (old, old))
    (tmp_path / ".attnviz-fedcba9876543210.tmp").write_text("another process writes this")
    with atomic(tmp_path / "x.json") as temporary:
        temporary.write_text("{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".attnviz-0123456789abcdef.png",
        ".attnviz-fedcba9876543210.tmp",
        ".attnviz-notes.tmp",
        "x.json",
    ]
