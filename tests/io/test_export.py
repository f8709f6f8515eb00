"""Data formats round-trip, and files are written atomically."""

import json
import math
import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import attnviz
from attnviz.analyses.maps.compute import attention_map, head_maps
from attnviz.errors import InputError, OutputError
from attnviz.io.export import save_result, to_data, to_json
from attnviz.io.files import atomic, check_output


@pytest.fixture(scope="module")
def drawn(train):
    return attention_map(train, layer=2, head=[3, 5], special="remove", notes=["why “this” head"])


@pytest.fixture(scope="module")
def maps(train):
    return head_maps(train)


def names_in(folder):
    return [path.name for path in folder.iterdir()]


def from_json(path):
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data.pop("generator") == "attnviz"
    return torch.tensor(data.pop("weights")), data


def from_npz(path):
    with np.load(path, allow_pickle=False) as arrays:
        rows, columns = arrays["rows"].tolist(), arrays["columns"].tolist()
        about = json.loads(str(arrays["about"]))
        return torch.tensor(arrays["weights"]), {"rows": rows, "columns": columns, **about}


def from_safetensors(path):
    with safe_open(path, framework="pt") as file:
        return file.get_tensor("weights"), json.loads(file.metadata()["about"])


READERS = [(".json", from_json), (".npz", from_npz), (".safetensors", from_safetensors)]


@pytest.mark.parametrize(("suffix", "read"), READERS)
@pytest.mark.parametrize("what", ["drawn", "maps"])
def test_every_format_stores_the_drawn_numbers_exactly(tmp_path, request, what, suffix, read):
    given = request.getfixturevalue(what)
    save_result(given, tmp_path / f"map{suffix}")
    weights, data = read(tmp_path / f"map{suffix}")
    assert torch.equal(weights, given.weights)
    expected = json.loads(to_json(to_data(given)))
    del expected["generator"], expected["weights"]
    assert data == expected
    assert data["provenance"]["text"] == "the train left the station on time"
    assert len(data["provenance"]["weights_sha256"]) == 64
    assert data["agreement"]["verdict"] == "verified"


def test_file_extensions_are_case_insensitive(tmp_path, drawn):
    save_result(drawn, tmp_path / "MAP.JSON")
    assert torch.equal(from_json(tmp_path / "MAP.JSON")[0], drawn.weights)


def test_the_report_names_every_stage_of_every_head(train):
    data = train.agreement.about()
    assert data["heads"] == 72
    assert len(data["checks"]) == 6 * 7
    assert all(check["passed"] for check in data["checks"])
    assert data["first_difference"] is None


def test_nan_is_null_in_json(tmp_path, drawn):
    weights = drawn.weights.clone()
    weights[0, 0], weights[0, 1] = math.nan, math.inf
    save_result(replace(drawn, weights=weights), tmp_path / "map.json")

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    data = json.loads((tmp_path / "map.json").read_text(), parse_constant=refuse)
    assert data["weights"][0][:2] == [None, None]


def test_a_file_is_replaced_atomically_and_readable_by_others(tmp_path):
    path = tmp_path / "map.json"
    path.write_text("old")
    with atomic(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names_in(tmp_path) == ["map.json"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("wrong", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_keeps_the_old_file_and_no_temporary_file(tmp_path, wrong):
    path = tmp_path / "map.json"
    path.write_text("old")

    def fail_half_way():
        with atomic(path) as temporary:
            temporary.write_text("half of the n")
            raise wrong

    with pytest.raises(wrong):
        fail_half_way()
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["map.json"]


def test_a_failed_write_is_one_line_and_changes_nothing(tmp_path):
    path = tmp_path / "map.json"
    path.write_text("old")
    with (
        pytest.raises(
            OutputError, match=r"map.json cannot be written: No space left.*Nothing changed"
        ),
        atomic(path),
    ):
        raise OSError(28, "No space left on device")
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["map.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("suffix", [".json", ".npz", ".safetensors"])
def test_a_full_disk_is_an_output_error_in_every_format(tmp_path, monkeypatch, drawn, suffix):
    def on_full_disk(path, mode, exist_ok):
        path.symlink_to("/dev/full")

    monkeypatch.setattr(Path, "touch", on_full_disk)
    with pytest.raises(OutputError, match="No space left on device"):
        save_result(drawn, tmp_path / f"map{suffix}")
    assert names_in(tmp_path) == []


def test_a_deleted_folder_is_an_output_error(tmp_path, drawn):
    with (
        pytest.raises(OutputError, match="No such file or directory"),
        atomic(tmp_path / "gone" / "map.json"),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        (
            "map.gif",
            InputError,
            r"'map.gif' must end in .png, .svg, .pdf, .json, .npz, .safetensors, .parquet: ",
        ),
        ("map", InputError, r"'map' must end in .png"),
        ("none/map.png", OutputError, r"The folder .*none does not exist. Create it first."),
        ("file/map.png", OutputError, r"The folder .*file does not exist"),
        ("folder", OutputError, r"folder is a folder. Add a file name."),
        ("folder.png", OutputError, r"folder.png is a folder. Add a file name."),
    ],
)
def test_an_unwritable_path_is_refused_before_writing(tmp_path, name, error, said):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.png").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=said):
        check_output(tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(OutputError, match="locked is read-only"):
        check_output(tmp_path / "locked" / "map.png")


def test_figures_and_data_are_not_interchangeable(tmp_path, drawn, train):
    with pytest.raises(
        InputError, match=r"'a\.png' must end in \.json, \.npz, \.safetensors, \.parquet: "
    ):
        save_result(drawn, tmp_path / "a.png")
    with pytest.raises(InputError, match=r"'a\.json' must end in \.png, \.svg, \.pdf: "):
        attnviz.plot.save(attnviz.plot.heatmap(train).figure, tmp_path / "a.json")
    with pytest.raises(InputError, match="No figure shows AttentionResult"):
        save_result(train, tmp_path / "a.json")
    assert not names_in(tmp_path)
