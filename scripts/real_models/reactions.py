"""Atom maps of chemical reactions, from attention weights and as published."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem

_NEIGHBORS = 90.0  # times as likely, next to a pair of atoms that is already mapped


def published_maps(file: Path) -> Iterator[tuple[str, dict[int, int]]]:
    """Yield reactions in canonical SMILES, and which reactant atom each product atom comes from.

    They are in the first test of the package. Atoms are numbered in the order of the SMILES.
    """
    source = ast.parse(file.read_text("utf-8"))
    for node in ast.walk(source):
        if isinstance(node, ast.FunctionDef) and node.name == "test_example_maps":
            for text in re.findall(r"'mapped_rxn': '([^']+)'", ast.unparse(node)):
                yield _without_numbers(text)


def _without_numbers(mapped: str) -> tuple[str, dict[int, int]]:
    """Return the canonical reaction of a mapped one, and the map."""
    sides = []
    for side in mapped.split(">>"):
        parts, numbers = [], []
        for smiles in side.split("."):
            molecule = Chem.MolFromSmiles(smiles)
            own = [atom.GetAtomMapNum() for atom in molecule.GetAtoms()]
            for atom in molecule.GetAtoms():
                atom.SetAtomMapNum(0)
            parts.append(Chem.MolToSmiles(molecule))
            order = molecule.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"]
            numbers += [own[place] for place in order]
        sides.append((".".join(parts), numbers))
    (reactants, origins), (products, targets) = sides
    maps = {
        atom: origins.index(number)
        for atom, number in enumerate(targets)
        if number and number in origins
    }
    return f"{reactants}>>{products}", maps


def map_atoms(reaction: str, tokens: list[str], weights: NDArray[np.float64]) -> dict[int, int]:
    """Return which reactant atom each product atom comes from, as RXNMapper decides it.

    The weights of both directions are added. The pair of atoms of one element with the largest
    share is mapped first, each atom once, and pairs next to mapped ones become more likely.
    """
    reactants, products = (
        Chem.MolFromSmiles(side, sanitize=False) for side in reaction.split(">>")
    )
    arrow = tokens.index(">>")
    atoms = [place for place, token in enumerate(tokens) if _is_atom(token)]
    first = [place for place in atoms if place < arrow]
    second = [place for place in atoms if place > arrow]
    both = weights[np.ix_(second, first)] + weights[np.ix_(first, second)].T
    elements = [
        np.array([atom.GetAtomicNum() for atom in side.GetAtoms()])
        for side in (products, reactants)
    ]
    both = both * (elements[0][:, None] == elements[1])
    nearby = [Chem.GetAdjacencyMatrix(side).astype(bool) for side in (products, reactants)]
    factors, mapped = np.ones_like(both), {}
    for _ in second:
        shares = both * factors
        shares = shares / np.maximum(shares.sum(1, keepdims=True), 1e-300)
        target, origin = np.unravel_index(shares.argmax(), shares.shape)
        if shares[target, origin] < 1e-8:
            break
        mapped[int(target)] = int(origin)
        factors[np.ix_(nearby[0][target], nearby[1][origin])] *= _NEIGHBORS
        factors[target], factors[:, origin] = 0.0, 0.0
    return mapped


def _is_atom(token: str) -> bool:
    return token not in ("[CLS]", "[SEP]") and any(map(str.isalpha, token))
