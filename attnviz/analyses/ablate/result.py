"""What the output of a model loses without each head, or each set of heads."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from torch import Tensor

from attnviz.analyses.explain.result import UNITS
from attnviz.attribution.ranking import PRINTED, RANKABLE, spearman
from attnviz.results import AgreementReport, Provenance
from attnviz.results.base import Columns, Result, Rules, described, doc, documented, proof
from attnviz.results.text import counted, dim, literal, plain_table, signed

_LEVEL = 0.05  # how often an interval misses the mean
_UNITS = UNITS | {"vector": "of its length"}


@documented
class AblationResult(Result):
    """What the output of a model loses without each of S sets of heads, in N texts.

    Examples
    --------
    >>> import attnviz
    >>> lost = attnviz.ablate("the train left the station", word="train")
    >>> [lost.names[index] for index in lost.strongest[:3]]
    ['0.1', '5.10', '5.7']
    >>> figure = lost.plot()
    """

    sets: tuple[tuple[tuple[int, int], ...], ...] = doc("Heads ablated together: (layer, head).")
    layers: int = doc("How many layers the model has.")
    heads: int = doc("How many heads each of its layers has.")
    lost: Tensor = doc(
        "The number in the unchanged text minus the number without the heads, (N, S): of the "
        "log-probability in nats, of the logit or the difference of logits, or how far the vector "
        "of the word moved, as a share of its length."
    )
    divergence: Tensor = doc(
        "The Kullback–Leibler divergence of the prediction without the heads from the prediction, "
        "in nats, (N, S). NaN for a vector."
    )
    estimate: Tensor = doc(
        "What would be lost to first order, from one gradient for each text, (N, S). NaN where "
        "there is none: for a vector, a direct effect, and attention to a word."
    )
    texts: tuple[str, ...] = doc("The texts.")
    targets: tuple[str, ...] = doc("The token, class or word that is measured in each text.")
    quantity: str = doc(
        'What is measured: "log-probability", "difference" (of logits), "vector", or the "logit" '
        "of a classifier whose classes are no distribution."
    )
    how: str = doc("What happened to the heads.")
    condition: str = doc("The same in a headline, with {heads} for their names.")
    effect: str = doc('"total" or "direct".')
    notes: tuple[str, ...] = doc("What a caption should say besides.")
    agreement: AgreementReport = doc("The attention of all texts, and the outputs before ablation.")
    provenance: Provenance = doc("Of the first text.")
    rounding: float | None = doc(
        "How far rounding moves what is measured, in its unit.", later="0.2", default=None
    )

    main_array: ClassVar[str] = "lost"

    def _rules(self) -> Rules:
        shape = len(self.texts), len(self.sets)
        yield "one text and one set of heads or more", min(shape) > 0
        tables = self.lost, self.divergence, self.estimate
        yield "a number of each text and set", all(table.shape == shape for table in tables)
        yield "a target of each text", len(self.targets) == len(self.texts)
        places = [place for one in self.sets for place in one]
        yield "heads in each set", all(self.sets)
        are_known = all(0 <= m < self.layers and 0 <= n < self.heads for m, n in places)
        yield "heads of the model", are_known
        yield "a known quantity", self.quantity in _UNITS

    def __repr__(self) -> str:
        size = f"{counted(len(self.sets), 'ablation')} in {counted(len(self.texts), 'text')}"
        return f"AblationResult({self.provenance.model}: {size}, {self.checked_agreement.verdict})"

    @property
    def unit(self) -> str:
        """The unit of what is lost."""
        return _UNITS[self.quantity]

    @property
    def subject(self) -> str:
        """What is measured, in words."""
        targets = set(self.targets)
        name = f"“{literal(self.targets[0], 24)}”" if len(targets) == 1 else ""
        if self.quantity == "vector":
            return f"the vector of {name or 'the word'}"
        if self.quantity == "difference":
            return f"the lead of {name.replace(' over ', '” over “') or 'the target'}"
        return f"the {self.quantity} of {name or 'the prediction'}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sets: layer.head of each head."""
        return tuple("+".join(f"{layer}.{head}" for layer, head in one) for one in self.sets)

    @property
    def mean(self) -> Tensor:
        """What is lost, the mean over texts, (S,)."""
        return self.lost.mean(0)

    @property
    def intervals(self) -> Tensor:
        """The 95 % intervals of the means, by Student's t over texts, (S, 2). NaN for one text."""
        margin = self._margin(_LEVEL)
        return torch.stack([self.mean.double() - margin, self.mean.double() + margin], dim=1)

    @property
    def is_certain(self) -> Tensor:
        """Whether the mean differs from 0, (S,): by Student's t, corrected for the number of sets.

        One text has no spread: what is measured in it counts. A distance is above 0 in any case,
        so with several texts no set of heads is called certain.
        """
        if not self.is_tested:
            return torch.zeros_like(self.mean, dtype=torch.bool)
        return ~(self.mean.double().abs() <= self._margin(_LEVEL / len(self.sets)))

    @property
    def is_tested(self) -> bool:
        """Whether the effects are tested against 0: distances of several texts are not."""
        return self.quantity != "vector" or len(self.texts) == 1

    def _margin(self, level: float) -> Tensor:
        """Return half of the interval of each mean that misses it at a level, (S,)."""
        from scipy.stats import t

        count = len(self.texts)
        if count == 1:
            return torch.full_like(self.mean, torch.nan, dtype=torch.float64)
        error: Tensor = self.lost.double().std(0) / count**0.5
        return float(t.isf(level / 2, count - 1)) * error

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's ρ of the estimates with what is lost, of the means over texts."""
        if len(self.sets) < RANKABLE or self.estimate.isnan().any():
            return None
        return spearman(self.estimate.mean(0), self.mean)

    @property
    def strongest(self) -> list[int]:
        """The indices of the sets, those that change most first."""
        order: list[int] = self.mean.abs().argsort(descending=True, stable=True).tolist()
        return order

    @property
    def first(self) -> int:
        """The index of the set that the headline names: the certain one that changes most."""
        counts = self.is_certain & (self.mean.abs() >= self.least)
        return ([number for number in self.strongest if counts[number]] or self.strongest)[0]

    @property
    def least(self) -> float:
        """The least change that counts: it is above rounding, and not printed as 0.00."""
        return max(PRINTED, self.rounding or 0.0)

    @property
    def headline(self) -> str:
        """The finding in one sentence."""
        first = self.first
        lost = float(self.mean[first])
        heads = f"head{'s' * (len(self.sets[first]) > 1)} {self.names[first].replace('+', ' and ')}"
        condition = self.condition.replace("{heads}", heads)
        count = len(self.texts)
        mean = "on average " if count > 1 else ""
        subject = f"{self.subject[0].upper()}{self.subject[1:]}"
        if self.mean.abs().max() < self.least:
            one = "set of heads" if any(len(heads) > 1 for heads in self.sets) else "head alone"
            return f"No {one} changes {self.subject} {mean}by {signed(self.least)} {self.unit}"
        is_sure = self.is_certain[first] or not self.is_tested
        doubt = "" if is_sure else f", but not for certain ({count} texts)"
        if self.quantity == "vector":
            return f"{subject} moves {mean}by {lost:.0%} of its length {condition}{doubt}"
        verb = "falls" if lost >= 0 else "rises"
        change = f"{signed(abs(lost))} {self.unit}"
        return f"{subject} {verb} {mean}by {change} {condition}{doubt}"

    def grid(self, numbers: Tensor) -> Tensor | None:
        """Arrange a number of each set (S,) by layer and head, (L, H); None for sets of several."""
        if any(len(one) > 1 for one in self.sets):
            return None
        table = torch.full((self.layers, self.heads), torch.nan, dtype=torch.float64, device="cpu")
        layers, heads = zip(*(one[0] for one in self.sets), strict=True)
        table[layers, heads] = numbers.double()
        return table

    def labels(self) -> dict[str, list[str]]:
        """Return the names of the sets, and the texts."""
        return {"heads": list(self.names), "texts": list(self.texts)}

    def about(self) -> dict[str, Any]:
        """Return what was measured and how, the means, and the proof."""
        return {
            **described(self, "headline targets quantity unit how effect"),
            "sets": [[list(head) for head in one] for one in self.sets],
            "mean": self.mean.tolist(),
            "rank_correlation_of_estimate": self.rank_correlation,
            **proof(self),
        }

    def columns_of_table(self) -> Columns:
        """Return one row for each text and set of heads."""
        N, S = self.lost.shape
        alone = [one[0] if len(one) == 1 else (-1, -1) for one in self.sets]
        return {
            "text": np.repeat(np.arange(N), S),
            "target": np.repeat(np.array(self.targets, dtype=object), S).tolist(),
            "heads": list(self.names) * N,
            "layer": [layer for layer, _ in alone] * N,
            "head": [head for _, head in alone] * N,
            **{name: table.flatten().double().numpy() for name, table in self.to_arrays().items()},
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.headline, "bold")
        yield Text(f"{self.effect} effects: {self.how}", "dim")
        names = (f"lost, {self.unit}", "95 %", "divergence, nats", "estimate")
        table = plain_table(("layer.head",), names, no_wrap=1)
        for index in self.strongest[:10]:
            low, high = map(signed, self.intervals[index].tolist())
            interval = "–" if len(self.texts) == 1 else f"{low} to {high}"
            others = (signed(of[:, index].mean().item()) for of in (self.divergence, self.estimate))
            table.add_row(self.names[index], signed(float(self.mean[index])), interval, *others)
        yield table
        if (rho := self.rank_correlation) is not None:
            what = "rank correlation ρ of the gradient's estimate with what is lost"
            yield Text(f"{what}: {rho:.2f}")
        yield from dim(self.notes)
