"""What `shift` says: which words moved a word, exactly, and what is lost where they are changed."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text
from torch import Tensor

from attnviz.cli.report import console
from attnviz.plot.style import literal
from attnviz.records import ShiftResult

_CHANGED = {
    "mask": "masked",
    "replace": "replaced",
    "knock-out": "unread",
    "delete": "deleted",
    "consensus": "together",
}
_RANKED = 5  # words of each ranking


def print_shift(result: ShiftResult) -> None:
    """Print what each word brought, what changing it takes, and how nearly all adds up."""
    split, account = result.secant, result.ledger
    toward = f" toward {result.regions[0]}, from {result.regions[1]}" if result.regions else ""
    console.print(Text(f"what moved “{literal(result.word)}”{toward}", "bold"))
    console.print(Text(f"compared with {result.reference}", "dim"))
    console.print(_parts(result))
    console.print(
        Text(
            f"the shift: {_said(split.total)}; the parts miss it by {split.error:.0e} of its length"
        )
    )
    for line in (_first(result), _agreement(result)):
        console.print(Text(line)) if line else None
    if len(result.sources) > 1:
        console.print(_rankings(result))
    console.print(
        Text(
            f"from static to contextual, {_said(account.total)}: attention "
            f"{_said(account.attention.sum())}, MLPs {_said(account.mlp.sum())}, biases "
            f"{_said(account.bias)}, the own embedding {_said(account.own)}"
        )
    )
    for line in _places(result):
        console.print(Text(line))
    for note in result.notes:
        console.print(Text(note, "dim"))


def _parts(result: ShiftResult) -> Table:
    """Return a row for each word: what it brought over all paths and directly, and what is lost."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("source", no_wrap=True)
    changed = [_CHANGED[name] for name in result.causal]
    for name in ("all paths", "value", "routing", *changed):
        table.add_column(name, justify="right", no_wrap=True)
    split = result.secant
    columns = [
        result.credit,
        *(result.by_word(part.sum((0, 1))) for part in (split.value, split.routing)),
        *result.causal.values(),
    ]
    for at, word in enumerate(result.words):
        table.add_row(Text(literal(word)), *(_number(column[at]) for column in columns))
    return table


def _number(value: Tensor) -> str:
    return "" if value.isnan() else _said(value)


def _said(value: Tensor | float) -> str:
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def _first(result: ShiftResult) -> str:
    """Say which word moved it most, with what changing that word takes; "" without others."""
    if not result.sources or not result.causal:
        return ""
    at = max(result.sources, key=lambda i: result.credit[i].item())
    lost = ", ".join(f"{_CHANGED[way]} {_number(each[at])}" for way, each in result.causal.items())
    return (
        f"“{literal(result.words[at])}” brought most, {_number(result.credit[at])}; "
        f"where it is changed the word loses: {lost}"
    )


def _agreement(result: ShiftResult) -> str:
    """Say how the split ranks words and heads as interventions do; "" where nothing is ranked."""
    ranks = result.rank_correlations
    said = [f"{_CHANGED[name]} {_said(rho)}" for name, rho in ranks.items()]
    told = [f"rank correlation of all paths with each change: {', '.join(said)}"] if said else []
    if (heads := result.heads_correlation) is not None:
        told.append(f"of heads with patching them: {_said(heads[1])} (r {_said(heads[0])})")
    return "; ".join(told)


def _rankings(result: ShiftResult) -> Table:
    """Return the first words by the split, by what is often drawn, and by what a change takes."""
    common = result.consensus
    way, lost = ("consensus", common) if common is not None else next(iter(result.causal.items()))
    rankings = {
        "by the split": result.credit,
        "by raw attention": result.raw_attention,
        "by rollout": result.rollout,
        f"by what is lost, {_CHANGED[way]}": lost,
    }
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    columns = []
    for name, numbers in rankings.items():
        table.add_column(name)
        first = sorted(result.sources, key=lambda at: -numbers[at].item())[:_RANKED]
        columns.append([Text(literal(result.words[at])) for at in first])
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    return table


def _places(result: ShiftResult) -> list[str]:
    """Say where the word stands between the regions, before and after."""
    if result.path is None or result.distances is None:
        return []
    first, second = result.regions
    path = "  ".join(_said(place) for place in result.path.tolist())
    before, after = result.distances[0], result.distances[-1]
    return [
        f"from {second} (0) to {first} (1), layer by layer: {path}",
        f"distance to {first} {_number(before[0])} before and {_number(after[0])} after, to "
        f"{second} {_number(before[1])} before and {_number(after[1])} after, where theirs is 1",
    ]
