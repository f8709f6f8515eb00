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
    lines = out.splitlines()
    found = "tells river and money apart, but not clearly better than the other words"
    assert " ".join(lines[:2]).startswith(f"From layer 1 on, “bank” {found}")
    said = "At the output 20 of 20 sentences lie nearer to their own sense (guessing 10; the other"
    assert said in " ".join(line.strip() for line in lines[:5])
    assert "static to output  ▲ nearer to river  ▽ nearer to money  · undecided" in lines
    threads = [line for line in lines if line[:1] in "▲▽·" and line]
    assert len(threads) == 20
    assert threads[0] == "▽▲▲▲▲▲▲    1.18  An otter slid off the BANK and swam away."
    assert threads[10] == "▲······   −0.06  Take the coins to the BANK before noon."
    rows = [line.split() for line in lines]
    (first,) = [row for row in rows if row[:2] == ["static", "0.40"]]
    assert first[2] == "0.17–0.69"
    assert [row[1:4] for row in rows if row[:1] == ["output"]] == [["1.00", "0.79–1.00", "0.0005"]]
    assert [row[1:4] for row in rows if row[:1] == ["others"]] == [["0.95", "0.66–0.99", "0.0005"]]
    assert "bold: the best layer, p = 0.0005 over all" in " ".join(lines)
    assert "read by all-MiniLM-L6-v2" in lines
    assert "content words that get most of its attention in layer 1" in out
    assert "  river: grassy" in out
    table = [line for line in lines if "0.0005" in line and "–" in line]
    assert len(table) == 7
    assert max(map(len, [*threads, *table])) <= 80
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
