"""One head taken apart, in the terminal: its stages, then every key of the word followed."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from attnviz.analyses.steps.result import Stage, StepsResult
from attnviz.formula.attention import HIDDEN
from attnviz.results.labels import literal, selection
from attnviz.terminal.console import console

_NUMBERS = 3  # of the row that is followed
_WIDE = 60  # characters of a terminal that has room for bars
_BAR = 14  # characters of the largest weight


def print_steps(taken: StepsResult) -> None:
    """Print formula, shape, first numbers and agreement of each stage, and what each key adds."""
    where = selection(taken.stack, taken.layer, (taken.head,))
    word = literal(taken.word)
    console.print(Text(f"{where} of {taken.provenance.model}, following “{word}”", "bold"))
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("stage", no_wrap=True)
    table.add_column("formula", overflow="fold")
    table.add_column("shape", no_wrap=True)
    table.add_column(f"row of “{word}”" if len(word) < 12 else "its row", no_wrap=True)
    table.add_column("agrees to", no_wrap=True)
    for stage in taken.stages:
        formula = "given" if stage.why_not == "given" else stage.formula
        table.add_row(stage.name, formula, stage.size, _numbers(stage, taken.row), _proof(stage))
    console.print(table)
    _print_keys(taken)
    for note in taken.notes:
        console.print(Text(note, "dim"))


def _print_keys(taken: StepsResult) -> None:
    """Print for each key its way from the score to what it adds to the attention vector."""
    names = [stage.name for stage in taken.stages if stage.over_keys]
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("key", no_wrap=True)
    for name in names:
        table.add_column(name.removesuffix(" scores"), justify="right", no_wrap=True)
    wide = console.width >= _WIDE
    if wide:
        table.add_column("", no_wrap=True)
    table.add_column("of vector", justify="right", no_wrap=True)
    rows = [taken[name].values[taken.row].tolist() for name in names]
    largest, shares = max(rows[-1]), taken.shares.tolist()
    for key, label in enumerate(taken.keys):
        bar = "█" * round(_BAR * rows[-1][key] / max(largest, 1e-12))
        numbers = [_number(row[key]) for row in rows]
        share = f"{round(100 * shares[key])}%"
        drawn = [Text(bar, "blue")] if wide else []
        table.add_row(Text(literal(label)), *numbers, *drawn, share)
    console.print(table)


def _numbers(stage: Stage, row: int) -> Text:
    """Return the first numbers of the row that is followed; keys have rows of their own."""
    if stage.rows == "key":
        return Text("a row for each key", "dim")
    values = stage.values[row].tolist()
    said = " ".join(f"{_number(value):>5}" for value in values[:_NUMBERS])
    return Text(said + (" …" if len(values) > _NUMBERS else ""))


def _number(value: float) -> str:
    if value < HIDDEN:
        return "-∞"
    value = round(value, 2) + 0.0  # no -0.00
    return f"{value:.2f}" if abs(value) < 10_000 else f"{value:.0e}"


def _proof(stage: Stage) -> Text:
    if stage.difference is None:
        return Text("" if stage.why_not == "given" else "not compared", "dim")
    if stage.passed:
        return Text(f"{stage.difference:.0e}", "green")
    return Text(f"DIFFERS by {stage.difference:.0e}", "bold red")
