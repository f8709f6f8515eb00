"""Methods that read late weights of a classifier of reactions find the atoms that react."""

import json

import numpy as np
import pytest
import torch
from faithfulness import reactions
from fetched import load
from real_models.rxnfp import CLASSES

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def scored():
    """One held-out reaction of every second class, by the methods that only read weights."""
    model, seen = load("rxnfp", torch.float32), {}
    for entry in json.loads(reactions.FILE.read_text("utf-8"))["reactions"]:
        seen.setdefault(entry["class"], []).append(entry)
    of_classes = [*seen.values()][::2]
    return [reactions.score(model, of_class[-1], len(of_class) - 1) for of_class in of_classes]


def test_the_class_is_that_of_the_template(scored):
    assert [one.predicted for one in scored] == [CLASSES[one.number] for one in scored]
    assert min(one.probability for one in scored) > 0.99


def test_the_late_rollout_names_the_center_and_all_layers_name_it_less(scored):
    auc = {name: np.mean([one.aucs[name] for one in scored]) for name in reactions.FAST}
    assert auc["late-rollout"] > 0.93
    assert auc["late-rollout"] > auc["rollout"] + 0.04
    assert auc["raw-attention"] > 0.85
