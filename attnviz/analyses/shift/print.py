"""What `shift` says: which words moved a word, exactly, and what is lost where they are changed."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text
from torch import Tensor

from attnviz.analyses.shift.result import ShiftResult
from attnviz.results.labels import literal
from attnviz.terminal.console import console

_LONGEST = 14  # letters of a word in a table
_RANKED = 5  # words of each ranking
_NOTHING = 1e-6  # of the largest: not worth a rank


def print_shift(result: ShiftResult) -> None:
    """Print what each word brought, what changing it takes, and how nearly all adds up."""
    toward = f" toward {result.regions[0]}, from {result.regions[1]}" if result.regions else ""
    console.print(Text(f"what moved “{literal(result.word)}”{toward}", "bold"))
    console.print(Text(f"compared with {result.reference}", "dim"))
    for table in _parts(result):
        console.print(table)
    for line in _said(result):
        console.print(Text(line))
    if len(result.sources) > 1:
        console.print(_rankings(result))
    for line in (*_account(result), *_places(result)):
        console.print(Text(line))
    for note in result.notes:
        console.print(Text(note, "dim"))


def _parts(result: ShiftResult) -> Iterator[Table]:
    """Yield a row for each word: what it brought over all paths and directly, and what is lost.

    In two tables where the terminal is too narrow for one.
    """
    split = result.decomposition
    columns = {
        "all paths": result.credit,
        "value": result.by_word(split.value.sum((0, 1))),
        "routing": result.by_word(split.routing.sum((0, 1))),
        **result.causal,
    }
    at_once = len(columns) if console.width >= 12 * len(columns) else 3
    for start in range(0, len(columns), at_once):
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("source", no_wrap=True)
        part = dict(list(columns.items())[start : start + at_once])
        for name in part:
            table.add_column(name, justify="right", no_wrap=True)
        for at, word in enumerate(result.words):
            cells = (_number(column[at]) for column in part.values())
            table.add_row(Text(literal(word, _LONGEST)), *cells)
        yield table


def _number(value: Tensor | float) -> str:
    """Return a number in two decimals; "" where there is none."""
    said = f"{float(value):.2f}".replace("-0.00", "0.00").replace("-", "\N{MINUS SIGN}")
    return said if float(value) == float(value) else ""


def _said(result: ShiftResult) -> Iterator[str]:
    """Say what the columns are, which word brought most, and how far all this can be trusted."""
    split = result.decomposition
    unit = "along the axis" if result.regions else "along the shift"
    at_start = "" if not split.start else f" with {_number(split.start)} that differed at the start"
    yield (
        f"the shift, {unit}: {_number(split.total)}; all paths sum to it (missed by "
        f"{split.credit_error:.0e} of its length), and so do value and routing, what the word "
        f"itself took{at_start} ({split.error:.0e})"
    )
    toward = result.credit * (1 if split.total > 0 else -1)
    at = int(toward.argmax())
    if toward[at] > _NOTHING * split.length:
        lost = [
            f"{way} {_number(each[at])}"
            for way, each in result.causal.items()
            if not each[at].isnan()
        ]
        changed = f"; where it is changed is lost: {', '.join(lost)}" if lost else ""
        name = literal(result.names[at])
        yield f"“{name}” brought most of it, {_number(result.credit[at])}{changed}"
    if ranks := result.rank_correlations:
        told = ", ".join(f"{name} {_number(rho)}" for name, rho in ranks.items())
        yield (
            f"all paths rank {len(result.sources)} words as changing each does, "
            f"in runs of its own, with ρ: {told}"
        )
    if (heads := result.heads_correlation) is not None:
        yield f"the heads agree with patching them: r {_number(heads[0])}, ρ {_number(heads[1])}"


def _rankings(result: ShiftResult) -> Table:
    """Return the first words by the split, by what is often drawn, and by what a change takes."""
    sign = 1 if result.decomposition.total > 0 else -1  # the first brought most of it
    common = result.consensus
    way, lost = ("consensus", common) if common is not None else next(iter(result.causal.items()))
    rankings = {
        "by the split": result.credit * sign,
        "by raw attention": result.raw_attention,
        "by rollout": result.rollout,
        f"by what is lost ({way})": lost * sign,
    }
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    columns = []
    for name, numbers in rankings.items():
        table.add_column(name, no_wrap=True)
        of = {at: numbers[at].item() for at in result.sources}
        least = _NOTHING * max(abs(number) for number in of.values())
        ranked = sorted((at for at in of if abs(of[at]) > least), key=of.__getitem__, reverse=True)
        words = [Text(literal(result.names[at], _LONGEST)) for at in ranked[:_RANKED]]
        columns.append(words)
    for row in range(max(map(len, columns))):
        table.add_row(*(words[row] if row < len(words) else Text() for words in columns))
    return table


def _account(result: ShiftResult) -> Iterator[str]:
    account = result.residual_stream
    yield (
        f"ledger, from the static vector to the end, {_number(account.total)}: attention "
        f"{_number(account.attention.sum())}, MLPs {_number(account.mlp.sum())}, biases "
        f"{_number(account.bias)}, own {_number(account.own)} (what norms made of the static "
        "vector, less it)"
    )


def _places(result: ShiftResult) -> Iterator[str]:
    """Say where the word stands between the regions, before and after."""
    if result.path is None or result.distances is None:
        return
    first, second = result.regions
    path = "  ".join(_number(place) or "–" for place in result.path.tolist())
    yield f"its place from {second} (0) to {first} (1), entering each layer and in the end: {path}"
    before, after = result.distances[0], result.distances[-1]
    if not before.isnan().any():
        told = f"{_number(before[0])} before and {_number(after[0])} after, "
        told += f"to {second} {_number(before[1])} and {_number(after[1])}"
    else:  # the static vectors of one word at one position
        told = f"{_number(after[0])} after, to {second} {_number(after[1])}; before, both are one"
    yield f"its distance, if theirs is 1: to {first} {told}"
