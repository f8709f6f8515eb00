"""Any arguments of `attnviz`: a documented exit code, one line at most, no partial file."""

import contextlib
import io
import shutil
import sys
from pathlib import Path

import pytest
import typer
from commands import app, run
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from strategies import slower, strings

from attnviz import ModelError

MADE = typer.main.get_command(app)  # built once: building takes longer than running
# `serve` prints nothing before it ends, and --debug shows a traceback.
COMMANDS = {name: command for name, command in MADE.commands.items() if name != "serve"}
OPTIONS = sorted(
    {
        option
        for command in COMMANDS.values()
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("-") and option != "--debug"
    }
    | {"--help", "-h", "--version"}
)
THERE = ["own.json", "lines.txt", "picture.png", "folder", "broken.wav", "out.png", "locked.json"]
numbers = st.one_of(
    st.integers(-3, 20).map(str),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["1_0", "٣", "0x1", " 3", "1e3", "", "-", "²", "--1"]),
)
files = st.one_of(
    st.sampled_from(THERE),
    st.sampled_from(["new.json", "new.npz", "new.html", "new.gif", "none/new.json", "/dev/null"]),
    st.sampled_from([".", "..", "~", "/", ".json", "a" * 300 + ".json", "folder/new.html"]),
    strings,
)
choices = st.sampled_from(
    [
        *("keep", "hide", "remove", "KEEP", "auto", "full", "streamed", "cpu", "cuda", "float16"),
        *("int8", "grid", "steps", "gate", "mask", "agrees", "encoder", "cross"),
    ]
)
typed = st.sampled_from(
    [
        *("0:3", ":", "3:1", "1,2", "the:station", "river=the bank", "river=lines.txt", "a="),
        *("the {mud|cash} bank", "cat", "bert", "the train left the station", "the#2", "bank"),
    ]
)
values = st.one_of(numbers, files, choices, typed, strings)
options = st.sampled_from(OPTIONS) | st.sampled_from(["--nothing", "--", "-", "-x", "---", "--lay"])
words = st.one_of(
    values.map(lambda value: [value]),
    st.tuples(options, values).map(list),
    options.map(lambda option: [option]),
    st.tuples(options, values).map(lambda both: ["=".join(both)]),
)


def lines(first, most=6):
    """A command line, usually with an existing command."""
    names = st.sampled_from([*COMMANDS] * 4 + ["", "serv", "heat", "-m"])
    return st.tuples(names, first, st.lists(words, max_size=most)).map(
        lambda drawn: [drawn[0], *drawn[1], *(word for several in drawn[2] for word in several)]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files in the working folder of the commands."""
    with pytest.MonkeyPatch.context() as patch:
        here = tmp_path_factory.mktemp("here")
        patch.chdir(here)
        patch.setattr(typer, "launch", lambda *_, **__: 0)
        patch.setattr(typer.main, "get_command", lambda _: MADE)
        Path("own.json").write_text('{"Q": [[1]], "K": [[1], [2]], "V": [[1], [2]]}')
        Path("lines.txt").write_text("We sat on the bank.\nThe bank was steep.\n")
        Path("broken.wav").write_bytes(b"RIFF\0\0\0\0WAVE")
        Path("folder").mkdir()
        Path("out.png").write_bytes(b"old")
        Image.new("RGB", (8, 8)).save("picture.png")
        yield here


def contents(folder):
    return {
        path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))
    }


def check(arguments, folder):
    """Run the command line like `python -m attnviz`; return its exit code."""
    arguments = [each for each in arguments if each != "--debug"]
    before = contents(folder)
    out, err = io.BytesIO(), io.BytesIO()
    streams = io.TextIOWrapper(out, "utf-8", "replace"), io.TextIOWrapper(err, "utf-8", "replace")
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = run(arguments)
        sys.stdout.flush(), sys.stderr.flush()
    message = err.getvalue().decode()
    assert code in (0, 2, 3, 4, 5), message  # 1 is for unexpected errors
    assert "Traceback" not in message
    if code in (2, 3, 4):
        assert contents(folder) == before
        assert message.count("\n") == 1, message
        assert all(c.isprintable() for c in message.rstrip("\n"))
        assert len(message.encode()) < 3000
    for path in set(contents(folder)) - set(before):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for path, was in before.items():
        if was is not None:
            path.write_bytes(was)
    return code, message


@slower(4)
@given(lines(st.just([])))
def test_arguments_that_are_checked_before_a_model_is_loaded(folder, arguments):
    def refuse(*_, **__):
        raise ModelError("Expected to be refused before.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnviz.pipeline.attend.load", refuse)
        check(arguments, folder)


SENTENCES = ["the train left the station", "the bank of the river", "bank", "x", "漢字 and 👩‍👩‍👧"]
whole = st.one_of(
    st.sampled_from(SENTENCES).map(lambda text: [text, "--json"]),
    st.sampled_from(SENTENCES).map(lambda text: [text, "-o", "new.json"]),
    strings.map(lambda text: [text, "--json"]),
)


@slower(40)
@given(lines(whole, most=3))
def test_arguments_that_run_a_model(folder, small, arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnviz.pipeline.attend.load", lambda name=None, **how: small)
        check(arguments, folder)
