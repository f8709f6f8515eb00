"""`attnviz example`: printed and computed numbers side by side, and invalid files."""

import json
import re
from pathlib import Path

import pytest
from commands import refused, succeeds

SOUND = {
    "tokens": ["a", "b"],
    "X": [[1, 2, 3], [4, 5, 6]],
    "W_q": [[1, 0], [0, 1], [1, 1]],
    "W_k": [[1, 0], [0, 1], [1, 1]],
    "W_v": [[1, 0], [0, 1], [1, 1]],
}


def written(**changes):
    fields = {key: value for key, value in {**SOUND, **changes}.items() if value is not None}
    Path("own.json").write_text(json.dumps(fields), encoding="utf-8")


@pytest.mark.parametrize("name", ["cat", "likes", "phones"])
def test_it_prints_only_and_its_tables_fit_eighty_columns(capsys, name):
    said = succeeds(capsys, "example", name)
    assert said.err == ""
    assert list(Path().iterdir()) == []
    rows = [line for line in said.out.splitlines() if re.search(r"  +[≠↳≈]?[0-9.]+ ", line)]
    assert len(rows) >= 6
    assert max(map(len, rows)) <= 80


def test_phones_shows_three_matrices_and_counts_what_follows(capsys):
    lines = [
        " ".join(line.split()) for line in succeeds(capsys, "example", "phones").out.splitlines()
    ]
    at = lines.index("love printed ↳1.86 ↳2.11 ↳1.47 ≠1.96")
    assert lines[at + 1] == "from the inputs 1.870 2.220 1.920 1.750"
    assert lines[at + 2] == "from printed Q and K 1.860 2.110 1.470 1.630"
    assert lines[1].startswith("≠ wrong, ↳ inherited, ≈ within rounding, ? cannot be checked")
    assert "I printed ↳1.128 ↳1.034 ?0.99 ?1.03" in lines  # each with its own digits
    assert "printed: 2 wrong, 13 inherited, 1 exact" in lines
    assert " ".join(lines).endswith("12 exact; slips: K, V, scores")


def test_a_custom_file(capsys):
    written(title="mine", printed={"Q": [[4.0, 5.0], [10.0, 12.0]]})
    out = succeeds(capsys, "example", "--file", "own.json").out
    assert out.startswith("mine\n")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    at = lines.index("b printed 10.0 ≠12.0")
    assert lines[at + 1] == "from the inputs 10.00 11.00"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Name one example (cat, likes, phones), or one file."),
        (["cat", "--file", "own.json"], "Name one example (cat, likes, phones), or one file."),
        (["phone"], "'phone' is not an example. Did you mean phones?"),
        (["zebra"], "'zebra' is not an example. Use cat, likes, phones."),
        (["--file", "/dev/null"], "not a plain file"),
        (["--file", "n" * 300], "File name too long"),
    ],
)
def test_unreadable_input_is_one_line(capsys, arguments, said):
    assert said in refused(capsys, "example", *arguments)


NUMBERS = "X must have rows of equal length, at most 32 × 32 numbers up to 1,000,000,000"
TEXTS = {
    "not JSON": ('{"X": [[1, 2]\n "W_q": 1}', "line 2 column 2"),
    "a list": ("[1]", "is not a JSON object"),
    "deep": ('{"X": ' + "[" * 100_000 + "]" * 100_000 + "}", "maximum recursion depth exceeded"),
    "NaN": ('{"X": [[NaN]]}', NUMBERS),
    "too large": ('{"X": [[1e400]]}', NUMBERS),
    "huge": ('{"title": "' + "x" * 1_000_001 + '"}', "more than 1,000,000 bytes"),
}


@pytest.mark.parametrize(("text", "said"), TEXTS.values(), ids=TEXTS)
def test_a_file_that_is_not_an_example(capsys, text, said):
    Path("own.json").write_text(text)
    assert said in refused(capsys, "example", "--file", "own.json")


def test_a_file_that_is_not_text(capsys):
    Path("own.json").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in refused(capsys, "example", "--file", "own.json")


ONE = [[1]]
ALONE = dict.fromkeys(SOUND)  # without what is sound
WRONG = {
    "unknown field": ({"W_qq": ONE}, "'W_qq' is not a field of own.json. Did you mean W_q"),
    "unequal rows": ({"X": [[1, 2, 3], [4]]}, "X must have rows of equal length"),
    "a string in it": ({"X": [[1, "2", 3]]}, NUMBERS),
    "inner sizes": (
        {"W_q": [[1, 0], [0, 1]]},
        "do not fit for Q: X (2, 3) and W_q (2, 2). Perhaps",
    ),
    "mask": ({"mask": [[1, 0], [1, 1]]}, 'mask must be "causal"'),
    "tokens": ({"tokens": ["a"]}, "tokens or queries has 1 labels, and X needs 2"),
    "both": ({"Q": [[1, 2], [3, 4]]}, "Q is given, and so is what it is computed from"),
    "no X": ({"X": None}, "Nothing can be computed from W_k, W_q, W_v. Give X with W_q"),
    "printed shape": ({"printed": {"Q": ONE}}, "printed Q must have the shape (2, 2)"),
    "printed stage": (
        {"printed": {"score": ONE}},
        "'score' is not a stage that is computed. Did you mean scores",
    ),
    "nothing": (ALONE, "Nothing can be computed from an empty example. Give X with W_q"),
    "scores, no scale": (ALONE | {"scores": ONE}, "Nothing can be computed from scores. Give X"),
    "rows of V": (
        ALONE | {"weights": [[0.5, 0.5]], "V": ONE},
        "fit for head output: weights (1, 2) and V (1, 1)",
    ),
    "causal": (
        ALONE | {"Q": ONE, "K": [[1], [2]], "mask": "causal"},
        "square of scores, not (1, 2)",
    ),
    "note too far": (
        {"notes": {"output": "why"}},
        "'output' is not a stage that is computed",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), WRONG.values(), ids=WRONG)
def test_fields_that_do_not_fit(capsys, changes, said):
    written(**changes)
    assert said in refused(capsys, "example", "--file", "own.json")


def test_input_cannot_send_terminal_control_codes(capsys):
    written(title="a\x1b[2Jb", tokens=["\x1b[31m", "\u202eb"], notes={"Q": "\x1b]0;x\x07"})
    out = succeeds(capsys, "example", "--file", "own.json").out
    assert "\x1b" not in out
    assert "\u202e" not in out
