"""The command `senses`: printed output, files, and errors."""

import json
from pathlib import Path

from attnviz.app import run

RIVER = ["We sat on the bank.", "The bank was muddy."]
MONEY = ["The bank lent money.", "She owns a bank."]
TWO = [f"--sentences=river={s}" for s in RIVER] + [f"--sentences=money={s}" for s in MONEY]


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
