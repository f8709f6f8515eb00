"""Every error is one line with advice and the documented exit code, and writes no file."""

import errno
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import typer
from commands import app, in_terminal, refused, run, succeeds
from families import tiny
from transformers.models.bert.modeling_bert import BertEncoder

import attnviz
from attnviz import AttnvizWarning

TEXT = "the train left the station"


@pytest.mark.parametrize(
    "arguments",
    [
        ["steps", TEXT, "--word", "trian"],
        ["shift", "trian", TEXT],
        ["heatmap", TEXT, "--find", "trian:left"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_wrong_word_is_refused_before_weights_are_read(capsys, monkeypatch, arguments):
    def read(*_):
        raise AssertionError("the weights were read")

    monkeypatch.setattr("attnviz.models.pretrained.find_weights", read)
    assert "Did you mean train" in refused(capsys, *arguments)


def test_no_command_shows_the_help(capsys):
    assert run([]) == 2
    out, err = capsys.readouterr()
    assert "heatmap" in out
    assert err == ""


STUCK = """
import os, time
try:
    os.write(1, b"ready\\n")
    time.sleep(60)
finally:
    os.write(1, b"ends\\n")
    time.sleep(60)  # as a download does, whose threads are waited for
"""


def stuck(*before):
    """Start a command, which stays in a library that it imports."""
    Path("typer.py").write_text(STUCK)
    command = [*before, sys.executable, "-m", "attnviz"]
    path = os.pathsep.join([".", os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_second_interrupt_exits_at_once():
    with stuck() as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "ends\n"
        process.send_signal(signal.SIGTERM)  # part of the same interruption
        time.sleep(1.1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


def test_nohup_is_respected():
    with stuck("nohup") as process:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        process.kill()
        assert process.stdout.read() == ""


def test_no_color_is_respected_in_a_terminal():
    color = re.compile(rb"\x1b\[[0-9;]*(?:3[0-8]|4[0-8])[;m]")
    for environment, is_colored in (
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ):
        code, shown = in_terminal("models", "bert", **environment)
        assert (code, bool(color.search(shown))) == (0, is_colored)
    assert b"\x1b" not in shown


# --- library output


@pytest.fixture
def noisy(monkeypatch):
    """A model in the company of verbose libraries, and one warning of attnviz."""
    capture = attnviz.pipeline.capture

    def speak(*args, **kwargs):
        for library in ("transformers", "torch", "matplotlib", "huggingface_hub", "PIL"):
            logging.getLogger(f"{library}.inner").warning("%s logs", library)
        logging.getLogger().error("the root logs")
        warnings.warn("use something else", FutureWarning, stacklevel=1)
        warnings.warn("a user should see to that", UserWarning, stacklevel=1)
        warnings.warn("this\nis ours", AttnvizWarning, stacklevel=1)
        return capture(*args, **kwargs)

    monkeypatch.setattr("attnviz.pipeline.capture", speak)


def test_only_our_warnings_are_shown(capfd, caplog, noisy):
    assert run(["heatmap", TEXT, "-o", "x.json"]) == 0
    assert capfd.readouterr().err == "attnviz: this is ours\n"
    assert not caplog.messages
    assert logging.root.manager.disable == 0


def test_an_error_inside_a_model_is_one_line(capsys, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("shapes\ndo not fit")

    monkeypatch.setattr(BertEncoder, "forward", broken)
    err = refused(capsys, "heatmap", TEXT, code=3)
    assert "BertModel fails on this input (" in err
    assert "(RuntimeError: shapes do not fit)" in err


class Panic(BaseException):
    """The exception of a Rust library that panics."""


Panic.__module__ = "pyo3_runtime"
UNFORESEEN = {
    "of ours": RuntimeError("shapes\ndo not fit"),
    "a file that vanished": FileNotFoundError(2, "No such file or directory", "x.json"),
    "the end of a file": EOFError("no more"),
    "a library that wants to end": SystemExit(0),
    "a library in Rust": Panic("index out of bounds"),
}


@pytest.mark.parametrize("error", UNFORESEEN.values(), ids=UNFORESEEN)
def test_unexpected_errors_are_one_line_and_exit_with_1(capsys, monkeypatch, error):
    def unforeseen(*args, **kwargs):
        raise error

    monkeypatch.setattr("attnviz.pipeline.capture", unforeseen)
    err = refused(capsys, "heatmap", TEXT, code=1)
    assert f"attnviz: {type(error).__name__}: " in err
    assert "Report it with the output of --debug." in err
    assert run(["heatmap", TEXT, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_package_that_is_not_installed(capsys, monkeypatch):
    def fail(*_, **__):
        raise ModuleNotFoundError("No module named 'pillow'", name="pillow")

    monkeypatch.setattr("attnviz.pipeline.capture", fail)
    err = refused(capsys, "heatmap", TEXT, code=1)
    assert err.endswith("'pillow'. Run attnviz doctor to see what is not installed.\n")


def test_keyboard_interrupt_propagates_in_python(monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("attnviz.pipeline.capture", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attnviz.attend(TEXT)
    with pytest.raises(KeyboardInterrupt):
        run(["heatmap", TEXT])


def test_a_text_comes_from_a_pipe(capsys):
    reader, writer = os.pipe()
    os.write(writer, f"{TEXT}\r\n".encode())
    os.close(writer)
    assert run(["verify", "--file", f"/dev/fd/{reader}", "--json"]) == 0
    os.close(reader)
    assert json.loads(capsys.readouterr().out)["text"] == f"{TEXT}\n"  # as of a file


def test_a_pipe_may_hold_too_much(capsys, monkeypatch):
    monkeypatch.setattr("attnviz.terminal.command._MAX_TEXT_BYTES", 9)
    reader, writer = os.pipe()
    os.write(writer, TEXT.encode())
    os.close(writer)
    err = refused(capsys, "verify", "--file", f"/dev/fd/{reader}")
    os.close(reader)
    assert "it has more than 9 bytes" in err


@pytest.mark.parametrize(
    ("command", "name"), [("heatmap", "x.json"), ("view", "x.html"), ("verify", "x.safetensors")]
)
def test_the_text_that_is_read_is_not_overwritten(capsys, command, name):
    Path(name).write_text(TEXT)
    err = refused(capsys, command, "--file", name, "-o", name, "--force")
    assert f"{name} is the text to read. Name another file" in err
    assert Path(name).read_text() == TEXT


def test_the_home_folder_of_an_output_is_expanded(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "figures").mkdir()
    assert run(["example", "cat", "--output=~/figures/x.json"]) == 0
    assert (tmp_path / "figures/x.json").exists()


def test_a_model_folder_whose_name_is_not_utf_8(capsys, tokenizer):
    tiny("bert").save_pretrained("sound")
    tokenizer.save_pretrained("sound")
    Path("sound").rename("t\udcff")
    capsys.readouterr()
    err = refused(capsys, "heatmap", TEXT, "-m", "./t\udcff", code=3)
    assert "is not UTF-8. Rename the folder." in err


def test_too_many_open_files(capsys, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("attnviz.pipeline.attend.load", fail)
    err = refused(capsys, "heatmap", TEXT, code=1)
    assert err == "attnviz: Too many files are open. Allow more: ulimit -n 1024.\n"


# --- the environment of a run


def test_a_deleted_working_folder(tmp_path):
    (gone := tmp_path / "gone").mkdir()
    leave = f"import os; os.rmdir({str(gone)!r}); os.execv({sys.executable!r}, {{}})"
    command = [sys.executable, "-P", "-m", "attnviz", "verify", "the train"]
    done = subprocess.run(
        [sys.executable, "-c", leave.format(command)],
        cwd=gone, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr == ("attnviz: the current folder is gone. Go to another one: cd.\n")


def test_torch_reads_its_log_settings_only_with_debug():
    command = [sys.executable, "-m", "attnviz", "example", "cat"]
    environment = os.environ | {"TORCH_LOGS": "nonesuch"}
    for more, code in ([], 0), (["--debug"], 1):
        done = subprocess.run([*command, *more], env=environment, capture_output=True, check=False)
        assert done.returncode == code


def test_a_matplotlibrc_that_is_not_utf_8(tmp_path):
    (tmp_path / "matplotlibrc").write_bytes("# é".encode("latin-1"))
    done = subprocess.run(
        [sys.executable, "-m", "attnviz", "example", "cat", "-o", "x.png"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("attnviz: matplotlibrc is not valid UTF-8")
    assert done.stderr.count("\n") == 1


def test_a_terminal_says_at_once_what_is_done_and_marks_the_claim(capsys):
    """On its own background: no other cell has half of the weight of the claimed one."""
    _, shown = in_terminal("heatmap", TEXT, COLORTERM="truecolor", COLUMNS="100")
    words = b"starting", b"loading", b"drawing", b"wrote heatmap.png"
    said = [shown.find(each) for each in words]
    assert -1 < said[0] < said[1] < said[2] < said[3]
    _, bold, out = shown.decode().partition("\x1b[1m“station”")
    assert [part.partition("m")[0] for part in out.split("48;2;")[1:]] == ["196;18;47"]
    lines = re.sub(r"\x1b\[[0-9;]*m", "", bold + out).splitlines()
    assert max(map(len, lines)) <= 100  # they end between words, and elsewhere they are whole
    whole = succeeds(capsys, "heatmap", TEXT).out.splitlines()
    assert any(len(line) > 150 for line in whole)
    assert " ".join(lines).split() == " ".join(whole).split()


# --- options


MADE = typer.main.get_command(app).commands


@pytest.mark.parametrize("name", MADE)
def test_every_option_has_help_for_people_who_type(name):
    for parameter in MADE[name].params:
        said = parameter.help or ""
        assert said[:1].isupper() or said.startswith(('"', "short:", "float32")), parameter.name
        assert said.rstrip().endswith("."), parameter.name
        assert "As in" not in said
        assert "array" not in said or name == "check"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ablate", "the train", "--heads", "1"], "'1' is not a head"),
        (["explore"], "or read the sample that comes with attnviz (--sample)"),
        (["explore", "none.txt"], "or read the sample that comes with attnviz (--sample)"),
        (["survey", "corpus.txt", "--sample"], "the sample replaces them"),
        (["explore", "-"], "it has to be a file"),
    ],
)
def test_wrong_input_is_refused_before_a_model_is_loaded(capsys, monkeypatch, arguments, said):
    monkeypatch.setattr("attnviz.pipeline.attend.load", lambda *_, **__: pytest.fail("loaded"))
    monkeypatch.setattr("attnviz.models.checkpoint.locate_checkpoint", lambda *_: None)
    assert run(arguments) == 2
    assert said in capsys.readouterr().err
