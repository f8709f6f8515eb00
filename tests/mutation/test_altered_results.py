"""A verdict stands under the numbers that were checked, and under no others."""

from dataclasses import replace

import matplotlib.pyplot as plt
import pytest
import torch
from commands import run
from families import TEXTS
from reports import digest, forged

import attnviz

TEXT = "the train left the station on time and nobody minded"
CORPUS = ["the cat sat on it", "who is there now", "a b c d e f"]
SENSES = {"river": ["the bank of the river", "a bank of mud"], "money": ["my bank", "a rich bank"]}
ALTERED = "NOT VERIFIED: these numbers are not those that were checked"


@pytest.fixture(scope="module")
def saved(small, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "result.safetensors"
    small.attend(TEXT).save(path)
    return path


RESULTS = {
    "heatmap": (
        lambda model: attnviz.attention_map(model.attend(TEXT), layer=1, head=2),
        "weights",
    ),
    "heads": (lambda model: attnviz.head_maps(model.attend(TEXT)), "weights"),
    "senses": (lambda model: attnviz.senses("bank", SENSES, model=model), "vectors"),
    "shift": (lambda model: attnviz.shift("train", TEXT, model=model), "raw_attention"),
    "survey": (lambda model: attnviz.survey(CORPUS, model=model), "mean"),
    "compare": (lambda model: attnviz.compare(CORPUS, models=(model, model)), "change"),
}


def caption(drawn):
    """Return all texts of a figure."""
    figure = drawn if isinstance(drawn, plt.Figure) else drawn.figure
    text = " ".join(found.get_text() for found in figure.findobj(plt.Text))
    plt.close(figure)
    return " ".join(text.split())


@pytest.mark.parametrize("name", RESULTS)
def test_a_figure_of_other_numbers_says_so(name, small):
    compute, field = RESULTS[name]
    result = compute(small)
    assert result.checked_agreement.verdict == "verified"
    other = replace(result, **{field: getattr(result, field).flip(0) + 0.01})
    assert other.checked_agreement.summary() == ALTERED
    getattr(result, field).add_(0.01)  # in place
    assert ALTERED in caption(getattr(attnviz.plot, name)(result))


def test_other_labels_are_other_numbers(small):
    drawn = attnviz.attention_map(small.attend(TEXT), layer=1, head=2)
    assert replace(drawn, notes=()).checked_agreement.verdict == "verified"
    assert replace(drawn, rows=drawn.rows[::-1]).checked_agreement.summary() == ALTERED


@pytest.mark.parametrize(
    "alter",
    [
        lambda record: record.query.mul_(1.01),
        lambda record: record.projection.key.weight.mul_(1.01),
        lambda record: object.__setattr__(record, "scale", 1.0),
    ],
    ids=["in place", "weights", "scale"],
)
def test_a_record_that_is_altered_is_noticed(alter, small):
    result = small.attend(TEXTS[2])
    assert result.stack("encoder").checked_agreement.verdict == "verified"
    alter(result.records[2])
    assert result.checked_agreement.summary() == ALTERED


def test_whatever_is_drawn_from_an_altered_record_says_so(small):
    result = small.attend(TEXT)
    result.records[2].query.mul_(1.01)
    assert ALTERED in caption(attnviz.plot.heatmap(result, layer=2, head=0))
    assert ALTERED in caption(attnviz.plot.steps(attnviz.steps(result, layer=2, head=0)))
    assert ALTERED in attnviz.view(result).data()["payload"]["results"][0]["summary"]


@pytest.mark.parametrize("mode", ["full", "streamed"])
def test_other_tokens_of_one_layer_are_noticed(mode, small):
    """All layers share an axis, which the digests describe once."""
    result = small.attend(TEXT, mode=mode)
    kind = "records" if mode == "full" else "streamed"
    *others, last = getattr(result, kind)
    other = replace(last, key_axis=replace(last.key_axis, labels=last.key_axis.labels[::-1]))
    assert result.checked_agreement.verdict == "verified"
    assert replace(result, **{kind: (*others, other)}).checked_agreement.summary() == ALTERED


def test_a_streamed_summary_is_bound_to_its_report(small):
    result = small.attend(f"{TEXT} " * 2, mode="streamed")
    assert result.checked_agreement.verdict == "verified"
    result.streamed[1].summary.mean[0] = 0.5
    assert result.checked_agreement.summary() == ALTERED


def test_a_loaded_result_was_verified_when_it_was_saved(saved, tmp_path):
    result = attnviz.load_result(saved)
    day = result.agreement.saved
    assert len(day) == len("2026-01-01")
    assert result.checked_agreement.summary().startswith(f"verified when saved on {day}: ")
    result.save(tmp_path / "again.safetensors")
    assert attnviz.load_result(tmp_path / "again.safetensors").agreement.saved == day
    report = attnviz.verify(result)
    assert report.recomputed == ("query", "key", "value")
    assert "; recomputed now: query, key, value" in report.summary()


def test_what_a_file_holds_is_recomputed(saved, tmp_path, capsys):
    """A file with other queries, and with digests that fit them, is caught by its inputs."""
    assert run(["verify", "--result", str(saved)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "it does not hold the model's own scores, weights, head output, output" in said
    result = attnviz.load_result(saved)
    first, *others = result.records
    records = (replace(first, query=torch.roll(first.query, 1, 0)), *others)
    file = tmp_path / "forged.safetensors"
    replace(result, records=records, agreement=forged(result.agreement, records)).save(file)
    said = "NOT VERIFIED: differs from the model's own attention first at encoder layer 0, query"
    assert said in attnviz.load_result(file).checked_agreement.summary()
    for command in (
        ["verify"],
        ["heatmap"],
        ["steps", "--layer", "0"],
        ["view", "-o", "page.html"],
    ):
        assert run([*command, "--result", str(file)]) == 5, command
        printed = capsys.readouterr()
        assert said in " ".join((printed.err + printed.out).split())


@pytest.mark.parametrize("kind", ["result", "map"])
def test_a_file_without_digests_is_not_verified(kind, saved, tmp_path):
    """A forger of a file renews its SHA-256, and leaves out what knows the numbers."""
    result = attnviz.load_result(saved)
    if kind == "map":
        result = attnviz.attention_map(result, layer=1, head=2)
    other = replace(result.agreement, digests={}, digest=None)
    if kind == "result":
        assert replace(result, agreement=other).agreement.summary() == ALTERED
    object.__setattr__(result, "agreement", other)
    result.save(tmp_path / "forged.safetensors")
    again = attnviz.load_result(tmp_path / "forged.safetensors")
    assert again.checked_agreement.summary() == ALTERED


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_digest_shows_every_kind_of_change(dtype):
    numbers = torch.rand(2**20 + 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    across_blocks = torch.cat([numbers[2**20 :], numbers[2**20 - 64 :][: 2**20]])
    swapped = numbers[[1, 0, *range(2, len(numbers))]]
    assert digest(numbers) == digest(numbers.clone())
    for changed in (-numbers, 2 * numbers, numbers.flip(0), swapped, across_blocks):
        assert digest(changed) != digest(numbers)


def test_a_digest_does_not_depend_on_strides():
    numbers = torch.arange(12).view(3, 4)
    assert digest(numbers.T) == digest(numbers.T.contiguous())
    assert digest(numbers[1:2, 3]) == digest(torch.tensor([7]))  # a number of a column


def test_every_field_of_a_result_is_bound_to_its_report(small):
    result = attnviz.shift("train", TEXT, model=small)
    split = result.decomposition
    for other in (
        replace(result, at=3),
        replace(result, decomposition=replace(split, total=5 * split.total)),
        replace(result, provenance=replace(result.provenance, text="another text")),
    ):
        assert other.checked_agreement.summary() == ALTERED


def test_the_text_and_the_set_of_attentions_are_bound_too(small):
    result, other = small.attend([TEXT, "my dog ate the homework"])
    for changed in (
        replace(result, provenance=replace(result.provenance, text="my dog ate the homework")),
        replace(result, provenance=replace(result.provenance, model="gpt2")),
        replace(result, records=other.records, agreement=other.agreement),
        replace(result, records=result.records[:2]),
        replace(result, records=result.records[:1] * 6),
        replace(result, records=result.records[::-1]),
    ):
        assert changed.checked_agreement.summary() == ALTERED
        assert changed.stack().checked_agreement.summary() == ALTERED
