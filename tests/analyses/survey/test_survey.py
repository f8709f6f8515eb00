"""A survey of a corpus: its findings for the bundled model and others, and its errors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from commands import run
from families import tiny
from rich.console import Console

import attnviz
from attnviz import InputError


def test_known_heads_are_found(found):
    result = found
    roles = {str(head): role for head, role in zip(result.heads, result.roles, strict=True)}
    assert roles["0.2"] == "previous token"
    assert roles["1.8"] == "next token"
    assert roles["2.11"] == "previous token"
    at = result.of("previous")
    best = int(result.mean[:, at].argmax())
    assert str(result.heads[best]) == "0.2"
    assert result.low[best, at] > 0.9 > result.even[best, at]
    assert result.p_even[best, at] < 0.01
    assert result.agreement.verdict == "verified"
    assert result.agreement.largest_difference("statistics") < 2e-6
    assert result.compared >= 1
    assert result.texts == 64


def test_statistics_without_a_uniform_baseline_use_shuffled_texts(found):
    result = found
    for name in ("entropy", "most read"):
        at = result.of(name)
        assert result.even[:, at].isnan().all()
        assert result.shuffled[:, at].isfinite().all()
        assert result.p_even[:, at].min() == 1 > 0.01 > result.p_shuffled[:, at].min()


def test_a_model_without_roles_gets_none(texts, tokenizer):
    # Random weights: some heads exceed uniform weights, but none by a quarter.
    model = attnviz.load(tiny("bert", torch.float32), tokenizer=tokenizer)
    result = attnviz.survey(texts[:16], model=model)
    assert not [role for role in result.roles if role and not role.startswith("rests")]


def test_a_statistic_without_data_is_skipped_and_named(found):
    result = found
    at = result.of("separators")
    count, mean = result.count.clone(), result.mean.clone()
    count[:, at], mean[:, at] = 0, torch.nan
    without = replace(result, count=count, mean=mean)
    figure = attnviz.plot.survey(without)
    assert len([ax for ax in figure.axes if ax.images and len(ax.images[0].get_array()) == 6]) == 10
    said = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    assert "No text has tokens for: separators" in said
    console = Console(width=200)
    with console.capture() as printed:
        console.print(without)
    row = next(line for line in printed.get().splitlines() if "separators" in line)
    assert row.split()[1] == row.split()[-1] == "–"


@pytest.fixture(scope="module")
def short(tokenizer):
    """Return a tiny model that reads 64 tokens."""
    return attnviz.load(tiny("gpt2", torch.float32), tokenizer=tokenizer)


def test_a_text_that_is_too_long_is_refused_truncated_or_skipped(texts, short):
    model, corpus = short, [*texts[:4], "word " * 80]
    with pytest.raises(InputError, match=r"text 5: The text has .* at most 64"):
        attnviz.survey(corpus, model=model)
    skipped = attnviz.survey(corpus, model=model, skip_bad=True)
    assert (skipped.texts, skipped.left_out) == (4, (5,))
    cut = attnviz.survey(corpus, model=model, truncate=True)
    assert (cut.texts, cut.left_out, cut.notes[0]) == (5, (), "1 text cut to 64 tokens")


def test_all_texts_that_are_left_out_are_listed(texts, short):
    corpus = [*texts[:4], *[3] * 25, texts[4], "word " * 80, texts[5]]
    result = attnviz.survey(corpus, model=short, skip_bad=True)
    assert result.texts == 6
    assert result.left_out == (*range(5, 30), 31)
    assert result.about()["left_out"] == [*range(5, 30), 31]
    note, _ = result.notes  # the other says that the texts are too few
    assert note.startswith("left out, since it could not be read: 26 texts (5, 6, 7, ")
    assert "23, 24, 6 more), first Text 5 is 3, not a string" in note


def test_as_many_heads_as_statistics_have_the_same_columns(found):
    count = len(found.statistics)
    names = (*found.to_arrays(), "roles", "heads")
    few = replace(found, **{name: getattr(found, name)[:count] for name in names})
    assert [*few.to_frame().columns] == [*found.to_frame().columns]


@pytest.mark.parametrize("corpus", [["She sat down."], ["one two", "three four"]])
def test_one_or_two_texts_give_no_significance(corpus, short):
    result = attnviz.survey(corpus, model=short)
    assert result.mean[:, result.of("self")].isfinite().all()
    assert result.low.isnan().all()
    assert result.p_even.min() == result.p_shuffled.min() == 1.0
    assert set(result.roles) == {""}


def test_single_words_give_no_neighbor_heads(model):
    words = "train cat dog river bank letter rain bird man woman table apple"
    result = attnviz.survey(words.split() * 3, model=model)
    assert not {"previous token", "next token"} & set(result.roles)
    assert result.count[:, result.of("previous")].max() == 0


def test_sinks_leave_less_for_even_weights(texts, tokenizer):
    model = attnviz.load(tiny("gpt-oss", torch.float32), tokenizer=tokenizer)
    # Each query distributes 1 minus the sink evenly over the keys that it may attend to.
    text = attnviz.survey(texts[:1], model=model)
    weights = torch.cat([record.weights() for record in model.attend(texts[0])])
    rows = ~torch.tensor(model.attend(texts[0]).records[0].query_axis.special)
    expected = (weights.sum(-1) / (weights > 0).sum(-1))[:, rows].mean(-1)
    torch.testing.assert_close(text.even[:, text.of("self")].float(), expected)


@pytest.mark.parametrize(
    "address", [pytest.param("127.0.0.1:1", marks=pytest.mark.long), "nowhere"]
)
def test_an_unreachable_cluster_is_reported(tmp_path, monkeypatch, capsys, texts, address, once):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", address)
    (tmp_path / "corpus.txt").write_text("\n".join(texts[:4]))
    assert run(["survey", "corpus.txt", "--engine", "ray"]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert f"No Ray cluster answers at {address}: " in err


# --- the figure marks exactly the heads with significant p-values


P_VALUES = torch.tensor([0.001, 0.009, 0.01, 0.5, 1.0], dtype=torch.float64)


def drawn(seed):
    """Return a p-value for each of 72 heads and 11 statistics."""
    which = torch.randint(len(P_VALUES), (72, 11), generator=torch.Generator().manual_seed(seed))
    return P_VALUES[which]


def panels(figure):
    return [ax for ax in figure.axes if ax.images and ax.images[0].get_array().shape == (6, 12)]


@pytest.fixture(scope="module")
def survey(texts, model):
    return attnviz.survey(texts[:1], model=model)


def test_each_nonsignificant_head_is_faint(survey):
    made = replace(survey, p_even=drawn(0), p_shuffled=drawn(1))
    maps = panels(attnviz.plot.survey(made))
    assert len(maps) == len(made.statistics)
    for at, (ax, name) in enumerate(zip(maps, made.statistics, strict=True)):
        p_values = made.p_shuffled if name in ("entropy", "most read") else made.p_even
        expected = {
            (head.layer, head.head)
            for head, p_value in zip(made.heads, p_values[:, at].tolist(), strict=True)
            if p_value >= 0.01
        }
        faint = np.argwhere(np.asarray(ax.images[0].get_alpha()) < 1)
        assert {(y, x) for y, x in faint.tolist()} == expected


def test_significant_changes_have_a_color(texts, model):
    same = attnviz.compare(texts[:1], models=(model, model))
    change = torch.linspace(-1, 1, 72 * 11, dtype=torch.float64).reshape(72, 11)
    p_value = drawn(2)
    made = replace(same, p_value=p_value[None], change=change[None], apart=torch.rand(72))
    apart, *maps = panels(attnviz.plot.compare(made))
    assert (np.asarray(apart.images[0].get_alpha()) == 1).all()
    for at, ax in enumerate(maps):
        shown, opacity = ax.images[0].get_array(), np.asarray(ax.images[0].get_alpha())
        sure = (p_value[:, at] < 0.01).reshape(6, 12).numpy()
        np.testing.assert_array_equal(opacity, sure.astype(float))
        np.testing.assert_array_equal(shown[sure], change[:, at].reshape(6, 12).numpy()[sure])
    assert len(maps) == 11


def test_the_roles_of_all_heads_and_the_weights_of_named_ones(survey):
    roles = ["previous token", "rests on the first token", "rests on the first token"] + [""] * 69
    made = replace(survey, roles=tuple(roles))
    figure = attnviz.plot.survey(made)
    said = [text.get_text() for text in figure.texts]
    assert " ".join(said[:2]).startswith(
        "3 of 72 heads have a role on 1 text, and 2 of these rest on the first token"
    )
    grid = figure.axes[0]
    colors = {tuple(patch.get_xy()): patch.get_facecolor() for patch in grid.patches}
    assert len(colors) == 72
    assert colors[0, 0] != colors[1, 0] == colors[2, 0] != colors[3, 0]
    assert {"0.0  previous token", "0.1  rests on the first token"} <= set(said)
    bars = figure.axes[1].patches
    weights = [made.mean[0, made.of("previous")].item()]
    weights += sorted(made.mean[1:3, made.of("first")].tolist(), reverse=True)
    np.testing.assert_allclose([bar.get_width() for bar in bars], weights)
