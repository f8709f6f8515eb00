"""A small corpus for the head statistics: repeated tokens, commas, texts of different lengths."""

import pytest

import attnviz
from tests.analyses.survey.english import sentences

TEXTS = [
    "the train left the station on time, and nobody noticed.",
    "She sat by the bank of the river.",
    "my sister saw the cat and the cat saw my sister again",
    "Rain.",
    "an old man, a young woman, a small dog and a bird waited for the train to the north",
    "the committee that met on Monday described the letter before the meeting started, as always.",
    "I love apple phones",
    "a red apple and a green apple lay on the table, and a red apple fell",
] * 5


@pytest.fixture(scope="session")
def texts():
    """Return forty texts, eight of them distinct."""
    return TEXTS


@pytest.fixture(scope="session")
def found(texts, model, tmp_path_factory):
    """Return the survey of the bundled model on 128 texts, and its folder."""
    folder = tmp_path_factory.mktemp("survey")
    return attnviz.survey([*texts[:8], *sentences(120)], model=model, out=folder), folder
