"""Every command, figure and saved result matches its golden output.

pytest tests/golden -n 0 compares structure, texts and integers exactly, and floats up to the
rounding differences between processors. ATTNVIZ_GOLDEN=exact compares floats bit for bit, on the
machine that wrote the goldens. ATTNVIZ_GOLDEN=write rewrites them; inspect the diff.
"""

import json
import re
import wave

import numpy as np
import pytest
import torch
from families import tiny
from media import RATE, chirp, picture, processor_of, seeing
from one_model import one_model  # noqa: F401
from readable_text import check_layout
from rich.console import Console

import attnviz
from golden.figure_structure import structure
from golden.goldens import DATA, MODE, check, check_text
from golden.saved_results import MAKERS, SAVED, describe, write_missing

TRAIN = "the train left the station"
LETTER = "the old station master wrote a letter to his sister in the city, and she kept it. " * 4
COMMANDS = (
    "", "heatmap", "heads", "view", "steps", "verify", "check", "senses", "shift", "explain",
    "ablate", "survey", "explore", "compare", "example", "models", "serve", "doctor",
)  # fmt: skip

# Folders of models with random weights
RANDOM = ("bert", "gpt2", "qwen3", "t5", "vit", "wav2vec2")

# name: arguments, with files and folders from `place`
RUNS = {
    "heatmap": ("heatmap", TRAIN),
    "heatmap-head": ("heatmap", TRAIN, "--layer", "5", "--head", "3"),
    "heatmap-heads": ("heatmap", TRAIN, "--layer", "2", "--head", "1", "--head", "4"),
    "heatmap-special": ("heatmap", TRAIN, "--special", "remove"),
    "heatmap-hide": ("heatmap", TRAIN, "--special", "hide", "--layer", "1"),
    "heatmap-pieces": ("heatmap", "unbelievable tokenizers", "--pieces", "--layer", "1"),
    "heatmap-pair": ("heatmap", "She sat by the bank.", "--pair", "The water was cold."),
    "heatmap-find": ("heatmap", TRAIN, "--find", "train:station"),
    "heatmap-streamed": ("heatmap", TRAIN, "--mode", "streamed"),
    "heatmap-long": ("heatmap", "--file", "letter.txt", "--mode", "streamed", "--layer", "2"),
    "heatmap-part": (
        "heatmap", "--file", "letter.txt", "--mode", "streamed", "--layer", "2", "--head", "3",
        "--rows", "10:30", "--columns", "5:25",
    ),
    "heads": ("heads", TRAIN),
    "heads-layer": ("heads", TRAIN, "--layer", "3", "--special", "remove"),
    "steps": ("steps", "the train left", "--layer", "5", "--head", "3", "--word", "train"),
    "steps-chosen": ("steps", "apple phones", "-m", "gpt2"),
    "verify": ("verify", TRAIN),
    "verify-pair": ("verify", "She sat by the bank.", "--pair", "The water was cold."),
    "verify-streamed": ("verify", TRAIN, "--mode", "streamed"),
    "verify-float64": ("verify", TRAIN, "--dtype", "float64"),
    "verify-bfloat16": ("verify", TRAIN, "--dtype", "bfloat16"),
    "check": ("check", "weights.npy", TRAIN),
    "check-swapped": ("check", "swapped.npz", TRAIN),
    "senses": ("senses", "bank"),
    "shift": ("shift", "bank", "The bank was full of {mud|cash}."),
    "shift-causally": (
        "shift", "apple", "I love apple phones", "--toward", "tech=I love computers",
        "--toward", "fruit=I love pears", "--verify-causally",
    ),
    "shift-mask": ("shift", "bank", "The bank was full of cash.", "--reference", "mask"),
    "ablate": ("ablate", "He sat on the bank of the river", "--word", "bank"),
    "ablate-decoder": ("ablate", TRAIN, "-m", "gpt2", "--target", "on"),
    "explain": ("explain", "the train left", "-m", "gpt2"),
    "explain-masked": (
        "explain", "the [MASK] left the station", "-m", "bert", "--target", "train",
        "--against", "bus", "--method", "gradient-attention", "--reference", "mask",
    ),
    "explain-two-sides": ("explain", "the train left", "-m", "t5", "--decoder", "le"),
    "survey": ("survey", "corpus.txt", "-o", "survey"),
    "survey-probe": ("survey", "--probe", "previous", "-m", "gpt2", "-o", "probe"),
    "compare": ("compare", "before", "after", "corpus.txt"),
    "example-phones": ("example", "phones"),
    "example-cat": ("example", "cat"),
    "example-likes": ("example", "likes"),
    "models": ("models", "bert"),
    "models-agrees": ("models", "llama", "--state", "agrees"),
    "decoder-verify": ("verify", TRAIN, "-m", "qwen3"),
    "decoder-heatmap": ("heatmap", TRAIN, "-m", "qwen3", "--layer", "1"),
    "decoder-generate": ("heatmap", TRAIN, "-m", "gpt2", "--generate", "3"),
    "decoder-steps": ("steps", "the train left", "-m", "qwen3", "--layer", "1", "--head", "2"),
    "two-sides-verify": ("verify", "the train left", "-m", "t5", "--target", "le train est parti"),
    "two-sides-heatmap": ("heatmap", "the train left", "-m", "t5", "--target", "le train part"),
    "two-sides-decoder": (
        "heatmap", "the train left", "-m", "t5", "--target", "le train", "--stack", "decoder",
    ),
    "image-verify": ("verify", "--image", "shapes.png", "-m", "vit"),
    "image-heatmap": ("heatmap", "--image", "shapes.png", "-m", "vit", "--layer", "1"),
    "image-patch": ("heatmap", "--image", "shapes.png", "-m", "vit", "--patch", "1,2"),
    "audio-verify": ("verify", "--audio", "tone.wav", "-m", "wav2vec2"),
    "audio-heatmap": ("heatmap", "--audio", "tone.wav", "-m", "wav2vec2", "--layer", "1"),
}  # fmt: skip

# Kinds that the other cases show too, together
LONG_COMMANDS = (
    "heatmap-head", "heads", "two-sides-heatmap",
    "heatmap-heads", "heatmap-streamed", "decoder-heatmap", "image-heatmap", "example-cat",
)  # fmt: skip
LONG_FIGURES = (
    "senses", "shift", "shift-column", "steps-of-saved", "heatmap-column", "steps-latent",
    "survey-column", "heatmap-long-head",
    "shift-pair",  # shift-of-saved draws it, and the command shift has its numbers
)  # fmt: skip

# A line of a help page: the names of an option, its description, and its default
OPTION = re.compile(r"│ +((?:--?[a-z-]+ +)*)(.*?)(?:\[default: (.*)\] *)?│")
PANEL = re.compile("─ (See|Verify|Explain|Corpus) ─")  # of commands


def but_long(names, takes_long):
    return [
        pytest.param(name, marks=[pytest.mark.long] if name in takes_long else []) for name in names
    ]


def command(*arguments):
    """Run the command line in this process and return its exit code."""
    from attnviz.app import run

    return run(arguments)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Use one thread, because sums over several threads round in a different order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


@pytest.fixture(scope="module")
def place(tmp_path_factory, model):
    """Return a folder with the inputs and models that the commands use."""
    folder = tmp_path_factory.mktemp("golden")
    (folder / "letter.txt").write_text(LETTER, encoding="utf-8")
    corpus = (DATA / "corpus.txt").read_text(encoding="utf-8")
    (folder / "corpus.txt").write_text(corpus, encoding="utf-8")
    weights = model.attend(TRAIN).weights().numpy()
    np.save(folder / "weights.npy", weights)
    swapped = {
        f"layer_{n}": layer[[1, 0, *range(2, 12)] if n == 3 else slice(None)]
        for n, layer in enumerate(weights)
    }
    np.savez(folder / "swapped.npz", **swapped)
    picture().save(folder / "shapes.png")
    with wave.open(str(folder / "tone.wav"), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((chirp(0.5) * 32_767).astype("<i2").tobytes())
    for family in RANDOM[:4]:
        tiny(family).save_pretrained(folder / family)
        model.tokenizer.save_pretrained(folder / family)
    for family in RANDOM[4:]:
        seeing(family, model.tokenizer).module.save_pretrained(folder / family)
        processor_of(family, model.tokenizer).save_pretrained(folder / family)
    for name, factor in (("before", 1.0), ("after", 1.5)):
        other = attnviz.load(device="cpu")
        with torch.no_grad():
            other.module.get_parameter("encoder.layer.2.attention.self.query.weight").mul_(factor)
        other.module.save_pretrained(folder / name)
        other.tokenizer.save_pretrained(folder / name)
    return folder


@pytest.mark.parametrize("name", but_long(RUNS, LONG_COMMANDS))
def test_a_command_prints_the_same_data(name, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    arguments = [*RUNS[name], "--json"]
    if arguments[0] not in ("example", "models"):
        arguments += ["--device", "cpu"]
    code = command(*arguments)
    out, err = capsys.readouterr()
    data = json.loads(out) if out else None
    if data and arguments[0] != "verify":
        _shorten(data)
    if data and any(
        folder in arguments for folder in ("bert", "qwen3", "gpt2", "t5", "vit", "wav2vec2")
    ):
        _forget(data, "weights_sha256")  # random weights are rounded differently on other machines
    # A decomposition sums many differences; bfloat16 has three digits.
    rounding = 2e-2 if "bfloat16" in arguments else 5e-5 if arguments[0] == "shift" else 1e-5
    check(f"commands/{name}", {"exit code": code, "standard error": err, "data": data}, rounding)


def _shorten(data):
    """Keep the first stage of each report, and every fourth element of each vector."""
    if "vectors" in data:
        data["vectors"] = [vector[::4] for vector in data["vectors"]]
    for report in [data.get("agreement"), *data.get("agreements", [])]:
        if report:
            report["checks"] = [len(report["checks"]), report["checks"][0]]


def _forget(node, key):
    if isinstance(node, dict):
        node.pop(key, None)
    for item in node.values() if isinstance(node, dict) else node:
        if isinstance(item, dict | list):
            _forget(item, key)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_the_same_options_and_defaults(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "2000")  # one line for each option
    assert command(*name.split(), "--help") == 0
    check_text(f"help/{name or 'attnviz'}", "\n".join(options_and_defaults(capsys)) + "\n")


def options_and_defaults(capsys):
    """Yield the usage, the names of each option and its default, and the names of commands."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    yield re.search(r"Usage: (.*\S)", text)[1]
    of_commands = False
    for line in text.splitlines():
        of_commands = bool(PANEL.search(line)) or (of_commands and line[0] == "│")
        if row := OPTION.match(line):
            names, described, default = row.groups()
            if names or of_commands:
                yield " ".join(names.split()) or described.split()[0]
            if default:
                yield f"    = {default}"


@pytest.mark.parametrize("name", MAKERS)
def test_an_old_saved_result_loads_and_prints_the_same(name):
    if MODE == "write":
        write_missing()
    result = attnviz.load_result(SAVED / f"{name}.safetensors")
    values = {"all": describe(result), "printed": lines_of(result)}
    if isinstance(result, attnviz.AttentionResult) and not result.streamed:
        values |= {f"weights {record.place}": record.weights().tolist() for record in result}
    check(f"saved/{name}", values)


def lines_of(result, width=100):
    """Return how a result is called, and what a terminal prints of it."""
    console = Console(width=width, no_color=True, highlight=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(result)
    return [repr(result), *(line.rstrip() for line in captured.get().splitlines())]


@pytest.mark.parametrize("find", [attnviz.rank_heads, attnviz.find_heads])
def test_heads_that_are_found_print_the_same(find, train):
    words = {"query": "train", "key": "station"} if find is attnviz.find_heads else {}
    check(f"saved/{find.__name__}", lines_of(find(train, **words)))


def test_a_saved_result_round_trips(tmp_path):
    for path in SAVED.glob("*.safetensors"):
        attnviz.save_result(attnviz.load_result(path), tmp_path / path.name)
        results = [attnviz.load_result(file) for file in (path, tmp_path / path.name)]
        first, again = map(describe, results)
        for described in (first, again):
            _forget(described, "saved")  # the day of the first save
        assert first == again, path.name


@pytest.fixture(scope="module")
def train(model, _one_thread):
    return attnviz.attend("the train left the station on time", model=model)


@pytest.fixture(scope="module")
def letter(model, _one_thread):
    return attnviz.attend(LETTER, model=model, mode="streamed", exact=2)


def saved(name):
    return attnviz.load_result(SAVED / f"{name}.safetensors")


def shift_of_bank(model, text="We sat on the bank of the river."):
    toward = {
        "water": "The boat drifted past the bank of the lake.",
        "money": "She opened an account at the bank.",
    }
    return attnviz.shift("bank", text, toward=toward, model=model)


# name: the drawing function; its argument names the fixture: train, letter or model
FIGURES = {
    "heatmap": lambda train: attnviz.plot.heatmap(train),
    "heatmap-head": lambda train: attnviz.plot.heatmap(train, layer=5, head=3),
    "heatmap-heads": lambda train: attnviz.plot.heatmap(train, layer=5, head=[3, 4], width=89),
    "heatmap-column": lambda train: attnviz.plot.heatmap(train, special="remove", width=89),
    "heatmap-hidden": lambda train: attnviz.plot.heatmap(train, layer=1, special="hide"),
    "heatmap-of-saved-map": lambda: attnviz.plot.heatmap(saved("map")),
    "heatmap-image": lambda: attnviz.plot.heatmap(saved("map-image")),
    "heatmap-image-patch": lambda: attnviz.plot.heatmap(
        saved("result-image"), layer=1, head=2, patch=(1, 2)
    ),
    "heatmap-image-matrix": lambda: attnviz.plot.heatmap(
        saved("result-image"), layer=1, matrix=True
    ),
    "heatmap-audio": lambda: attnviz.plot.heatmap(saved("map-audio")),
    "heatmap-two-sides": lambda: attnviz.plot.heatmap(saved("result-cross")),
    "heatmap-long": lambda letter: attnviz.plot.heatmap(letter),
    "heatmap-long-head": lambda letter: attnviz.plot.heatmap(letter, layer=2, head=3, width=89),
    "heatmap-long-part": lambda letter: attnviz.plot.heatmap(
        letter, layer=2, head=3, rows=slice(10, 30), columns=slice(5, 25)
    ),
    "grid": lambda train: attnviz.plot.heads(train),
    "grid-layer": lambda train: attnviz.plot.heads(train, layer=2, width=89),
    "grid-long": lambda letter: attnviz.plot.heads(letter),
    "steps": lambda train: attnviz.plot.steps(train, layer=5, head=3, word="train"),
    "steps-of-saved": lambda: attnviz.plot.steps(saved("steps"), width=120),
    "steps-gated": lambda: attnviz.plot.steps(saved("result-gated"), layer=1, head=1),
    "steps-latent": lambda: attnviz.plot.steps(saved("result-latent"), layer=0, head=1),
    "vector": lambda train: attnviz.plot.attention_vector(train, layer=5, head=3, word="train"),
    "vector-of-saved": lambda: attnviz.plot.attention_vector(saved("steps"), width=89),
    "senses": lambda model: attnviz.plot.senses(attnviz.senses("bank", model=model)),
    "senses-of-saved": lambda: attnviz.plot.senses(saved("senses"), width=89),
    "shift": lambda model: attnviz.plot.shift(shift_of_bank(model)),
    "shift-column": lambda model: attnviz.plot.shift(shift_of_bank(model), width=89),
    "shift-pair": lambda model: attnviz.plot.shift(
        shift_of_bank(model, "The bank was full of {mud|cash}.")
    ),
    "shift-of-saved": lambda: attnviz.plot.shift(saved("shift")),
    "shift-causally": lambda: attnviz.plot.shift(saved("shift-causally")),
    "explain": lambda: attnviz.plot.explain(saved("explain")),
    "explain-masked": lambda: attnviz.plot.explain(saved("explain-masked"), width=89),
    "text": lambda train: attnviz.plot.text(attnviz.attention_map(train, layer=0, head=4)),
    "text-shift": lambda: attnviz.plot.text(saved("shift"), width=89),
    "text-masked": lambda: attnviz.plot.text(saved("explain-masked"), measured=False),
    "ablate": lambda: attnviz.plot.ablate(saved("ablate")),
    "check": lambda: attnviz.plot.check(saved("check")),
    "survey": lambda: attnviz.plot.survey(saved("survey")),
    "survey-column": lambda: attnviz.plot.survey(saved("survey"), width=89),
    "compare": lambda: attnviz.plot.compare(saved("compare")),
    "example-phones": lambda: attnviz.plot.example("phones"),
    "example-cat": lambda: attnviz.plot.example("cat"),
    "example-likes": lambda: attnviz.plot.example("likes", width=89),
}


@pytest.mark.parametrize("name", but_long(FIGURES, LONG_FIGURES))
def test_a_figure_has_the_same_structure_and_nothing_overlaps(name, request):
    draw = FIGURES[name]
    needed = draw.__code__.co_varnames[: draw.__code__.co_argcount]
    figure = draw(*map(request.getfixturevalue, needed))
    figure = getattr(figure, "figure", figure)
    check(f"figures/{name}", structure(figure), 1e-4)
    check_layout(figure)
