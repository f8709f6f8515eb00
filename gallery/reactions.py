"""Reactions with published maps of their atoms, and drawn molecules, for `fig21_atoms.py`."""

import seaborn as sns
from matplotlib.patches import Circle
from rdkit import Chem
from rdkit.Chem import rdDepictor

CHARGES = {-1: "⁻", 0: "", 1: "⁺"}
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

# From the tests of rxnmapper 0.4.3 (MIT). Numbers say which atom of the reactants each atom of the
# product comes from; atoms are counted in the order of the SMILES.
PUBLISHED = {
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F": (
        0, 1, 2, 3, 15, 14, 13, 12, 11, 10, 9,
    ),
    "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12": (
        12, 11, 10, *range(13, 30),
    ),
    "C=CCN=C=S.CNCc1ccc(C#N)cc1.NNC(=O)c1cn2c(n1)CCCC2"
    ">>C=CCn1c(-c2cn3c(n2)CCCC3)nnc1N(C)Cc1ccc(C#N)cc1": (
        0, 1, 2, 3, 19, *range(21, 30), 18, 17, 4, 7, 6, *range(8, 17),
    ),
}  # fmt: skip


def atoms_of(tokens):
    """Return the places of the atoms among tokens, of the reactants and of the product."""
    arrow, special = tokens.index(">>"), ("[CLS]", "[SEP]", "[PAD]")
    atoms = [n for n, t in enumerate(tokens) if t not in special and any(map(str.isalpha, t))]
    return [n for n in atoms if n < arrow], [n for n in atoms if n > arrow]


def draw_reaction(product_ax, reactants_ax, reaction, origins, names):
    """Draw the molecules of a reaction, and return the labels of both sides' atoms.

    Each atom of the product has the number and the color of the atom that it comes from; the
    letter C is left out, as chemists do. Reactants are above the columns of a map of their atoms,
    and their names below them.
    """
    reactants, product = reaction.split(">>")
    palette = sns.husl_palette(len(origins), s=0.85, l=0.78)
    numbers = {atom: number for number, atom in enumerate(origins)}
    colors = [palette[numbers[n]] if n in numbers else "0.92" for n in range(60)]
    signs = [f"{numbers[n] + 1}" if n in numbers else "" for n in range(60)]
    labels = []
    for part, name in zip(reactants.split("."), names, strict=True):
        middle = len(labels) + Chem.MolFromSmiles(part).GetNumAtoms() / 2
        labels += _draw_molecule(reactants_ax, part, (middle, 0), colors, signs, len(labels))
        reactants_ax.text(middle, -2.6, name, ha="center", va="center", color="0.35")
    reactants_ax.set(xlim=(0, len(labels)), ylim=(-2.9, 1.9))
    own = [f"{n + 1}" for n in range(len(origins))]
    return _draw_molecule(product_ax, product, (0, 0), palette, own, 0), labels


def _draw_molecule(ax, smiles, center, colors, signs, first):
    """Draw a molecule in units of a bond, and return the labels of its atoms."""
    molecule = Chem.MolFromSmiles(smiles)
    rdDepictor.Compute2DCoords(molecule, canonOrient=True)
    places = molecule.GetConformer().GetPositions()[:, :2] / 1.5
    places += center - (places.max(0) + places.min(0)) / 2
    Chem.Kekulize(molecule)
    for bond in molecule.GetBonds():
        ends = places[[bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()]].T
        order = bond.GetBondTypeAsDouble()
        ax.plot(*ends, color="0.5", linewidth=3 * order - 2, zorder=1)
        if order == 2:
            ax.plot(*ends, color="white", linewidth=1.6, zorder=1)
    labels = []
    for n, (atom, place) in enumerate(zip(molecule.GetAtoms(), places, strict=True), first):
        symbol, number = atom.GetSymbol(), signs[n].translate(RAISED)
        labels.append(symbol + (number or CHARGES[atom.GetFormalCharge()]))
        written = signs[n] if symbol == "C" else labels[-1]
        ax.add_patch(Circle(place, 0.42, color=colors[n], linewidth=0, zorder=2))
        ax.text(*place, written, fontsize=6, ha="center", va="center", zorder=3)
    ax.set(aspect="equal", xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    return labels
