"""One head's way from the input to the output, stage by stage, with numbers and proof."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from attnviz.results.attention_result import Provenance
from attnviz.results.report import AgreementReport


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage of one head.

    Attributes
    ----------
    name : "X", "Q", …, "weights", "output".
    formula : how it follows from the stages before, as in "X W^Q + b^Q".
    values : (rows, columns), CPU, float64; recomputed by attnviz.
    factors : the shapes of the two matrices that are multiplied, or nothing.
    rows : what its rows stand for: queries or keys.
    over_keys : whether its columns are keys, and not features.
    part : (first, end) of the columns that belong to this head, where all heads stand side by side.
    difference : the largest from the model's own value of this head; None where not compared.
    passed : whether it agrees; None where not compared.
    why_not : why it was not compared, in words.
    """

    name: str
    formula: str
    values: Tensor
    factors: tuple[tuple[int, int], ...] = ()
    rows: Literal["query", "key"] = "query"
    over_keys: bool = False
    part: tuple[int, int] | None = None
    difference: float | None = None
    passed: bool | None = None
    why_not: str = ""

    @property
    def size(self) -> str:
        """Rows and columns in words: "7 × 32"."""
        return " × ".join(map(str, self.values.shape))

    @property
    def shape(self) -> str:
        """The shape in words, with the two that are multiplied: "(7 × 384)(384 × 32) → 7 × 32"."""
        if not self.factors:
            return self.size
        return "".join(f"({m} × {n})" for m, n in self.factors) + f" → {self.size}"


@dataclass(frozen=True, eq=False)
class StepsResult:
    """One head's way from X through Q, K, V, scores and weights to the output; one word followed.

    V is recomputed from X, and A from the V that the model had, so that in a model of low precision
    `contributions` add up to A only as nearly as that precision allows.

    Attributes
    ----------
    stages : in order.
    queries, keys : the labels of the m queries and the n keys: tokens, not words.
    row : the query that is followed, word : what it is called.
    stack, layer, head, heads : which head, of how many.
    notes : how the head was chosen, and what the word was split into.
    agreement, provenance : of the result that it comes from.
    """

    stages: tuple[Stage, ...]
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    row: int
    word: str
    stack: str
    layer: int
    head: int
    heads: int
    notes: tuple[str, ...]
    agreement: AgreementReport
    provenance: Provenance

    def __getitem__(self, name: str) -> Stage:
        """Return a stage by its name; KeyError if this head has no such stage."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def __contains__(self, name: str) -> bool:
        """Tell whether there is a stage of this name."""
        return any(stage.name == name for stage in self.stages)

    @property
    def contributions(self) -> Tensor:
        """What each key adds to the word's attention vector: α_j v_j, (n, d_v)."""
        return self["weights"].values[self.row].unsqueeze(-1) * self["V"].values

    @property
    def shares(self) -> Tensor:
        """How much each key adds along the attention vector, (n,): α_j v_j · a / a · a.

        They sum to 1; one is negative where a key adds what the others take away.
        """
        vector = self.contributions.sum(0)
        return self.contributions @ vector / (vector @ vector).clamp(min=1e-300)
