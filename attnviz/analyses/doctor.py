"""Look at what attnviz uses on this machine. Torch is imported only in a process of its own."""

from __future__ import annotations

import inspect
import itertools
import json
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import requires
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

from attnviz.errors import printable
from attnviz.models import BUNDLED, NAMED
from attnviz.runtime import NOT_INSTALLED, Printed, version_of

_EXTRAS = {
    "large": "--device-map: models that are too large for one device",
    "fast": "compiled loops, which reduce the maps of long texts faster on the CPU",
    "triton": "compiled kernels, which reduce the maps of long texts on a GPU",
    "survey": "surveys of Parquet files, and on a Ray cluster",
    "parquet": "results as .parquet files",
    "xarray": "to_xarray()",
    "widget": "the page as a widget in Jupyter",
    "serve": "attnviz serve: the page with a line to type in",
    "models": "scripts/fetch_models.py, in a clone: the models with short names",
}
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
        for group, findings in itertools.groupby(self.findings, lambda finding: finding.group):
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


def doctor() -> DoctorResult:
    """Say what of attnviz works on this machine, what is missing, and how to install it.

    Returns
    -------
    DoctorResult
        The versions of the packages, the devices, the models that are on this machine, and the
        extras of attnviz. It prints as a list.

    Examples
    --------
    >>> import attnviz
    >>> attnviz.doctor().headline  # the result itself prints as a list
    'attnviz works on this machine.'
    """
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    versions, wanted = _installed("")
    remedy = f"pip install {' '.join(wanted)}" if wanted else ""
    is_broken = NOT_INSTALLED in versions
    findings = [
        Finding("packages", "attnviz", f"{version_of('attnviz')}, {system}"),
        Finding("packages", "required", versions, remedy, is_broken=is_broken),
        *_devices(),
    ]
    for model in (BUNDLED, *NAMED.values()):
        found, remedy = f"in {model.folder}", ""
        if not model.is_here:
            found, remedy = "not on this machine", model.remedy
        is_broken = bool(remedy) and model is BUNDLED
        findings.append(Finding("models", model.name, found, remedy, is_broken=is_broken))
    for extra, purpose in _EXTRAS.items():
        versions, wanted = _installed(extra)
        remedy = f"pip install 'attnviz[{extra}]'" if wanted else ""
        found = purpose if wanted else f"{purpose} ({versions or 'not for this system'})"
        findings.append(Finding("extras", extra, found, remedy))
    return DoctorResult(tuple(findings))


def _installed(extra: str) -> tuple[str, list[str]]:
    """Return the versions of what attnviz requires here, or an extra adds, and what to install."""
    from packaging.requirements import Requirement

    versions, wanted = [], []
    for one in map(Requirement, requires("attnviz") or ()):
        applies = [one.marker is None or one.marker.evaluate({"extra": e}) for e in ("", extra)]
        if applies == [not extra, True]:
            version = version_of(one.name)
            versions.append(f"{one.name} {version}")
            if version == NOT_INSTALLED or not one.specifier.contains(version, prereleases=True):
                wanted.append(f"'{one.name}{one.specifier}'")
    return ", ".join(versions), wanted


def _print_devices() -> None:
    """Print what is found of each device, and the remedy, as JSON; then import transformers."""
    import json
    import os
    import shutil

    import torch

    devices = {"cpu": (f"{torch.get_num_threads()} of {os.cpu_count()} cores", "")}
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        devices[f"cuda:{number}"] = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GB", ""
    if len(devices) == 1 and shutil.which("nvidia-smi"):
        remedy = "Update the NVIDIA driver, or install torch for CUDA: pytorch.org."
        devices["cuda"] = f"torch for {torch.version.cuda or 'CPUs'} finds no GPU", remedy
    print(json.dumps(devices), flush=True)
    import transformers  # noqa: F401


def _devices() -> list[Finding]:
    """Import torch in another process, in which it, transformers or a driver may crash."""
    script = f"{inspect.getsource(_print_devices)}\n{_print_devices.__name__}()"
    # -P keeps the modules of this folder out of its way.
    command = [sys.executable, "-P", "-W", "ignore", "-c", script]
    done = subprocess.run(command, input="", capture_output=True, errors="replace", check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    findings = [Finding("device", n, *f) for line in lines for n, f in json.loads(line).items()]
    if done.returncode:
        name = "transformers" if lines else "torch"
        said = (done.stderr.strip().splitlines() or [f"it ends with code {done.returncode}"])[-1]
        remedy = f"Install it again: pip install --force-reinstall {name}"
        broken = f"cannot be imported: {said}"
        findings.append(Finding("device", name, broken, remedy, is_broken=True))
    return findings
