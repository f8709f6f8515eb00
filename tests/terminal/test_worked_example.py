"""`attnviz example`: what is printed beside ours, and every way in which a file can be wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from attnviz.app import run

SOUND = {
    "tokens": ["a", "b"],
    "X": [[1, 2, 3], [4, 5, 6]],
    "W_q": [[1, 0], [0, 1], [1, 1]],
    "W_k": [[1, 0], [0, 1], [1, 1]],
    "W_v": [[1, 0], [0, 1], [1, 1]],
}


def succeeds(capsys, *arguments):
    assert run(["example", *arguments]) == 0
    return capsys.readouterr()


def written(**changes):
    fields = {key: value for key, value in {**SOUND, **changes}.items() if value is not None}
    Path("own.json").write_text(json.dumps(fields), encoding="utf-8")


@pytest.mark.parametrize("name", ["cat", "likes", "phones"])
def test_it_prints_only_and_fits_a_hundred_columns(capsys, name):
    said = succeeds(capsys, name)
    assert said.err == ""
    assert list(Path().iterdir()) == []
    assert max(map(len, said.out.splitlines())) <= 100


def test_phones_shows_three_matrices_and_names_what_does_not_follow(capsys):
    lines = succeeds(capsys, "phones").out.splitlines()
    (love,) = (line for line in lines if "1.96" in line and "≠1.630" in line)
    assert "≠1.750" in love  # from the inputs
    assert "≠ (love, phones): printed 1.96, from the printed Q and K 1.63" in lines
    assert "≠ (phones, phones): printed 1.91, from the printed Q and K 0.91" in lines
    said = " ".join(" ".join(lines).split())
    assert "= from the printed scores all 16 follow" in lines
    assert "cannot be told: the matrices of the second head are not given" in said
    assert "12 of 72 printed cells follow from the inputs, 46 of 48 follow" in said
    assert "1.128 1.034 0.99 1.03 ≠0.9172" in said  # each with its own digits
    assert lines[-1].startswith("The slips are in K, V and scores;")


def test_what_does_not_follow_is_seen_with_and_without_colours(capsys):
    assert "\x1b" not in (plain := succeeds(capsys, "likes").out)
    assert plain.count("≠") == 10  # nine cells and the line below them
    colors = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "attnviz", "example", "likes"]
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment | colors
    )
    assert "\x1b[1;31m≠0.539" in process.stdout


def test_a_file_of_ones_own(capsys):
    written(title="mine", printed={"Q": [[4.0, 5.0], [10.0, 12.0]]})
    out = succeeds(capsys, "--file", "own.json").out
    assert out.startswith("mine\n")
    assert "(b, 1): printed 12.0, from the inputs 11.0" in out


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".json", ".npz", ".safetensors"])
def test_each_ending_is_a_format(capsys, suffix):
    assert f"wrote x{suffix}" in succeeds(capsys, "phones", "-o", f"x{suffix}").out
    path = Path(f"x{suffix}")
    if suffix == ".json":
        assert np.shape(json.loads(path.read_text())["weights printed"]) == (4, 4)
    elif suffix == ".npz":
        with np.load(path) as arrays:
            assert arrays["weights from_printed_follows"].all()
    elif suffix == ".safetensors":
        with safe_open(path, framework="np") as file:
            assert not file.get_tensor("scores from_printed_follows")[1, 3]
    else:
        assert path.stat().st_size > 5000


def test_json_is_one_object_alone_on_standard_output(capsys):
    said = succeeds(capsys, "phones", "--json", "-o", "x.json")
    assert json.loads(said.out)["slips"] == ["K", "V", "scores"]
    assert said.out == Path("x.json").read_text()
    assert said.err == "wrote x.json\n"


def test_wide_matrices_stand_below_each_other(capsys):
    size = 10
    matrix = [[round(0.1 * ((i * j) % 7), 1) for j in range(size)] for i in range(size)]
    tokens = [f"token{number}" for number in range(size)]
    Path("own.json").write_text(json.dumps({"Q": matrix, "K": matrix, "tokens": tokens}))
    out = succeeds(capsys, "--file", "own.json").out
    assert max(map(len, out.splitlines())) <= 100


def test_a_matrix_that_no_line_has_room_for_is_left_to_the_file(capsys):
    matrix = [[0.12345] * 32] * 32
    Path("own.json").write_text(json.dumps({"weights": matrix, "V": [[1, 2]] * 32}))
    out = succeeds(capsys, "--file", "own.json").out
    assert "too wide for this terminal; see the file, or --json" in out
    assert max(map(len, out.splitlines())) <= 100


def fails(capsys, *arguments):
    before = sorted(Path().rglob("*"))
    assert run(["example", *arguments]) == 2
    out, err = capsys.readouterr()
    assert sorted(Path().rglob("*")) == before
    assert out == ""
    assert err.startswith("attnviz: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "an example (cat, likes, phones) or a file, got neither"),
        (["cat", "--file", "own.json"], "or a file, got both"),
        (["phone"], "got 'phone'. Did you mean phones?"),
        (["zebra"], "got 'zebra'. Use --file for one of your own."),
        (["--file", "none.json"], "there is no file none.json"),
        (["--file", "."], ". to be a JSON file, but it is a folder"),
        (["--file", "/dev/null"], "not a plain file"),
        (["--file", "n" * 300], "File name too long"),
    ],
)
def test_what_cannot_be_read_is_one_line(capsys, arguments, said):
    assert said in fails(capsys, *arguments)


def test_a_width_that_cannot_be_laid_out(capsys):
    assert "from 40 to 2000 mm" in fails(capsys, "cat", "--width", "3000", "-o", "x.png")


TEXTS = {
    "not JSON": ('{"X": [[1, 2]\n "W_q": 1}', "line 2 column 2"),
    "empty": ("", "line 1 column 1"),
    "a list": ("[1]", "it is not an object"),
    "NaN": ('{"X": [[NaN]]}', "in X, NaN is not a number"),
    "infinite": ('{"X": [[-Infinity]]}', "in X, -Infinity is not a number"),
    "too large": ('{"X": [[1e400]]}', '"1e+400" is not a number up to 1,000,000,000'),
    "far too large": ('{"X": [[1e99999999999999999999]]}', "a number is too large"),
    "very many digits": (f'{{"X": [[{"9" * 5000}]]}}', "is not a number up to 1,000,000,000"),
    "deep": ('{"X": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    "huge": ('{"title": "' + "x" * 1_000_001 + '"}', "at most 1,000,000 bytes"),
}


@pytest.mark.parametrize(("text", "said"), TEXTS.values(), ids=TEXTS)
def test_a_file_that_is_no_example(capsys, text, said):
    Path("own.json").write_text(text)
    assert said in fails(capsys, "--file", "own.json")


def test_a_file_that_is_no_text(capsys):
    Path("own.json").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in fails(capsys, "--file", "own.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(capsys):
    Path("own.json").touch(mode=0)
    assert "Permission denied" in fails(capsys, "--file", "own.json")


ONE = [[1]]
WRONG = {
    "unknown field": ({"W_qq": ONE}, "no field 'W_qq'. Did you mean W_q"),
    "far field": ({"zebra": 1}, "no field 'zebra'. Use title, tokens"),
    "unequal rows": ({"X": [[1, 2, 3], [4]]}, "in X, rows of equal length are missing"),
    "no rows": ({"X": []}, "in X, rows of equal length are missing"),
    "empty row": ({"X": [[]]}, "in X, rows of equal length are missing"),
    "a number": ({"X": 3}, "in X, rows of equal length are missing"),
    "a string in it": ({"X": [[1, "2", 3]]}, 'in X, "2" is not a number'),
    "null in it": ({"X": [[1, None, 3]]}, "in X, null is not a number"),
    "too many rows": ({"X": [[1, 2, 3]] * 65}, "more than 32 rows or columns"),
    "inner sizes": ({"W_q": [[1, 0], [0, 1]]}, "got X (2, 3) and W_q (2, 2). Perhaps"),
    "heads": ({"heads": 3}, "heads that divide the columns of W_q"),
    "half a head": ({"heads": 1.5}, "a number from 1 to 16"),
    "no heads": ({"heads": "two"}, "a number from 1 to 16"),
    "widths": ({"W_k": [[1], [1], [1]]}, "fit for scores, got Q (2, 2) and K (2, 1)"),
    "mask shape": ({"mask": [[1]]}, "in the shape of the scores, (2, 2)"),
    "mask numbers": ({"mask": [[1, 2], [0, 1]]}, "a mask of 0 and 1"),
    "mask word": ({"mask": "future"}, "in mask, rows of equal length are missing"),
    "no scale": ({"scale": 0}, "a scale beside scores, and not 0"),
    "scale": ({"scale": "1/2"}, 'in scale, "1/2" is not a number'),
    "tokens": ({"tokens": ["a"]}, "2 tokens, got 1"),
    "queries": ({"queries": ["a"]}, "2 queries, got 1"),
    "both": ({"Q": [[1, 2], [3, 4]]}, "Expected Q or what it is computed from"),
    "scores too": ({"scores": [[1, 2], [3, 4]]}, "Expected scores or what it is computed from"),
    "weights too": ({"weights": [[1, 0], [0, 1]]}, "Expected weights or what it is computed from"),
    "W_o": ({"W_o": [[1, 2, 3]]}, "got concatenated (2, 2) and W_o (1, 3)"),
    "no X": ({"X": None}, "something to compute with"),
    "only X": ({"W_q": None, "W_k": None, "W_v": None}, "something to compute with"),
    "mask for nothing": ({"W_k": None, "mask": "causal"}, "a use for mask, but nothing"),
    "scale for nothing": ({"W_k": None, "scale": 1}, "a use for scale, but nothing"),
    "printed no object": ({"printed": ONE}, "in printed, expected a mapping"),
    "printed shape": ({"printed": {"Q": ONE}}, "printed Q of shape (2, 2)"),
    "printed stage": ({"printed": {"score": ONE}}, "got 'score'. Did you mean scores"),
    "printed too far": ({"printed": {"output": ONE}}, "(Q, K, V, scores, scaled scores, weights"),
    "note too far": ({"notes": {"output": "why"}}, "only computed stages under notes"),
    "per head": ({"heads": 2, "printed": {"weights": ONE}}, "2 matrices under printed weights"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), WRONG.values(), ids=WRONG)
def test_fields_that_do_not_fit(capsys, changes, said):
    written(**changes)
    assert said in fails(capsys, "--file", "own.json")


LATER = {
    "nothing": ({}, "something to compute with"),
    "scores, no scale": ({"scores": ONE}, "a scale beside scores"),
    "weights, no V": ({"weights": ONE}, "something to compute with"),
    "V unused": ({"X": ONE, "W_q": ONE, "V": ONE}, "a use for V, but nothing is computed with it"),
    "V alone": ({"V": ONE}, "something to compute with"),
    "rows of V": ({"weights": [[0.5, 0.5]], "V": ONE}, "got weights (1, 2) and V (1, 1)"),
    "causal": ({"Q": ONE, "K": [[1], [2]], "mask": "causal"}, "in the shape of the scores, (1, 2)"),
    "heads differ": (
        {"heads": 2, "scale": 1, "scores": [ONE, [[1, 2]]]},
        "scores as 2 matrices of one shape",
    ),
}


@pytest.mark.parametrize(("fields", "said"), LATER.values(), ids=LATER)
def test_a_later_beginning_that_does_not_fit(capsys, fields, said):
    Path("own.json").write_text(json.dumps(fields))
    assert said in fails(capsys, "--file", "own.json")


def test_nothing_that_was_typed_steers_the_terminal(capsys):
    written(title="a\x1b[2Jb", tokens=["\x1b[31m", "\u202eb"], notes={"Q": "\x1b]0;x\x07"})
    out = succeeds(capsys, "--file", "own.json").out
    assert "\x1b" not in out
    assert "\u202e" not in out
