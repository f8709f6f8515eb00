"""Write tests/data/reaction_centers.json: reactions of 22 classes, and the atoms that react.

A template says which bonds of its reactants are broken and formed. It is applied to building blocks
by RDKit, which keeps the origin of each atom, so the center of a reaction is exact: the atoms of
both sides whose bonds change, and those that leave. No model is run and no attribution computed. A
reaction is kept if the template fits in one way only, up to symmetry.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from rdkit import Chem, RDLogger
from rdkit.Chem import AllChem, Mol

FILE = Path(__file__).parents[1] / "tests" / "data" / "reaction_centers.json"
EACH = 24  # reactions of a class


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


ARYL = words(
    "c1ccccc1 c1ccc(C)cc1 c1ccc(OC)cc1 c1cccc(F)c1 c1ccc(C(F)(F)F)cc1 c1ccc2ccccc2c1 c1cccnc1 "
    "c1ccsc1 c1ccc(C(=O)OC)cc1 c1cccc(OC)c1 c1ccc(-c2ccccc2)cc1 c1ccc2c(c1)OCO2 "
    "c1cc(C)cc(C)c1 c1ccc(S(C)(=O)=O)cc1 c1cnc2ccccc2c1 c1ccc(C(C)(C)C)cc1"
)
# These begin with CH2.
ALKYL = words(
    "CCC CCCCC CC(C)C CC1CC1 CCOCC CCCC(=O)OCC Cc1ccccc1 Cc1ccc(OC)cc1 Cc1cccc(F)c1 "
    "CCc1ccccc1 CCCc1ccsc1 CC1CCOCC1 CCC(F)(F)F CC1CCCCC1"
)
# Secondary amines.
CYCLES = words(
    "N1CCCCC1 N1CCOCC1 N1CCN(C)CC1 N1CCCC1 N1CCC(c2ccccc2)CC1 N1CCC(C(=O)OCC)CC1 "
    "N1CCc2ccccc2C1 N1CCC(F)(F)CC1 N1CCN(c2ccccn2)CC1 N1CCC(OC)CC1"
)
KETONES = words(
    "O=C1CCCCC1 O=C1CCOCC1 O=C1CCCC1 O=C1CCN(C)CC1 CC(C)=O CC(=O)c1ccccc1 CC(=O)c1ccc(OC)cc1 "
    "CC(=O)CCc1ccccc1 O=C1CCC(c2ccccc2)CC1 CC(=O)c1cccnc1 CCC(=O)c1ccc(F)cc1 O=C1CCSCC1"
)
# Arenes that react with amines where F is.
ACTIVE = words(
    "c1ccc([N+](=O)[O-])cc1 c1ccc([N+](=O)[O-])cc1C c1ccc(C#N)cc1 c1cc(OC)ccc1[N+](=O)[O-] "
    "c1ncc(C(F)(F)F)cc1 c1ccc(C#N)cc1C(F)(F)F c1ccccc1[N+](=O)[O-] c1ccc(C(=O)OC)cn1"
)


def put(front: str, groups: Sequence[str]) -> list[str]:
    """Return groups with atoms in front of them."""
    return [front + group for group in groups]


AMINES = [*put("N", ALKYL), *CYCLES]
ARENES = [*ARYL, *(f"c9ccc({group})cc9" for group in (*CYCLES, *put("O", ALKYL)))]
ALCOHOLS = put("O", ALKYL)
PHENOLS = put("O", ARYL)
# By the number of the class: a template, and the building blocks of each of its reactants.
TEMPLATES: dict[str, tuple[str, list[list[str]]]] = {
    "1.2.1": (
        "[C;H1:1](=O)[#6:2].[N;!H0;X3;!$(N-C=O):3]>>[C:1]([#6:2])[N:3]",
        [put("O=C", ARYL), AMINES],
    ),
    "1.2.5": (
        "[C:1](=O)([#6:2])[#6:3].[N;!H0;X3:4]>>[C:1]([#6:2])([#6:3])[N:4]",
        [KETONES, AMINES],
    ),
    "1.3.8": ("[c:1]F.[N;!H0;X3:2]>>[c:1][N:2]", [put("F", ACTIVE), AMINES]),
    "1.6.2": ("[CH2:1]Br.[N;!H0;X3:2]>>[C:1][N:2]", [put("Br", ALKYL), CYCLES]),
    "1.7.7": (
        "[CH2:1][OH].[c:2][OH:3]>>[C:1][O:3][c:2]",
        [ALCOHOLS, PHENOLS],
    ),
    "1.7.9": ("[CH2:1]Br.[c:2][OH:3]>>[C:1][O:3][c:2]", [put("Br", ALKYL), PHENOLS]),
    "1.8.5": ("[CH2:1]Br.[SH:2][c:3]>>[C:1][S:2][c:3]", [put("Br", ALKYL), put("S", ARYL)]),
    "2.1.1": (
        "[C:1](=[O:2])Cl.[N;!H0;X3:3]>>[C:1](=[O:2])[N:3]",
        [put("O=C(Cl)", ARYL), AMINES],
    ),
    "2.1.2": (
        "[C:1](=[O:2])[OH].[N;!H0;X3:3]>>[C:1](=[O:2])[N:3]",
        [put("O=C(O)", [*ARYL, *ALKYL]), AMINES],
    ),
    "2.2.3": (
        "[S:1](=[O:2])(=[O:3])Cl.[N;!H0;X3:4]>>[S:1](=[O:2])(=[O:3])[N:4]",
        [put("O=S(=O)(Cl)", ARYL), AMINES],
    ),
    "2.3.1": (
        "[N:1]=[C:2]=[O:3].[N;!H0;X3:4]>>[N:1][C:2](=[O:3])[N:4]",
        [put("O=C=N", ARYL), AMINES],
    ),
    "2.6.1": (
        "[C:1](=[O:2])Cl.[OH:3][#6:4]>>[C:1](=[O:2])[O:3][#6:4]",
        [put("O=C(Cl)", ARYL), [*ALCOHOLS, *PHENOLS]],
    ),
    "2.7.2": (
        "[S:1](=[O:2])(=[O:3])Cl.[OH:4][C:5]>>[S:1](=[O:2])(=[O:3])[O:4][C:5]",
        [put("O=S(=O)(Cl)", ARYL), ALCOHOLS],
    ),
    "3.1.5": ("[c:1]Br.[c:2]B(O)O>>[c:1][c:2]", [put("Br", ARYL), put("OB(O)", ARYL)]),
    "3.3.1": (
        "[c:1][Br,I].[CH:2]#[C:3]>>[c:1][C:2]#[C:3]",
        [[*put("Br", ARYL), *put("I", ARYL)], put("C#C", [*ARYL, *ALKYL])],
    ),
    "6.1.1": (
        "[N:1]C(=O)OC(C)(C)C>>[N:1]",
        [put("CC(C)(C)OC(=O)", [*AMINES, *put("N", ARYL)])],
    ),
    "6.1.3": (
        "[N:1]C(=O)O[CH2]c1ccccc1>>[N:1]",
        [put("c1ccccc1COC(=O)", [*AMINES, *put("N", ARYL)])],
    ),
    "6.3.1": ("[c:1][O:2][CH2]c1ccccc1>>[c:1][O:2]", [put("c1ccccc1CO", ARENES)]),
    "7.1.1": ("[c:1][N+:2](=O)[O-]>>[c:1][N+0:2]", [put("O=[N+]([O-])", ARENES)]),
    "7.2.1": (
        "[C:1](=O)([c:2])[N:3]>>[C:1]([c:2])[N:3]",
        [[f"O=C({amine}){group}" for amine in AMINES for group in ARYL]],
    ),
    "7.3.1": ("[C:1]#[N:2]>>[C:1][N:2]", [put("N#C", [*ARYL, *ALKYL])]),
    "8.1.5": (
        "[C;H1:1]([#6:2])([#6:3])[OH:4]>>[C:1]([#6:2])([#6:3])=[O:4]",
        [put("OC(C)", [*ARYL, *ALKYL])],
    ),
}


def numbered(smiles: list[str]) -> list[Mol]:
    """Return molecules in canonical SMILES order whose atoms carry numbers from 1 on."""
    molecules, number = [], 0
    for text in smiles:
        molecule = Chem.MolFromSmiles(text)
        for atom in molecule.GetAtoms():
            atom.SetIntProp("number", number := number + 1)
        molecules.append(molecule)
    return molecules


def react(template: str, blocks: tuple[str, ...]) -> tuple[str, list[int]] | None:
    """Return a reaction in canonical SMILES and the atoms of its center, in the order of the text.

    None if the template does not fit, or fits in several ways.
    """
    smiles = [Chem.CanonSmiles(block) for block in blocks]
    molecules = numbered(smiles)
    in_order = [molecules[n] for n in sorted(range(len(smiles)), key=smiles.__getitem__)]
    smiles.sort()
    outcomes = set()
    for (made,) in AllChem.ReactionFromSmarts(template).RunReactants(molecules):
        Chem.SanitizeMol(made)
        text, center, order = _center(molecules, made)
        atoms = [atom.GetIntProp("number") for one in in_order for atom in one.GetAtoms()]
        places = (place for place, atom in enumerate([*atoms, *order]) if atom in center)
        outcomes.add((text, tuple(places)))
    if len(outcomes) != 1:
        return None
    ((text, places),) = outcomes
    return f"{'.'.join(smiles)}>>{text}", list(places)


def _center(molecules: list[Mol], made: Mol) -> tuple[str, frozenset[int], tuple[int, ...]]:
    """Return the product's SMILES, the numbers of the center, and those of the product's atoms."""
    for atom in made.GetAtoms():
        origin = molecules[atom.GetIntProp("react_idx")].GetAtomWithIdx(
            atom.GetIntProp("react_atom_idx")
        )
        atom.SetIntProp("number", origin.GetIntProp("number"))
    before = {key: bonds for molecule in molecules for key, bonds in _bonds(molecule).items()}
    after = _bonds(made)
    center = frozenset(number for number, bonds in before.items() if after.get(number) != bonds)
    text = Chem.MolToSmiles(made)
    order = made.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"]
    return text, center, tuple(made.GetAtomWithIdx(n).GetIntProp("number") for n in order)


def _bonds(molecule: Mol) -> dict[int, frozenset[tuple[int, float]]]:
    """Return the bonds of each atom: the number of the other atom, and the order."""
    return {
        atom.GetIntProp("number"): frozenset(
            (bond.GetOtherAtom(atom).GetIntProp("number"), bond.GetBondTypeAsDouble())
            for bond in atom.GetBonds()
        )
        for atom in molecule.GetAtoms()
    }


def reactions() -> Iterator[dict[str, object]]:
    """Yield the reactions of each class in a random order that is always the same."""
    RDLogger.DisableLog("rdApp.*")
    for number, (template, blocks) in TEMPLATES.items():
        pairs = list(product(*blocks))
        random.Random(number).shuffle(pairs)
        kept: dict[str, list[int]] = {}
        for pair in pairs:
            if len(kept) < EACH and (found := react(template, pair)):
                kept.setdefault(*found)
        for reaction, center in kept.items():
            yield {"class": number, "reaction": reaction, "center": center}


def main() -> None:
    """Write the file, a reaction a line."""
    lines = ",\n".join(json.dumps(one) for one in reactions())
    how = " ".join((__doc__ or "").split("\n\n")[1].split())
    FILE.write_text(f'{{"how": {json.dumps(how)},\n"reactions": [\n{lines}\n]}}\n', "utf-8")


if __name__ == "__main__":
    main()
