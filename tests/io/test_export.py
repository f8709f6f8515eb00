"""Data formats round-trip, and files are written atomically."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

import attnviz
from attnviz.analyses.maps.compute import attention_map, head_maps
from attnviz.errors import InputError
from attnviz.io.export import save_result, to_data, to_json


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


def test_nan_is_null_in_json(tmp_path, drawn):
    weights = drawn.weights.clone()
    weights[0, 0], weights[0, 1] = math.nan, math.inf
    save_result(replace(drawn, weights=weights), tmp_path / "map.json")

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    data = json.loads((tmp_path / "map.json").read_text(), parse_constant=refuse)
    assert data["weights"][0][:2] == [None, None]


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
