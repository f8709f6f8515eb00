"""What was found on this machine. It can be shown where torch cannot be imported."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

from attnviz.errors import printable
from attnviz.runtime import Printed

_GOOD, _ADVICE, _BROKEN = ("✓", "green"), ("–", "yellow"), ("✗", "bold red")


@dataclass(frozen=True)
class Finding:
    """One thing that attnviz uses."""

    group: str  # "packages", "device", "models" or "extras"
    name: str
    found: str  # what is there, or what it is for
    remedy: str = ""  # how to get it, in one line; empty if there is nothing to do
    is_broken: bool = False  # whether attnviz cannot work without it


@dataclass(frozen=True)
class DoctorResult(Printed):
    """What of attnviz works on this machine, what is missing, and how to install it.

    Its `findings` are in groups: packages, device, models and extras.

    Examples
    --------
    >>> ray = Finding("extras", "ray", "", "pip install 'attnviz[survey]'")
    >>> DoctorResult((ray,)).works  # as attnviz.doctor() returns it
    True
    """

    findings: tuple[Finding, ...]

    @property
    def works(self) -> bool:
        """Whether all that attnviz cannot do without is there."""
        return not any(finding.is_broken for finding in self.findings)

    @property
    def headline(self) -> str:
        """Whether attnviz works here, and if not, because of what."""
        if self.works:
            return "attnviz works on this machine."
        broken = dict.fromkeys(one.name for one in self.findings if one.is_broken)
        return f"attnviz cannot work on this machine: see {', '.join(broken)}."

    def about(self) -> dict[str, Any]:
        """Return everything as types of JSON."""
        return {"works": self.works, "findings": [asdict(finding) for finding in self.findings]}

    def __repr__(self) -> str:
        return f"DoctorResult({self.headline!r}, {len(self.findings)} findings)"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for group, findings in groupby(self.findings, lambda finding: finding.group):
            columns = Column(), Column(no_wrap=True), Column(overflow="fold")
            table = Table.grid(*columns, padding=(0, 2, 0, 0))
            for finding in findings:
                mark = _BROKEN if finding.is_broken else _ADVICE if finding.remedy else _GOOD
                text = Text(", ".join(map(printable, finding.found.split(", "))))
                if finding.remedy:
                    text.append(f"\n→ {printable(finding.remedy)}", "cyan")
                table.add_row(Text(*mark), finding.name, text)
            yield Text(group, "bold")
            yield table
            yield Text()
        yield Text(self.headline, "bold green" if self.works else "bold red")
