"""The command `senses`: printed output, files, and errors."""

import json
from pathlib import Path

import pytest

from attnviz.app import run

RIVER = ["We sat on the bank.", "The bank was muddy."]
MONEY = ["The bank lent money.", "She owns a bank."]
TWO = [f"--sentences=river={s}" for s in RIVER] + [f"--sentences=money={s}" for s in MONEY]


@pytest.mark.long
def test_a_bundled_word(capsys):
    assert run(["senses", "bank"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [path.name for path in Path().iterdir()] == ["senses.png"]
    assert Path("senses.png").read_bytes().startswith(b"\x89PNG")
    assert "“bank”: river, money; all-MiniLM-L6-v2" in out
    rows = [line.split() for line in out.splitlines()]
    (first,) = [row for row in rows if row[:2] == ["0", "0.40"]]
    assert first[2] == "0.17–0.69"
    assert [row[1] for row in rows if row[:1] == ["output"]] == ["1.00"]
    found = "tells river and money apart, but not clearly better than the other words alone"
    assert f"From layer 1 on, “bank” {found}: output 100% right, chance 50%, other words 95%" in out
    as_good = "and as good entering layer 4 and output"
    assert f"best entering layer 2: 1.00, {as_good}, p = 0.0005 over all layers" in out
    assert "output: 1.00 (0.79 to 1.00), p = 0.0005" in out
    assert "guessing: 0.50" in out
    assert "the word without context, entering layer 0: 0.40 (0.17 to 0.69), p = " in out
    assert "the other words without attention: 0.95 (0.66 to 0.99), p = 0.0005" in out
    assert "content words that get most of its attention in layer 1" in out
    assert "  river: grassy" in out
    assert max(map(len, out.splitlines()[2:10])) <= 80
    assert "\nverified: " in out
    assert "wrote senses.png" in out


def test_custom_sentences_from_the_command_line_and_a_file(capsys):
    Path("river.txt").write_text("\n".join(RIVER))
    arguments = ["senses", "bank", "--sentences", "river=river.txt", *TWO[2:]]
    assert run([*arguments, "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    data = json.loads(said.out)
    assert [one["sentence"] for one in data["occurrences"]] == RIVER + MONEY
    assert not data["raw"]
    assert run([*arguments, "--raw", "-o", "x.json"]) == 0
    assert json.loads(Path("x.json").read_text())["raw"]


@pytest.mark.parametrize(
    "ending",
    [".svg", ".npz", *(pytest.param(e, marks=pytest.mark.long) for e in (".pdf", ".safetensors"))],
)
def test_each_file_extension_is_a_format(capsys, ending):
    assert run(["senses", "bank", *TWO, "--width", "89", "-o", f"x{ending}"]) == 0
    assert [path.name for path in Path().iterdir()] == [f"x{ending}"]


WRONG = {
    "unknown word": (["bnak"], "There are no bundled sentences for 'bnak', only for bank, check"),
    "no word": ([], "Missing argument 'word'"),
    "no =": (
        ["bank", "--sentences", "river"],
        "--sentences must be NAME=SENTENCE or NAME=FILE, not 'river'",
    ),
    "no such file": (["bank", "--sentences", "river=x.txt"], "For 'river' there is no file x.txt"),
    "empty file": (
        ["bank", "--sentences", "river=empty.txt"],
        "empty.txt has no sentences for 'river'",
    ),
    "one sense": (["bank", *TWO[:2]], "At least two senses of 'bank' are needed, not 1"),
    "one sentence": (
        ["bank", *TWO[:3]],
        "The sense 'money' has fewer than two different sentences",
    ),
    "not in it": (
        ["bank", *TWO, "--sentences", "money=The bnak lends."],
        "not in 'The bnak lends.' (money 3). Did you mean bnak?",
    ),
    "too long": (
        ["bank", *TWO, "--sentences", "money=The bank" + " grew" * 600],
        "can read at most 512. Shorten the text",
    ),
    "unknown ending": (["bank", "-o", "x.gif"], ".png, .svg, .pdf"),
    "empty word": ([""], "The word is empty"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_one_line_and_exits_with_2(capsys, arguments, said):
    Path("empty.txt").write_text("\n")
    assert run(["senses", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("attnviz: ")
    assert err.count("\n") == 1
    assert said in err
    assert [path.name for path in Path().iterdir()] == ["empty.txt"]
