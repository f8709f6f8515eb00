"""What functions return that the package uses in several places, by example."""

import numpy as np
import pytest
import torch

from attnviz.analyses.maps.compute import landmarks
from attnviz.analyses.senses import find_word, inflections
from attnviz.analyses.senses.compute import p_value
from attnviz.analyses.steps.plot import _signed_number
from attnviz.analyses.survey.aggregate import _all_signs, divergence
from attnviz.analyses.survey.corpus import batches
from attnviz.analyses.survey.plot import _rounded_up
from attnviz.attribution.methods.weights import multiply_layers
from attnviz.attribution.ranking import consensus, correlate_ranks, spearman
from attnviz.figures.style import _font_for, as_math, power
from attnviz.results import Axis
from attnviz.results.axis import find_words


def test_words_are_found_in_all_their_forms():
    sentence = "Banks lend; the bank's vault is in the Bank."
    assert [sentence[a:b] for a, b in find_word("bank", sentence)] == ["bank", "Bank"]
    assert find_word("bank", "Two banks merged.") == ((4, 9),)
    assert inflections("bat") == ("bats", "bates", "bated", "bating", "batted", "batting")
    assert inflections("file")[:3] == ("files", "filed", "filing")
    assert inflections("try")[-2:] == ("tries", "tried")
    text = "I don't, they do."
    words = ["I", "don't", ",", "they", "do", "."]
    assert [text[a:b] for a, b in find_words(text)] == words


def test_numbers_are_written_in_few_letters():
    assert [_signed_number(1.2, value) for value in (0.0, 0.24, 1.05)] == ["0", "0.2", "1.1"]
    assert _signed_number(0.001, 0.0005) == "5e-04"
    assert [*map(_rounded_up, (0.0031, 17.0, 0.4))] == [0.004, 20.0, 0.4]
    assert [*map(power, (1.6e-6, 1000.0, float("nan")))] == ["2·10⁻⁶", "10³", "nan"]


def test_formulas_and_scripts():
    written = "$\\mathrm{softmax}(Q K^{\\mathsf{T}} / \\sqrt{32})$"
    assert as_math("softmax(Q Kᵀ / √32)") == written
    assert as_math("X W^Q + b^Q") == "$X W^{Q} + b^{Q}$"
    fonts = ["Noto Sans CJK", "Noto Sans Arabic", "Noto Emoji"]
    assert [*map(_font_for, "火ع🍕")] == fonts


def test_ranks():
    effects = {"mask": torch.tensor([1.0, 3.0]), "delete": torch.tensor([30.0, 10.0])}
    assert consensus(effects, [0, 1]).tolist() == pytest.approx([11, 11])
    tied = torch.tensor([1.0, 2.0, 3.0, 3.0]), torch.tensor([0.0, 5.0, 6.0, 6.0])
    assert spearman(*tied) == pytest.approx(1)
    draws = torch.tensor([[0.0, 5.0, 6.0], [3.0, 2.0, 1.0]])
    rhos = correlate_ranks(torch.tensor([1.0, 2.0, 3.0]), draws)
    assert rhos.tolist() == pytest.approx([1, -1])


def test_statistics():
    assert p_value(0.9, torch.tensor([0.5, 0.4, 0.9])) == 0.5
    assert np.array_equal(_all_signs(2), [[1, -1], [1, 1]])
    rows = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    assert divergence(*rows).tolist() == pytest.approx([1, 0])
    flow = multiply_layers([torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])])
    assert flow.tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_parts_of_texts():
    assert batches([5, 2, 9, 2], tokens=10) == [[1, 3], [0], [2]]
    marks = landmarks(Axis.numbered(2345), 0, 2345)
    assert [mark.position for mark in marks] == [0, 500, 1000, 1500, 2000]
