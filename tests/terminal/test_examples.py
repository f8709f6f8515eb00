"""The example in the help of each command can be typed, and its link leads to its page."""

import re
import shlex
from importlib.metadata import metadata
from pathlib import Path

import pytest
import typer

from attnviz import terminal
from attnviz.app import app
from attnviz.terminal import command

LINES = Path(terminal.__file__).with_name("examples.txt").read_text(encoding="utf-8").splitlines()
COMMANDS = typer.main.get_command(app).commands


def test_each_command_is_in_one_panel():
    assert sorted(command.COMMANDS) == sorted(line.split()[1] for line in LINES)


@pytest.mark.parametrize("line", LINES)
def test_an_example_can_be_read(line):
    _, name, *words = shlex.split(line)
    COMMANDS[name].make_context(name, words)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_ends_with_the_example_and_a_link(name):
    example, *link = COMMANDS[name].epilog.split("\n\n\n\n")
    assert example.startswith(f"Example: attnviz {name}")
    if metadata("attnviz").get_all("Project-URL"):  # installed since there are addresses
        assert re.fullmatch(rf"More: https://\S+/commands/{name}\.html", *link)
