"""The options of a command are the parameters of its function, with the help of their docstring."""

import inspect

import pytest
import typer

import attnviz
from attnviz.app import app, run
from attnviz.pipeline.attend import OneInput

MADE = typer.main.get_command(app).commands
FUNCTIONS = {
    "heads": attnviz.head_maps, "steps": attnviz.steps, "verify": attnviz.verify,
    "check": attnviz.check, "senses": attnviz.senses, "shift": attnviz.shift,
    "explain": attnviz.explain, "ablate": attnviz.ablate, "survey": attnviz.survey,
    "explore": attnviz.explore, "compare": attnviz.compare, "example": attnviz.example,
    "models": attnviz.architectures, "view": attnviz.view,
}  # fmt: skip
READ_BY_ATTEND = ("heatmap", "heads", "view", "steps", "verify", "check")
# Follow from --layer and --head, or are no value that can be typed.
CHOSEN = {"layers", "heads", "exact", "result", "inputs"}
NOT_SHOWN = {"view": {"top"}}  # on a page


def names(command):
    """Return the options and arguments of a command as the names of parameters."""
    return {
        word.lstrip("-").replace("-", "_")
        for parameter in command.params
        for word in (parameter.name, *parameter.opts)
    }


def missing(command, function):
    """Return the keywords of a function that its command lacks."""
    parameters = inspect.signature(function).parameters.values()
    given = {p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD}
    return given - names(command) - (CHOSEN - {"heads"})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_an_option_of_its_name(name):
    assert not missing(MADE[name], FUNCTIONS[name])


@pytest.mark.parametrize("name", READ_BY_ATTEND)
def test_every_input_of_attend_can_be_typed(name):
    keywords = OneInput.__optional_keys__ - CHOSEN - {"mode"} - NOT_SHOWN.get(name, set())
    assert keywords | {"text", "file", "result"} <= names(MADE[name])


@pytest.mark.parametrize("name", MADE)
def test_every_option_has_help_for_people_who_type(name):
    for parameter in MADE[name].params:
        said = parameter.help or ""
        assert said[:1].isupper() or said.startswith(('"', "short:", "float32")), parameter.name
        assert said.rstrip().endswith("."), parameter.name
        assert "As in" not in said
        assert "array" not in said or name == "check"


def test_methods_are_computed_by_shift():
    methods = ["--methods", "rollout", "--methods", "raw-attention"]
    assert run(["shift", "train", "the train left", *methods, "-o", "x.safetensors"]) == 0
    assert set(attnviz.load_result("x.safetensors").methods) == {"rollout", "raw-attention"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shift", "train"], "There is nothing to read"),
        (["shift", "train", " "], "The text is empty"),
        (["shift", " ", "the train"], "The word is empty"),
        (["ablate", "the train", ""], "Text 2 of 2 is empty"),
        (["ablate", "the train", "--heads", "1"], "'1' is not a head"),
        (["survey", "none.txt"], "There is no file none.txt"),
        (["compare", "one", "none.txt"], "There is no file none.txt"),
        (["explore"], "or read the sample that comes with attnviz (--sample)"),
        (["explore", "none.txt"], "or read the sample that comes with attnviz (--sample)"),
        (["survey", "corpus.txt", "--sample"], "the sample replaces them"),
        (["explore", "-"], "it has to be a file"),
        (["check", "none.npy", "the train"], "There is no file none.npy"),
    ],
)
def test_wrong_input_is_refused_before_a_model_is_loaded(capsys, monkeypatch, arguments, said):
    monkeypatch.setattr(attnviz.pipeline.attend, "load", lambda *_, **__: pytest.fail("loaded"))
    monkeypatch.setattr("attnviz.models.checkpoint.locate_checkpoint", lambda *_: None)
    assert run(arguments) == 2
    assert said in capsys.readouterr().err


FUNCTION_CALLS = {
    "shift": (lambda: attnviz.shift("train", ""), "The text is empty"),
    "explain": (lambda: attnviz.explain(" "), "The text is empty"),
    "compare": (lambda: attnviz.compare("none.txt", models=["a", "b"]), "There is no file none"),
    "explore": (lambda: attnviz.explore("-"), "it has to be a file"),
}


@pytest.mark.parametrize(("call", "said"), FUNCTION_CALLS.values(), ids=FUNCTION_CALLS)
def test_a_function_refuses_what_its_command_refuses(monkeypatch, call, said):
    monkeypatch.setattr("attnviz.models.pretrained.find_weights", lambda *_: pytest.fail("read"))
    with pytest.raises(attnviz.InputError, match=said):
        call()
