"""The benchmark of reaction centers: its frozen reactions, its score, and its two halves."""

import json
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("rdkit")
import reaction_centers
from faithfulness import reactions
from rdkit import Chem
from real_models.rxnfp import CLASSES

ENTRIES = json.loads(reactions.FILE.read_text("utf-8"))["reactions"]


def test_the_frozen_reactions_are_what_the_script_writes():
    assert list(reaction_centers.reactions()) == ENTRIES
    counts = Counter(entry["class"] for entry in ENTRIES)
    assert {*counts} <= {*CLASSES}
    assert len(counts) >= 20
    assert set(counts.values()) == {reaction_centers.EACH}
    assert len({entry["reaction"] for entry in ENTRIES}) == len(ENTRIES) >= 500


@pytest.mark.parametrize(
    ("number", "blocks", "center"),
    [
        # An amide: the carbon and the oxygen that leaves, and the nitrogen, on both sides.
        ("2.1.2", ("O=C(O)c1ccccc1", "NCC"), ["N", "C", "O", "N", "C"]),
        # Boc leaves, and the nitrogen stays.
        ("6.1.1", ("CC(C)(C)OC(=O)N1CCOCC1",), [*"CCCCOCON", "N"]),
        # Both oxygens of a nitro group leave.
        ("7.1.1", ("Cc1ccc([N+](=O)[O-])cc1",), ["N", "O", "O", "N"]),
        # A bond of an alcohol becomes double.
        ("8.1.5", ("OC(C)c1ccccc1",), ["C", "O", "C", "O"]),
    ],
)
def test_the_center_is_that_of_the_textbook(number, blocks, center):
    reaction, places = reaction_centers.react(reaction_centers.TEMPLATES[number][0], blocks)
    sides = map(Chem.MolFromSmiles, reaction.split(">>"))
    atoms = [atom.GetSymbol() for side in sides for atom in side.GetAtoms()]
    assert sorted(atoms[place] for place in places) == sorted(center)


@pytest.mark.parametrize("entry", ENTRIES[::40], ids=lambda entry: entry["class"])
def test_what_is_outside_the_center_keeps_its_neighbors(entry):
    """Without the center, both sides have the same fragments."""
    sides = [Chem.MolFromSmiles(side) for side in entry["reaction"].split(">>")]
    first = sides[0].GetNumAtoms()
    rests = []
    for side, start in zip(sides, (0, first), strict=True):
        editable = Chem.RWMol(side)
        for place in sorted(entry["center"], reverse=True):
            if 0 <= place - start < side.GetNumAtoms():
                editable.RemoveAtom(place - start)
        rest = Chem.MolToSmiles(editable, kekuleSmiles=False)
        rests.append(Counter(rest.split(".")))
    assert rests[0] == rests[1]


def test_a_template_that_fits_in_two_ways_is_refused():
    two_acids = ("O=C(O)CCCCC(C)C(=O)O", "NCC")
    assert reaction_centers.react(reaction_centers.TEMPLATES["2.1.2"][0], two_acids) is None


def test_a_score_that_names_the_center_has_an_auc_of_1_and_ties_one_half():
    center = [True, False, False, True, False]
    assert reactions.auc(np.array([3.0, 1, 0, 2, -1]), center) == 1
    assert reactions.auc(np.array([-3.0, -1, 0, -2, 1]), center) == 0
    assert reactions.auc(np.zeros(5), center) == 0.5
    assert reactions.auc(np.array([1.0, 2, 0, 3, 0]), center) == pytest.approx(5 / 6)


def test_the_halves_share_no_reaction_and_have_each_class_alike():
    scored = [reactions.Scored(entry["reaction"], entry["class"], "", 1.0, {}) for entry in ENTRIES]
    halves = reactions.halves(scored)
    assert not {one.reaction for one in halves[0]} & {one.reaction for one in halves[1]}
    assert Counter(one.number for one in halves[0]) == Counter(one.number for one in halves[1])


def test_the_atoms_of_a_reaction_are_its_tokens_of_letters():
    tokens = ["[CLS]", "O", "=", "[N+]", "(", "[O-]", ")", "c", "1", ">>", "Cl", "[SEP]"]
    assert reactions.atoms_of(tokens) == [1, 3, 5, 7, 10]
