"""Whether another tool's weights are those that attnviz finds, and the first head that differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from torch import Tensor

from attnviz.figures.claims import quoted
from attnviz.results import AgreementReport, Provenance
from attnviz.results.base import Columns, Result, Rules, Savable, column, doc, documented, proof
from attnviz.results.text import dim, ranges
from attnviz.runtime import Printed


def name_layers(layers: Sequence[int]) -> str:
    """Return the name of some layers: "layer 3", "layers 0–5"."""
    return f"layer{'s' * (len(layers) > 1)} {ranges(layers)}"


@dataclass(frozen=True)
class Mismatch(Savable):
    """The largest difference of the first head that differs."""

    layer: int
    head: int
    row: int  # the position of the query
    column: int  # that of the key
    query: str  # their tokens
    key: str
    theirs: float  # the weight of the other tool
    ours: float  # that of attnviz


@documented
class CheckResult(Printed, Result):
    """Another tool's weights beside those of attnviz, head by head.

    There are K heads, in the order of layers.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station")
    >>> weights = result.weights()
    >>> weights[2, 4] *= 0.9
    >>> report = attnviz.check(weights, result)
    >>> report.first.layer, report.first.head
    (2, 4)
    >>> figure = report.plot()
    """

    layers: tuple[int, ...] = doc("The layer of each head.")
    heads: tuple[int, ...] = doc("The number of each head in its layer.")
    differences: Tensor = doc("The largest difference of a weight of each head, (K,), float64.")
    tolerances: Tensor = doc("The largest that passes, (K,).")
    agree: Tensor = doc(
        "Whether each head agrees, (K,), bool. Beside the difference counts the slope of the log "
        "weights, which a wrong scale changes."
    )
    first: Mismatch | None = doc("Where the first head that differs does so most.")
    hints: tuple[str, ...] = doc("What exactly explains the difference of its layer, if known.")
    notes: tuple[str, ...] = doc("What could go unnoticed.")
    agreement: AgreementReport = doc("That of attnviz's own weights.")
    provenance: Provenance = doc("The model and the text.")

    def __repr__(self) -> str:
        first = self.first
        outcome = "agrees" if first is None else f"differs first in head {first.layer}.{first.head}"
        return f"CheckResult({self.provenance.model}, {len(self)} heads, {outcome})"

    def _rules(self) -> Rules:
        K = len(self.layers)
        arrays = (self.differences, self.tolerances, self.agree)
        yield "a number for each head", len(self.heads) == K > 0
        yield "a difference for each head", all(array.shape == (K,) for array in arrays)
        yield "a head that differs, or none", (self.first is None) == bool(self.agree.all())

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def agrees(self) -> bool:
        """Whether every head agrees."""
        return self.first is None

    @property
    def where(self) -> str:
        """The layers that were compared."""
        return name_layers([*dict.fromkeys(self.layers)])

    def summary(self) -> str:
        """Return the outcome as one sentence."""
        if self.first is None:
            largest = self.differences.max().item()
            differ = f"differ from attnviz's by at most {largest:.1e}"
            by = differ if largest else "are attnviz's exactly"
            return f"agrees: {len(self)} heads of {self.where} {by}"
        where = self.first
        failed = len(self) - int(self.agree.sum())
        return (
            f"DIFFERS first in head {where.layer}.{where.head}, from {quoted(where.query)} to "
            f"{quoted(where.key)}: {where.theirs:.4g} instead of {where.ours:.4g}; "
            f"{failed} of {len(self)} heads differ"
        )

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the differences, the tolerances, and which heads agree, (K,) each."""
        agree = self.agree.to(torch.uint8)
        return {"differences": self.differences, "tolerances": self.tolerances, "agree": agree}

    def labels(self) -> dict[str, list[str]]:
        """Return the names of the heads: layer.head."""
        names = zip(self.layers, self.heads, strict=True)
        return {"head_names": [f"{layer}.{head}" for layer, head in names]}

    def about(self) -> dict[str, Any]:
        """Return the outcome, the first difference, what explains it, and the proof."""
        return {
            "agrees": self.agrees,
            "summary": self.summary(),
            "first": self.first and asdict(self.first),
            "hints": list(self.hints),
            **proof(self),
        }

    def columns_of_table(self) -> Columns:
        """Return one row for each head."""
        return {
            "layer": self.layers,
            "head": self.heads,
            "difference": column(self.differences),
            "tolerance": column(self.tolerances),
            "agrees": self.agree.tolist(),
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.summary(), "green" if self.agrees else "bold red")
        for hint in self.hints:
            yield Text(f"hint: {hint}")
        rows = list(zip(self.layers, self.heads, self.agree.tolist(), strict=True))
        for layer in dict.fromkeys(self.layers):
            of_layer = [(head, agrees) for number, head, agrees in rows if number == layer]
            failed = [str(head) for head, agrees in of_layer if not agrees]
            if len(failed) == len(of_layer):
                yield f"layer {layer}: all heads differ"
            elif failed:
                yield f"layer {layer}: {', '.join(failed)} of {len(of_layer)} heads differ"
        yield Text(f"attnviz's own weights: {self.checked_agreement.summary()}", "dim")
        yield from dim(self.notes)
