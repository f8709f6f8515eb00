"""Files are written atomically, and no foreign file is lost."""

import json
import os
import stat
import threading
from dataclasses import replace

import matplotlib.pyplot as plt
import pytest

import attnviz
from attnviz import OutputError, attention_map

FIGURES = (".png", ".svg", ".pdf")
DATA = (".json", ".npz", ".safetensors", ".parquet")
ENDINGS = (*FIGURES, ".html", *DATA)


def save(result, path, **how):
    """Save a result in the format of the file extension."""
    if path.suffix in FIGURES:
        figure = attnviz.plot.heatmap(result, layer=0, head=0).figure
        attnviz.plot.save(figure, path, **how)
        plt.close(figure)
    elif path.suffix in DATA:
        attnviz.save_result(attention_map(result, layer=0, head=0), path, **how)
    else:
        attnviz.view(result).save(path, **how)


# --- existing files


@pytest.mark.parametrize("ending", ENDINGS)
def test_figures_and_pages_are_overwritten_and_data_with_force(train, tmp_path, ending):
    path = tmp_path / f"x{ending}"
    path.write_text("old")
    if ending in DATA:
        with pytest.raises(OutputError, match=r"--force, in Python force=True"):
            save(train, path)
        assert path.read_text() == "old"
        save(train, path, force=True)
    else:
        save(train, path)
    assert path.read_bytes() != b"old"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_empty_files_are_replaced_and_read_only_files_stay(train, tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.touch()
    save(train, path)
    assert path.stat().st_size
    path.chmod(0o400)
    if os.geteuid() == 0:  # root may write anywhere
        monkeypatch.setattr(os, "access", lambda at, mode: at != path)
    with pytest.raises(OutputError, match=r"is read-only\. Name another file"):
        save(train, path)
    save(train, path, force=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o400


@pytest.mark.parametrize("target", ["data.json", "plain"])
def test_the_extension_of_a_link_selects_the_format_not_that_of_its_target(train, tmp_path, target):
    link = tmp_path / "x.png"
    link.symlink_to(target)
    for _ in range(2):  # the second time, the file is from attnviz
        save(train, link)
        assert (tmp_path / target).read_bytes().startswith(b"\x89PNG")
    assert link.is_symlink()


# --- writing


def test_a_file_keeps_its_permissions_and_is_never_more_readable(train, tmp_path, monkeypatch):
    written = []
    fsync = os.fsync

    def watched(handle):
        files = [*tmp_path.glob(".*")]
        written.extend((file.suffix, os.fstat(handle).st_mode) for file in files)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    path = tmp_path / "x.json"
    path.touch()
    path.chmod(0o604)
    save(train, path)
    (suffix, mode), *_ = written
    assert suffix not in ENDINGS
    assert (stat.S_ISREG(mode), stat.S_IMODE(mode)) == (True, 0o604)
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_concurrent_writes_leave_complete_files_and_the_umask(train, tmp_path):
    drawn = attention_map(train, layer=0, head=0)
    mask = os.umask(0o027)
    try:

        def write(number):
            for turn in range(20):
                path = tmp_path / f"{turn}.json"
                attnviz.save_result(replace(drawn, layer=number), path, force=True)

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
        assert json.loads(path.read_text())["layer"] in range(6)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
