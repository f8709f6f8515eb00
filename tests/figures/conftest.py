"""Attention on texts that are hard to draw, from the real model."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

import attnviz

mpl.use("agg")

LONG = (
    "the old station master watched slowly as another crowded train left for the distant northern "
    "coast while passengers waved and children laughed beside piles of luggage because nobody knew "
    "when the next one would finally come home again tonight because"
)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def short(model):
    return attnviz.attend("the train left the station", model=model)


@pytest.fixture(scope="session")
def long(model):
    return attnviz.attend(LONG, model=model)


@pytest.fixture(scope="session")
def odd(model):
    """Words that a renderer could interpret as markup, and a very long word."""
    text = "pay $5 to $6, $$ <b>bold</b> _x ^2 \\frac{1}{2} & 100% #1 " + "x" * 60
    return attnviz.attend(text, model=model)


@pytest.fixture(scope="session")
def one_word(model):
    return attnviz.attend("hello", model=model)


@pytest.fixture(scope="session")
def foreign(model):
    """Scripts that our font lacks, without spaces, as a pair."""
    return attnviz.attend("漢字かな交じり文を読む電車" * 5, pair="हिन्दी 漢字 🚂", model=model)
