"""Every public name, used as a program uses it. mypy reads this file; nothing of it runs."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import attnviz
from attnviz import plot


def run_a_model(path: Path) -> None:
    """Run a model, and use what it returns."""
    model = attnviz.load("bert-base-uncased", device="cpu", dtype="float32")
    assert_type(model, attnviz.Model)
    result = attnviz.attend("the train left", model=model)
    assert_type(result, attnviz.AttentionResult)
    assert_type(model.attend("the train left"), attnviz.AttentionResult)
    assert_type(attnviz.attend(["the train left", "it rained"]), list[attnviz.AttentionResult])
    assert_type(attnviz.attend([101, 3345, 102]), attnviz.AttentionResult)
    chat = [{"role": "user", "content": "Why?"}]
    assert_type(attnviz.attend(chat), attnviz.AttentionResult)
    with attnviz.record(modules="*.attn") as recording:
        model.attend("the train left")
    assert_type(recording, attnviz.Recording)
    assert_type(recording.result(0), attnviz.AttentionResult)
    assert_type(attnviz.from_weights(np.eye(3), ["a", "b", "c"]), attnviz.AttentionResult)
    assert_type(result.weights(layer=5, head=3), Tensor)
    for record in result:
        assert_type(record, attnviz.AttentionRecord)
    assert_type(result.agreement, attnviz.AgreementReport)
    assert_type(attnviz.verify("the train left"), attnviz.AgreementReport)
    assert_type(result.agreement.summary(), str)
    for streamed in result.streamed:
        assert_type(streamed, attnviz.StreamedAttention)
    attnviz.save_result(result, path, force=True)
    saved = attnviz.load_result(path, attnviz.AttentionResult)
    assert_type(saved, attnviz.AttentionResult)
    summary: attnviz.Savable = attnviz.load_result(path, attnviz.MapSummary)
    summary.save(path)


def take_heads_apart(result: attnviz.AttentionResult) -> None:
    """Look at maps, at all heads, and at one head stage by stage."""
    one = attnviz.attention_map(result, layer=5, head=3)
    assert_type(one, attnviz.AttentionMap)
    assert_type(attnviz.head_maps(result), attnviz.HeadMaps)
    assert_type(attnviz.steps(result, word="train"), attnviz.StepsResult)
    ranking: attnviz.HeadRanking = attnviz.rank_heads(result)
    for ranked in ranking:
        ranked.layer.bit_count()
    found: attnviz.HeadMatches = attnviz.find_heads(result, query="train", key="left")
    for match in found:
        match.head.bit_count()
    assert_type(attnviz.check(np.eye(3), result), attnviz.CheckResult)
    assert_type(plot.heatmap(one), Axes)
    assert_type(plot.heads(result), Figure)
    assert_type(plot.steps(result), Figure)
    assert_type(plot.attention_vector(result, word="train"), Figure)


def analyze(path: Path) -> None:
    """Run each analysis, and draw it."""
    senses = attnviz.senses("bank")
    assert_type(senses, attnviz.SensesResult)
    shift = attnviz.shift("bank", "We sat on the bank of the river.")
    assert_type(shift, attnviz.ShiftResult)
    explained = attnviz.explain("Paris is the capital of")
    assert_type(explained, attnviz.ExplainResult)
    assert_type(attnviz.explain_generation("Paris", generate=2), list[attnviz.ExplainResult])
    ablation = attnviz.ablate("He sat on the bank", word="bank")
    assert_type(ablation, attnviz.AblationResult)
    survey = attnviz.survey(["the train left"], out=path)
    assert_type(survey, attnviz.SurveyResult)
    compared = attnviz.compare(["the train left"], models=["a", "b"])
    assert_type(compared, attnviz.CompareResult)
    example = attnviz.example("phones")
    assert_type(example, attnviz.ExampleResult)
    figures = [
        plot.senses(senses), plot.shift(shift), plot.explain(explained), plot.ablate(ablation),
        plot.survey(survey), plot.compare(compared), plot.example(example), shift.plot(),
        plot.check(attnviz.check(np.eye(3), "the train left")), plot.text(shift),
    ]  # fmt: skip
    assert_type(figures, list[Figure])
    with plot.style(theme="dark"):
        plot.save(plot.add_caption(figures[0], text="A caption."), path)
        plot.save(plot.heatmap(attnviz.attend("the train left")), path)
    assert_type(attnviz.__version__, str)


def show(result: attnviz.AttentionResult) -> None:
    """Make the pages."""
    page = attnviz.view(result, compare=result)
    assert_type(page, attnviz.View)
    page.save("view.html")
    assert_type(page.html, str)
    explored = attnviz.explore(["the train left"])
    assert_type(explored, attnviz.ExploreResult)
    attnviz.view(explored).save("explore.html")
    attnviz.view("the train left").save_live("live")


def look_around() -> None:
    """Ask what there is, and handle what goes wrong."""
    for architecture in attnviz.architectures("bert"):
        assert_type(architecture, attnviz.Architecture)
        architecture.name.upper()
    checkup = attnviz.doctor()
    assert_type(checkup, attnviz.DoctorResult)
    try:
        attnviz.attend("")
    except attnviz.InputError as error:
        assert_type(error.exit_code, int)
    except (attnviz.ModelError, attnviz.OutputError) as error:
        raise RuntimeError from error
    except attnviz.AttnvizError:
        raise attnviz.AttnvizWarning from None
