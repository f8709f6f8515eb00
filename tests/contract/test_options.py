"""Every option of every command changes what is printed, written or loaded, or is refused.

An option without a value in the table fails. Commands run in this process, with tiny models. With
an option of `load`, the run ends where `load` is called with it.
"""

import contextlib
import hashlib
import io
import os
import shutil
import wave
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import typer
from commands import app, run
from media import chirp
from PIL import Image

import attnviz
from contract.calls import CORPUS, OTHER, TEXT, it

COMMANDS = typer.main.get_command(app).commands
MODELS = ("bert", "sharper", "short", "gpt", "bart", "vit", "ear")
# The words of a command line that works.
BASES = {
    "heatmap": [TEXT, "--json"],
    "heads": [TEXT, "--json"],
    "view": [TEXT],
    "steps": [TEXT, "--json"],
    "verify": [TEXT, "--json"],
    "check": ["weights.npz", TEXT, "--json"],
    "senses": ["bank", "--sense", "a=a.txt", "--sense", "b=b.txt", "--json"],
    "shift": ["bank", TEXT, "--json"],
    "explain": ["the bank", "-m", "gpt", "--json"],
    "ablate": [TEXT, "--word", "bank", "--heads", "0.1", "-m", "gpt", "--json"],
    "survey": ["corpus.csv", "--json"],
    "explore": ["corpus.csv"],
    "compare": ["bert", "sharper", "corpus.csv", "--json"],
    "example": ["cat", "--json"],
    "models": ["bert", "--json"],
    "doctor": ["--json"],
}
SKIPPED = {
    "serve": "the command does not end; tests/interactive/serve has its options",
    "debug": "it shows the traceback of a bug",
}
# By the name of the parameter, or by the command and this name.
VALUES = {
    "text": OTHER, "texts": OTHER, "word": "left", "models": "gpt", "name": "likes",
    "weights": "others.npz", "names": "gpt2", "file": "text.txt", "result": "result.safetensors",
    "image": "picture.png", "audio": "sound.wav", "sampling_rate": "8000", "pair": "a dog",
    "target": "left", "generate": "2", "inputs": "ids.json", "queries": "a", "keys": "a",
    "compare": OTHER, "model": "sharper", "tokenizer": "there", "target_tokenizer": "there",
    "processor": "there", "device": "cuda", "dtype": "float64", "device_map": "auto",
    "offload_folder": "there", "special_tokens": "split", "mode": "streamed", "positions": "all",
    "cells": "2", "top": "2", "stack": "decoder", "layer": "1", "head": "2", "heads": "1.1",
    "patch": "0,0", "rows": "0:2", "columns": "0:2", "special": "remove", "find": "the:bank",
    "show": "token", "size": "0.000001", "against": "left", "number": "logit",
    "reference": "mask", "methods": "rollout", "decoder": "a dog", "toward": "a=a.txt",
    "similar_to": "a dog", "groups": "the",
    "how": "zero", "knock_out": "the", "effect": "direct", "sentences": "c=a.txt",
    "probe": "previous", "column": "title", "engine": "ray?", "seed": "7",
    "state": "part", "width": "120", "caption": "full", "output": "new.json", "out": "other",
    ("survey", "texts"): "other.csv", ("explore", "texts"): "other.csv",
    ("compare", "texts"): "other.csv", ("example", "file"): "own.json",
    ("explain", "reference"): "a dog", ("ablate", "patch"): "the unloved dog left",
    ("explore", "output"): "new.html", ("view", "output"): "new.html", ("view", "live"): "new",
    ("verify", "output"): "new.safetensors", ("view", "head"): "3", ("view", "layer"): "0",
}  # fmt: skip
DRAWN = ("width", "caption")  # the figure that most commands draw without --output
# More words, with which an option applies.
WITH = {
    "generate": "-m gpt", "target": "-m bart", "image": "-m vit", "audio": "-m ear",
    "positions": "--audio sound.wav -m ear",
    "sampling_rate": "--audio sound.wav -m ear", "truncate": "-m short", "cells": "--mode streamed",
    "top": "--mode streamed", "force": "-o old.json", "measure": "--explain --generate 2 -m gpt",
    "explain": "--generate 2 -m gpt", "stack": "-m bart --target left",
    ("explain", "target"): "-m gpt", ("explain", "number"): "--target left",
    ("ablate", "target"): "-m gpt", ("survey", "stack"): "", ("survey", "force"): "-o old",
    ("verify", "force"): "-o old.safetensors",
    ("explain", "decoder"): "-m bart", ("check", "cells"): "", ("check", "top"): "",
    **{(command, name): "-o new.svg" for command in ("check", "example") for name in DRAWN},
}  # fmt: skip
# Other command lines: with more texts, or models.
INSTEAD = {
    ("explain", "truncate"): ["the [MASK] left the bank", "--json"],
    ("compare", "truncate"): ["short", "sharper", "corpus.csv", "--json"],
    ("compare", "seed"): ["bert", "sharper", "many.csv", "--json"],
    ("check", "positions"): ["sounds.npz", "--json"],
    ("check", "stack"): ["cross.npz", TEXT, "--json"],
    ("compare", "skip_bad"): ["bert", "sharper", "bad.jsonl", "--json"],
    ("survey", "skip_bad"): ["bad.jsonl", "--json"],
    ("explore", "skip_bad"): ["bad.jsonl"],
}
ALONE = (
    "image",
    "audio",
    "sampling_rate",
    "positions",
    "inputs",
    "file",
    "result",
)  # in place of the text
MEDIA = ("image", "audio", "sampling_rate", "positions")
READING = ("heatmap", "heads", "view", "steps", "verify", "check")
IDLE = {
    ("view", "force"): "pages are always overwritten",
    ("explore", "force"): "pages are always overwritten",
}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """The files that commands read."""
    with pytest.MonkeyPatch.context() as patch:
        here = tmp_path_factory.mktemp("here")
        patch.chdir(here)
        Path("corpus.csv").write_text(f"text,title\n{CORPUS[0]},a dog\n{CORPUS[1]},a bank\n")
        Path("other.csv").write_text(f"text\n{OTHER}\na dog\n")
        Path("bad.jsonl").write_text(
            f'{{"text": "{TEXT}"}}\n{{"text": 3}}\n{{"text": "{OTHER}"}}\n'
        )
        Path("many.csv").write_text(
            "text\n" + "".join(f"the bank {c}\n" for c in "abcdefghijklmnop")
        )
        Path("a.txt").write_text("a bank left\nthe bank saw\n")
        Path("b.txt").write_text("we saw a bank\nno bank left\n")
        Path("text.txt").write_text(OTHER)
        Path("ids.json").write_text('{"input_ids": [[101, 1996, 3899, 102]]}')
        Path("own.json").write_text('{"Q": [[1]], "K": [[1], [2]], "V": [[1], [2]]}')
        Path("old").mkdir()
        Path("old/summary.parquet").write_text("{}")
        for name in ("old.json", "old.safetensors"):
            Path(name).write_text("{}")
        with wave.open("sound.wav", "wb") as sound:
            sound.setparams((1, 2, 16000, 0, "NONE", ""))
            sound.writeframes((chirp(0.3) * 2**14).astype(np.int16).tobytes())
        Image.new("RGB", (8, 8)).save("picture.png")
        weights = it.result.weights().numpy()
        np.savez("weights.npz", weights=weights)
        heard = it.ear.attend(audio=chirp(0.3), sampling_rate=16000)
        np.savez("sounds.npz", weights=heard.weights().numpy())
        cross = it.bart.attend(TEXT, target="left")
        np.savez("cross.npz", weights=cross.weights().numpy())
        np.savez("others.npz", weights=weights[:, ::-1])
        attnviz.save_result(it.other, "result.safetensors")
        os.mkfifo("fifo.npz")
        yield here


def files():
    return {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}


READ = {}


def attend_once(read, *texts, model, **inputs):
    """Return what `attend` returns, read once for the same inputs and model."""
    model = model() if callable(model) else model
    key = id(model), repr((texts, sorted(inputs.items())))
    if key not in READ:
        READ[key] = read(*texts, model=model, **inputs)
    return READ[key]


def seen(words):
    """Return what a command prints, writes, opens and loads: its exit code first."""
    before, opened = files(), []
    old = {path: path.read_bytes() for path in before if str(path).startswith("old")}

    def load(name=None, **how):
        if callable(name):  # what a command gives to a function
            return name()
        opened.append(str(name))
        name = name or "bert"
        if name not in MODELS or how.keys() - {"device"} or how.get("device", "auto") != "auto":
            raise attnviz.ModelError(f"load {name} {how}")
        return getattr(it, name)

    def locate(name):
        if name not in MODELS:
            known(name)

    def save(figure, path, **_):
        texts = sorted({text.get_text() for text in figure.findobj(hasattr_text)})
        Path(path).write_text(f"{figure.get_size_inches()} {texts}")

    known = attnviz.models.checkpoint.locate_checkpoint
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attnviz.pipeline.attend, "load", load)
        read = partial(attend_once, attnviz.pipeline.attend.attend)
        patch.setattr(attnviz.pipeline.attend, "attend", read)
        patch.setattr(attnviz.models.checkpoint, "locate_checkpoint", locate)
        patch.setattr("attnviz.figures.layout.save", save)
        patch.setattr(typer, "launch", opened.append)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(words)
            out.flush()
            err.flush()
    written = {}
    for path in sorted({path for path, when in files().items() if when != before.get(path)}):
        has_date = path.suffix == ".safetensors"
        written[str(path)] = has_date or hashlib.sha256(path.read_bytes()).hexdigest()
        path.unlink()
        if path in old:
            path.write_bytes(old[path])
    for path in ("survey", "other"):
        shutil.rmtree(path, ignore_errors=True)
    printed, said = (stream.buffer.getvalue().decode() for stream in (out, err))
    return code, printed, said, str(written), opened


def hasattr_text(artist):
    return hasattr(artist, "get_text")


@cache
def base_of(*words):
    return seen(words)


def of(table, command, name, default=None):
    """Return what a table has for an option of a command, or for options of this name."""
    return table.get((command, name), table.get(name, default))


def lines(command, name):
    """Return the words of a command line without and with an option."""
    parameter = next(each for each in COMMANDS[command].params if each.name == name)
    words = [command, *of(INSTEAD, command, name, BASES[command])]
    if name == "json":
        return [word for word in words if word != "--json"], words
    if name in DRAWN:
        words = [word for word in words if word != "--json"]
    alone = name in ALONE and (name not in MEDIA or command in READING)
    more, value = of(WITH, command, name, "").split(), of(VALUES, command, name)
    known = {option for each in COMMANDS[command].params for option in each.opts}
    more = more if alone or name not in MEDIA else []
    if more and more[0] in known and {word for word in more if word[0] == "-"} <= known:
        words += more
    if parameter.param_type_name == "argument":
        given = [p for p in COMMANDS[command].params if p.param_type_name == "argument"]
        place = 1 + given.index(parameter) + (name == "texts" and command == "compare")
        return words, [*words[:place], value, *words[place + 1 :]]
    if alone:
        words = [word for word in words if word not in (TEXT, "the bank")]
    if parameter.is_flag:
        option = (parameter.secondary_opts or parameter.opts)[0]
        return words, [*words, option]
    return words, [*words, parameter.opts[0], value]


PARAMETERS = [
    (command, parameter.name)
    for command, made in COMMANDS.items()
    for parameter in made.params
    if command not in SKIPPED and parameter.name not in SKIPPED
]

FLAGS = {
    (name, parameter.name)
    for name, command in COMMANDS.items()
    for parameter in command.params
    if getattr(parameter, "is_flag", False)
}


def missing():
    """Return the options without a value, and the commands without a line."""
    return {
        *(pair for pair in PARAMETERS if pair not in FLAGS and of(VALUES, *pair) is None),
        *(COMMANDS.keys() - BASES.keys() - SKIPPED.keys()),
    }


def is_ignored(command, name):
    before, after = lines(command, name)
    return seen(after) == base_of(*before)


def test_every_option_has_a_value(monkeypatch):
    assert not missing()
    monkeypatch.delitem(VALUES, "seed")  # planted
    assert ("survey", "seed") in missing()


@pytest.mark.parametrize("command", BASES)
def test_the_line_works_and_gives_the_same_again(command):
    words = [command, *BASES[command]]
    assert base_of(*words)[0] in (0, 3 if command == "doctor" else 0), base_of(*words)
    once, again = base_of(*words), seen(words)
    assert again == once


def in_turn():
    """Return the options; what five commands or more read in one way runs in every other one."""
    pairs = [pair for pair in PARAMETERS if pair not in IDLE]
    names = list(dict.fromkeys(name for _, name in pairs))
    for command, name in pairs:
        commands = [other for other, read in pairs if read == name]
        rests = len(commands) > 4 and (commands.index(command) + names.index(name)) % 2
        yield pytest.param(command, name, marks=pytest.mark.long if rests else [])


@pytest.mark.parametrize(("command", "name"), [*in_turn()])
def test_an_option_changes_the_output_or_is_refused(command, name):
    assert not is_ignored(command, name)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("heatmap", "special"), ("heads", "layer"), ("steps", "word"), ("verify", "generate"),
        ("explain", "number"), ("view", "device"), ("example", "width"), ("models", "state"),
    ],
)  # fmt: skip
def test_a_dropped_option_is_found(monkeypatch, command, name):
    """Planted: an option that is lost between the command line and the run."""
    default = next(each for each in COMMANDS[command].params if each.name == name).default
    call = attnviz.terminal.command.Call
    take = call.__init__
    monkeypatch.setattr(
        call, "__init__", lambda self, of, typed: take(self, of, typed | {name: default})
    )
    assert is_ignored(command, name)


# --- guards

NOT_TEXT = ("", " ", "a\udcffb")
NO_FILE = ("", "no\0name", "no/such/file.npz", "fifo.npz", "old")
NO_PLACE = ("", "no\0name.json", "no/such/folder/x.json", "x.wrong")
BAD = {
    **dict.fromkeys(
        (
            "text", "pair", "target", "word", "against", "knock_out", "patch", "reference",
            "compare", "similar_to", "groups",
        ),
        NOT_TEXT,
    ),
    **dict.fromkeys(
        ("image", "audio", "result", "inputs", "weights", "texts"), NO_FILE
    ),
    "file": [name for name in NO_FILE if name != "fifo.npz"],  # which may be a pipe
    "output": NO_PLACE, **dict.fromkeys(("live", "out"), ("", "no\0name", "old.json")),
    "generate": ("0", "-1", "1.5", "two", "1000000000"),
    "layer": ("-7", "99", "1.5", "one"), "head": ("-1", "99", "1.5", "one"),
    "cells": ("0", "-1", "1.5"), "top": ("-1", "1.5"), "sampling_rate": ("0", "-1", "low"),
    "seed": ("-1", "1.5"), "width": ("0", "-3", "nan", "wide"), "size": ("0", "-3", "nan"),
    **dict.fromkeys(
        (
            "special", "mode", "positions", "how", "effect", "number", "show", "caption", "engine",
            "methods", "probe", "state", "special_tokens", "stack", "name", "column", "heads",
            "rows", "columns", "find", "sentences", "toward",
        ),
        ("", "no such choice"),
    ),
    "decoder": NOT_TEXT[2:], ("ablate", "texts"): NOT_TEXT, ("heatmap", "patch"): ("99,99", ""),
}  # fmt: skip
FREE = {  # names of models and devices, which `load` checks, and of models, a part of a name
    "models", "model", "names", "device", "dtype", "device_map", "offload_folder", "tokenizer",
    "target_tokenizer", "processor", "queries", "keys",
}  # fmt: skip
CASES = [
    (command, name, value)
    for command, name in PARAMETERS
    if (command, name) not in FLAGS
    for value in of(BAD, command, name, ())
]


def refusal(command, name, value):
    """Return what a command with a bad value of an option says, and the models it loaded."""
    good, words = of(VALUES, command, name), lines(command, name)[1]
    place = len(words) - 1 - words[::-1].index(good)
    code, printed, said, written, opened = seen([*words[:place], value, *words[place + 1 :]])
    refused = code in (2, 3, 4) and not printed and written == "{}"
    is_line = said.startswith("attnviz: ") and said.count("\n") == 1 and said[-2] in ".?"
    return refused and is_line, opened


def test_every_option_has_bad_values():
    values = [pair for pair in PARAMETERS if pair[1] not in FREE and pair not in FLAGS]
    assert all(of(BAD, *pair) for pair in values)


def rotated():
    """Return the cases, of which one bad value of each option runs, another for each command."""
    place = {pair: number for number, pair in enumerate(PARAMETERS)}
    for command, name, value in CASES:
        values = of(BAD, command, name)
        runs = value == values[place[command, name] % len(values)]
        yield pytest.param(command, name, value, marks=[] if runs else pytest.mark.long)


@pytest.mark.parametrize(("command", "name", "value"), [*rotated()])
def test_a_bad_value_is_refused_in_one_line(command, name, value):
    refused, opened = refusal(command, name, value)
    assert refused
    if name in ("output", "out", "live", "file", "result", "weights", "text"):
        assert not opened, "a model was loaded first"


def test_a_missing_guard_is_found(monkeypatch):
    """Planted: an output that is not checked, and a text."""
    monkeypatch.setattr("attnviz.terminal.command.check_output", lambda path, *_, **__: Path(path))
    assert refusal("heatmap", "output", "no/such/folder/x.json")[1]
    monkeypatch.setattr("attnviz.terminal.command._expect_text", lambda *_: None)
    assert refusal("verify", "text", "")[1]
