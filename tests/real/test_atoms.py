"""The head of RXNMapper that maps atoms, on the maps that are published with its package."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fetched import load

GALLERY = Path(__file__).parents[2] / "gallery"
if str(GALLERY) not in sys.path:
    sys.path.insert(0, str(GALLERY))
from reactions import PUBLISHED  # noqa: E402

pytestmark = pytest.mark.real
HEAD = 5


def right(weights, tokens, origins):
    """Return for how many atoms each head gives its largest weight to the atom of origin.

    weights : (layers, heads, T, T). Right is only the published atom, not one of the same element.
    """
    arrow = tokens.index(">>")
    is_atom = np.array([t not in ("[CLS]", "[SEP]") and any(map(str.isalpha, t)) for t in tokens])
    before = np.arange(len(tokens)) < arrow
    to_reactants = np.asarray(weights)[:, :, is_atom & ~before][..., is_atom & before]
    assert to_reactants.shape[2] == len(origins)
    return (to_reactants.argmax(-1) == np.array(origins)).sum(-1)


@pytest.fixture(scope="module")
def ours():
    """How many atoms each head maps, (layers, heads), by the weights of attnviz."""
    model, total = load("rxnmapper", torch.float32), 0
    for reaction, origins in PUBLISHED.items():
        result = model.attend(reaction)
        total = total + right(
            [record.weights().numpy() for record in result],
            list(result.record(0).key_axis.labels),
            origins,
        )
    return total


def test_one_head_maps_atoms_as_published(ours):
    atoms = sum(map(len, PUBLISHED.values()))
    assert atoms == 59
    assert ours[10, HEAD] == 58


def test_the_other_heads_map_about_half_at_most(ours):
    others = np.delete(
        ours, HEAD, axis=1
    )  # layers share parameters, and so head 5 of each is alike
    assert others.max() == 30
    assert (np.delete(others, 2, axis=1) <= 5).all()
