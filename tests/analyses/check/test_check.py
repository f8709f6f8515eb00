"""The check of another tool's weights: it confirms those of transformers and finds every fault.

Faults are planted in the run of transformers itself, or in the weights that it returns.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from commands import run
from families import tiny
from own_attentions import own_attentions
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

import attnviz
from attnviz import InputError

TEXT = "the train left the station on time"


def eager(model, mask=None):
    """Return the weights that transformers returns, one for each layer, (1, H, T, T)."""
    ids = torch.tensor([model.tokenizer(TEXT)["input_ids"]])
    return own_attentions(model.module, ids, attention_mask=mask)


@pytest.fixture(scope="module", params=["bundled", "gpt2", "llama"])
def read(request, model, tokenizer):
    """A model, attnviz's result, and the weights of transformers."""
    of = model
    if request.param != "bundled":
        of = attnviz.load(tiny(request.param), tokenizer=tokenizer)
    return of, of.attend(TEXT), eager(of)


@pytest.fixture(scope="module")
def bundled(model, train):
    return train, eager(model)


def edit(attentions, layer, change):
    return [change(a.clone()) if n == layer else a for n, a in enumerate(attentions)]


def swap_heads(weights):
    return weights[:, [0, 2, 1, *range(3, weights.shape[1])]]


def test_weights_of_transformers_agree(read):
    model, result, attentions = read
    report = attnviz.check(attentions, result)
    assert report.agrees
    assert report.first is None
    assert not report.hints
    assert not report.notes
    assert report.summary().startswith(f"agrees: {len(attentions) * attentions[0].shape[1]} heads")
    assert report.differences.max() < 2e-6  # a batch of one row rounds in another order
    ids = model.tokenizer(TEXT, return_tensors="pt")
    again = attnviz.check(attentions, ids, model)
    assert torch.equal(again.differences, report.differences)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_agree(dtype, read):
    _, result, attentions = read
    assert attnviz.check([layer.to(dtype) for layer in attentions], result).agrees
    factor = 1.05  # 1 % is within the rounding of bfloat16
    scaled = edit(attentions, 0, lambda a: a * factor)
    assert not attnviz.check([layer.to(dtype) for layer in scaled], result).agrees


# --- faults in the run of transformers


def test_a_scale_1_percent_off_in_the_model(model, train):
    faulty = attnviz.load(copy.deepcopy(model.module), tokenizer=model.tokenizer)
    faulty.module.encoder.layer[2].attention.self.scaling *= 1.01
    report = attnviz.check(eager(faulty), train)
    assert (report.first.layer, report.first.head) == (2, 0)
    assert report.hints == ("the scores of layer 2 are multiplied by 1.01",)
    assert report.agree[:24].all()


def test_a_scale_shows_in_the_slope_where_weights_are_nearly_even(tokenizer):
    """No weight is off by more than rounding explains in two runs, but all are in one direction."""
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "bos_token_id": 101, "eos_token_id": 102}
    config = GPT2Config(**sizes, n_embd=48, n_layer=1, n_head=4)
    network = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        network.transformer.h[0].attn.c_attn.weight.mul_(0.2)
    even = attnviz.load(network, tokenizer=tokenizer)
    result = even.attend(TEXT)
    record = result.records[0]
    scaled = {0: replace(record, scale=record.scale * 1.01).weights()}
    report = attnviz.check(scaled, result)
    assert (report.differences < report.tolerances).all()
    assert not report.agree.any()
    assert report.hints == ("the scores of layer 0 are multiplied by 1.01",)
    assert attnviz.check(eager(even), result).agrees


@pytest.mark.parametrize(
    ("diagonal", "hint"),
    [(1, "each query also reads the next token"), (-1, "no query reads its own token")],
)
def test_a_mask_off_by_one_in_the_model(diagonal, hint, read):
    model, result, attentions = read
    if len(attentions) == 6:
        pytest.skip("the bundled model has no causal mask")
    T = attentions[0].shape[-1]
    hidden = torch.ones(T, T).tril(diagonal) == 0
    mask = torch.zeros(T, T).masked_fill(hidden, torch.finfo(torch.float32).min)[None, None]
    report = attnviz.check(eager(model, mask), result)
    assert report.first.layer == 0
    assert report.hints == (f"the mask is off by one: {hint}",)


def test_a_token_masked_in_the_model(model, train):
    mask = torch.ones(1, 9)
    mask[0, -1] = 0
    report = attnviz.check(eager(model, mask), train)
    assert report.first.layer == 0
    assert report.hints == ("the mask differs in 9 cells: the keys “[SEP]” are not read there",)


# --- faults in the weights that it returns


def test_two_heads_swapped(read):
    _, result, attentions = read
    report = attnviz.check(edit(attentions, 1, swap_heads), result)
    assert (report.first.layer, report.first.head) == (1, 1)
    assert report.hints == ("heads 1 and 2 of layer 1 are swapped",)
    names = report.labels()["head_names"]
    failed = [name for name, ok in zip(names, report.agree, strict=True) if not ok]
    assert failed == ["1.1", "1.2"]
    theirs, ours = attentions[1][0, 2], result.weights(1, 1)
    row, column = report.first.row, report.first.column
    assert (theirs - ours).abs().max() == (theirs - ours)[row, column].abs()
    assert (report.first.query, report.first.key) == (result.tokens[row], result.tokens[column])
    assert report.first.theirs == pytest.approx(theirs[row, column].item())
    assert report.first.ours == pytest.approx(ours[row, column].item(), abs=1e-6)


FAULTS = {
    "all heads": (
        1, lambda a: a.roll(1, 1), "the heads of layer 1 are in another order: 0 is",
    ),
    "weights scaled": (0, lambda a: a * 1.01, "the weights of layer 0 are multiplied by 1.01"),
    "one head scaled": (
        1, lambda a: a * torch.tensor([1.0, 0.99, *[1.0] * (a.shape[1] - 2)])[:, None, None],
        "the weights of head 1.1 are multiplied by 0.99",
    ),
    "transposed": (1, lambda a: a.mT, "the maps are transposed"),
    "nan": (1, lambda a: a.masked_fill(a == a.max(), torch.nan), "some weights are not numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(name, read):
    _, result, attentions = read
    layer, change, hint = FAULTS[name]
    report = attnviz.check(edit(attentions, layer, change), result)
    assert report.first.layer == layer
    (found,) = report.hints
    assert found.startswith(hint)


def test_faults_of_the_scores(read):
    _, result, attentions = read
    record = result.records[1]
    missing = replace(record, scale=record.scale * record.query.shape[-1] ** 0.5).weights()
    report = attnviz.check(edit(attentions, 1, lambda a: missing[None]), result)
    (hint,) = report.hints
    assert hint.endswith(f": the factor 1/√{record.query.shape[-1]} is missing")
    scores = edit(attentions, 1, lambda a: record.scores()[None])
    assert attnviz.check(scores, result).hints == ("these are scores before softmax, not weights",)


def test_layers_in_another_order(read):
    _, result, attentions = read
    swapped = [attentions[1], attentions[0], *attentions[2:]]
    for given in (swapped, {0: attentions[1]}):
        hints = attnviz.check(given, result).hints
        assert hints == ("these are the weights of layer 1, given as layer 0",)


def test_a_fault_that_nothing_explains_has_no_hint(read):
    _, result, attentions = read
    noise = torch.rand(attentions[1].shape, generator=torch.Generator().manual_seed(0))
    report = attnviz.check(edit(attentions, 1, lambda a: noise.softmax(-1)), result)
    assert report.first.layer == 1
    assert report.hints == ()


def test_a_canary_that_goes_unnoticed_is_said(model, train):
    """Where weights are even, no scale can show."""
    even = copy.deepcopy(model.module)
    for name in ("query", "key"):
        linear = getattr(even.encoder.layer[0].attention.self, name)
        torch.nn.init.zeros_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
    of = attnviz.load(even, tokenizer=model.tokenizer)
    report = attnviz.check(eager(of), TEXT, of)
    assert report.agrees
    assert report.notes == ("a scale 1 % off would go unnoticed in layer 0",)


# --- the report


WRONG = {
    "layers": (lambda a: a[:2], "have 2 layers, and all-MiniLM-L6-v2 has 6. Give all, or name"),
    "one layer": (lambda a: a[0][0], "have 1 layer, and all-MiniLM-L6-v2 has 6"),
    "no such layer": (lambda a: {9: a[0]}, "layer 9 is out of range"),
    "the mean": (
        lambda a: [x.mean(1, keepdim=True) for x in a],
        "weights here have 1 (the mean of all). Give",
    ),
    "heads": (
        lambda a: [x[:, :4] for x in a],
        "Layer 0 of the model has 12 heads, and its weights here have 4.",
    ),
    "tokens": (lambda a: [x[..., 1:, 1:] for x in a], "are 8 × 8, but attnviz read 9 × 9 tokens"),
    "nothing": (lambda a: [], "There are no weights"),
}


@pytest.mark.parametrize("name", WRONG)
def test_weights_of_another_shape_are_refused_in_one_line(name, bundled):
    result, attentions = bundled
    change, message = WRONG[name]
    with pytest.raises(InputError) as caught:
        attnviz.check(change(attentions), result)
    assert message in str(caught.value)


def test_what_cannot_be_compared(model, bundled):
    result, attentions = bundled
    given = attnviz.from_weights(attentions, result.tokens)
    with pytest.raises(InputError, match="Checks need the queries and keys of a model"):
        attnviz.check(attentions, given)
    with pytest.raises(InputError, match="A list of 2 is not one result"):
        attnviz.check(attentions, [TEXT, TEXT], model)
    with pytest.raises(InputError, match="give a text, an image or a sound"):
        attnviz.check(attentions, model=model)


# --- the command and the figure


def command(capsys, *arguments):
    code = run(["check", *map(str, arguments)])
    return code, *capsys.readouterr()


@pytest.fixture
def save(bundled, tmp_path):
    """Write weights, some heads of layer 3 swapped, in a format; return the file."""

    def write(suffix, *, swapped=False):
        _, attentions = bundled
        layers = edit(attentions, 3, swap_heads) if swapped else attentions
        path = tmp_path / f"weights{suffix}"
        named = {f"layer.{n}": layer[0].contiguous() for n, layer in enumerate(layers)}
        if suffix == ".npy":
            np.save(path, torch.cat(layers).numpy())
        elif suffix == ".npz":
            np.savez(path, **{name: layer.numpy() for name, layer in named.items()})
        else:
            save_file(named, path)
        return path

    return write


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_the_command_reads_every_format_and_tells_by_its_exit_code(suffix, save, capsys):
    code, out, _ = command(capsys, save(suffix), TEXT)
    assert code == 0
    assert out.startswith("agrees: 72 heads")
    code, out, _ = command(capsys, save(suffix, swapped=True), TEXT)
    assert code == 5
    assert out.startswith("DIFFERS first in head 3.1")
    assert "hint: heads 1 and 2 of layer 3 are swapped" in out
    assert out.count("verified: 72 heads") == 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.npy", None, "There is no file"),
        ("weights.pt", b"x", "does not end in .npy, .npz, .safetensors"),
        ("text.npy", b"no array", "damaged, or of another format"),
        ("cut.npz", b"PK\x03\x04", "is damaged, or of another format"),
        ("cut.safetensors", b"x", "is damaged, or of another format"),
    ],
)
def test_files_that_are_no_weights_are_refused_before_a_model_is_loaded(
    name, content, said, capsys, tmp_path
):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, _, error = command(capsys, tmp_path / name, TEXT, "--model", "no-such-model")
    assert code == 2
    assert said in error


def test_pickled_objects_are_not_loaded(capsys, tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}]), allow_pickle=True)
    code, _, error = command(capsys, tmp_path / "x.npy", TEXT)
    assert code == 2
    assert "pickled objects, which could run code" in error


def test_the_figure_shows_every_head_that_differs(model, train):
    theirs = train.weights().clone()
    theirs[3, 5, 0, 0] = torch.nan
    theirs[5, 7] = (1.01 * theirs[5, 7].log()).softmax(-1)  # less than a large difference
    figure = attnviz.check(theirs, train).plot()
    (axes, *_) = figure.axes
    figure.canvas.draw()
    colors = axes.collections[0].get_facecolor()
    assert "NaN" in {text.get_text() for text in axes.texts}
    shown = {number for number, color in enumerate(colors) if color[3] and min(color[:3]) < 0.97}
    assert shown == {3 * 12 + 5, 5 * 12 + 7}


def test_the_title_claims_no_more_than_was_compared(train):
    of_one_layer = attnviz.check({3: train.weights()[3]}, train)
    assert "12 heads of layer 3 agree" in of_one_layer.plot().axes[0].figure.texts[0].get_text()
    assert of_one_layer.summary().startswith("agrees: 12 heads of layer 3")
