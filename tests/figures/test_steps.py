"""The steps figure: every stage is present, the word is framed, faults are prominent."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from readable_text import LIGHT, visible_texts

import attnviz


@pytest.fixture(scope="module")
def steps(train):
    return attnviz.steps(train, layer=5, head=3, word="train")


@pytest.fixture(scope="module")
def figure(steps):
    """The figure of all stages, only to look at."""
    return attnviz.plot.steps(steps)


def meshes(figure):
    return [mesh for axes in figure.axes for mesh in axes.collections if isinstance(mesh, QuadMesh)]


def texts(figure):
    return [text.get_text() for text, _ in visible_texts(figure)]


def test_every_stage_is_drawn_with_its_numbers(steps, figure):
    drawn = [mesh.get_array().data for mesh in meshes(figure)]
    for stage in steps.stages:
        assert any(
            numbers.shape == tuple(stage.values.shape)
            and np.allclose(numbers, stage.values.numpy(), atol=1e-6)
            for numbers in drawn
        ), stage.name
    said = texts(figure)
    assert sum(text.startswith("agrees to ") for text in said) == len(steps.stages) - 1


def test_the_row_of_the_word_and_the_part_of_the_head_are_framed(steps, figure):
    frames = [
        (axes, patch)
        for axes in figure.axes
        for patch in axes.patches
        if isinstance(patch, Rectangle) and to_hex(patch.get_edgecolor()) == LIGHT.claim
    ]
    rows = [patch for _, patch in frames if patch.get_height() == 1]
    # X, Q, three maps, A, heads, output; keys have separate rows. And the key that adds most.
    (claimed,) = [patch for patch in rows if patch.get_y() != steps.row]
    assert len(rows) == 9
    assert claimed.get_y() == float(steps.shares.argmax())
    (part,) = [patch for _, patch in frames if patch.get_height() == 9]
    assert (part.get_x(), part.get_width()) == (96, 32)


def test_the_attention_vector_adds_up(steps):
    figure = attnviz.plot.attention_vector(steps)
    matrices = [mesh.get_array().data for mesh in meshes(figure)]
    (total,) = [m for m in matrices if m.shape == (1, 32)]
    brought = [m for m in matrices if m.shape == (9, 32)][1]
    vector = steps["A"].values[steps.row].numpy()
    assert np.allclose(brought.sum(0), vector, atol=1e-6)
    assert np.allclose(total[0], vector, atol=1e-6)
    shares = [text for text in texts(figure) if text.endswith("%")]
    assert shares[-1] == "100%"
    assert len(shares) == 10


def test_many_keys_are_grouped_and_still_add_up(long):
    steps = attnviz.steps(long, layer=2, head=3)
    figure = attnviz.plot.attention_vector(steps)
    matrices = [mesh.get_array().data for mesh in meshes(figure)]
    (total,) = [m for m in matrices if m.shape == (1, 32)]
    assert np.allclose(total[0], steps["A"].values[steps.row].numpy(), atol=1e-6)
    assert f"{len(steps.keys) - 11} others" in texts(figure)


def test_a_stage_that_differs_or_was_not_compared_says_so(steps):
    stages = [
        replace(stage, passed=False) if stage.name == "K" else stage for stage in steps.stages
    ]
    stages = [
        replace(stage, difference=None, passed=None, why_not="not compared")
        if stage.name == "V"
        else stage
        for stage in stages
    ]
    said = texts(attnviz.plot.steps(replace(steps, stages=tuple(stages))))
    assert any(text.startswith("DIFFERS by ") for text in said)
    assert "not compared" in said
