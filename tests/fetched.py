"""The models of `scripts/fetch_models.py`, and inputs for each."""

import os
import sys
from functools import cache
from pathlib import Path

import pytest
from matplotlib import get_data_path

import attnviz
from attnviz.models import NAMED

SCRIPTS = Path(__file__).parents[1] / "scripts"
if str(SCRIPTS) not in sys.path:
    sys.path.insert(0, str(SCRIPTS))

PHOTO = f"{get_data_path()}/sample_data/grace_hopper.jpg"
REACTION = "CC(C)S.Fc1cccnc1F>>CC(C)Sc1ncccc1F"
SENTENCE = "The boat drifted slowly down the river."
HEAVY_CHAIN = "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKG"
REQUIRED = ("smollm2", "whisper-tiny.en", "dinov2-small", "rxnmapper", "rxnfp")  # by .ci/run
SPEECH = ("whisper-tiny.en", "whisper-base")


@cache
def load(name, dtype):
    """Return a model, or skip where it was not fetched.

    ATTNVIZ_MODELS=required forbids to skip those that .ci/run fetches.
    """
    if name in NAMED and not NAMED[name].is_here:
        said = f"run 'python scripts/fetch_models.py {name}'"
        if name in REQUIRED and os.environ.get("ATTNVIZ_MODELS") == "required":
            pytest.fail(said)
        pytest.skip(said)
    return attnviz.load(None if name == "minilm" else name, dtype=dtype)


@cache
def speech():
    """Return a spoken sentence, or skip where espeak-ng is missing."""
    from real_models.source import SourceError
    from real_models.speech import speak

    try:
        return speak(SENTENCE)
    except SourceError as error:
        pytest.skip(str(error))


@cache
def attended(name, dtype, positions, *given):
    """Return what a model attends to in its own inputs, or in those that are given as items."""
    return load(name, dtype).attend(**(dict(given) or inputs(name)), positions=positions)


def inputs(name):
    """Return arguments of `attend`."""
    if name in SPEECH:
        return {"audio": speech().samples, "sampling_rate": 16_000}
    if name == "dinov2-small":
        return {"image": PHOTO}
    texts = {"rxnmapper": REACTION, "rxnfp": REACTION, "antiberty": HEAVY_CHAIN}
    return {"text": texts.get(name, "the train left the station on time")}
