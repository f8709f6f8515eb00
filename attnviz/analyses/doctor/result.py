"""What was found on this machine. It can be shown where torch cannot be imported."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from attnviz.errors import printable
from attnviz.runtime import Printed

if TYPE_CHECKING:
    import pandas as pd

State: TypeAlias = Literal["ok", "advice", "broken"]

_MARKS = {"ok": ("✓", "green"), "advice": ("–", "yellow"), "broken": ("✗", "bold red")}


@dataclass(frozen=True)
class Finding:
    """One thing that attnviz uses."""

    group: str  # "packages", "device", "models", "fonts", "pages" or "extras"
    name: str
    state: State  # "ok", "advice" if attnviz works without it, "broken" if it does not
    found: str  # what is there, or what it is for
    remedy: str = ""  # how to get it, in one line; empty if there is nothing to do


@dataclass(frozen=True)
class DoctorResult(Printed):
    """What of attnviz works on this machine, what is missing, and how to install it.

    Attributes
    ----------
    findings : in groups: packages, device, models, fonts, pages and extras.

    Examples
    --------
    >>> ray = Finding("extras", "ray", "advice", "", "pip install 'attnviz[survey]'")
    >>> checkup = DoctorResult((ray,))  # as attnviz.doctor() returns it
    >>> checkup.works, list(checkup.to_frame()["remedy"])
    (True, ["pip install 'attnviz[survey]'"])
    """

    findings: tuple[Finding, ...]

    @property
    def works(self) -> bool:
        """Whether all that attnviz cannot do without is there."""
        return all(finding.state != "broken" for finding in self.findings)

    @property
    def headline(self) -> str:
        """Whether attnviz works here, and if not, because of what."""
        if self.works:
            return "attnviz works on this machine."
        broken = dict.fromkeys(one.name for one in self.findings if one.state == "broken")
        return f"attnviz cannot work on this machine: see {', '.join(broken)}."

    def about(self) -> dict[str, Any]:
        """Return everything as types of JSON."""
        return {"works": self.works, "findings": [asdict(finding) for finding in self.findings]}

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row for each finding."""
        import pandas as pd

        return pd.DataFrame([asdict(finding) for finding in self.findings])

    def __repr__(self) -> str:
        return f"DoctorResult({self.headline!r}, {len(self.findings)} findings)"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for group, findings in groupby(self.findings, lambda finding: finding.group):
            columns = Column(), Column(no_wrap=True), Column(overflow="fold")
            table, listed = Table.grid(*columns, padding=(0, 2, 0, 0)), []
            for finding in findings:
                found = printable(finding.found)
                if group == "packages" and not finding.remedy:  # these are side by side
                    listed.append(f"{finding.name} {found}")
                    continue
                text = Text(found)
                if finding.remedy:
                    text.append(f"\n→ {printable(finding.remedy)}", "cyan")
                table.add_row(Text(*_MARKS[finding.state]), finding.name, text)
            yield Text(group, "bold")
            if listed:
                yield Padding(Columns(map(Text, listed), padding=(0, 2)), (0, 0, 0, 3))
            if table.row_count:
                yield table
            yield Text()
        yield Text(self.headline, "bold green" if self.works else "bold red")
