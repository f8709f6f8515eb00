"""Look at what attnviz uses on this machine."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import requires

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from attnviz.errors import one_line
from attnviz.runtime import NOT_INSTALLED, Printed, version_of

_EXTRAS = {
    "large": "--device-map: models that are too large for one device",
    "fast": "compiled loops, which reduce the maps of long texts faster on the CPU",
    "triton": "compiled kernels, which reduce the maps of long texts on a GPU",
    "survey": "tables of surveys, texts in Parquet files, and Ray clusters",
    "parquet": "results as .parquet files",
    "widget": "the page as a widget in Jupyter",
    "serve": "attnviz serve: the page with a line to type in",
    "models": "scripts/fetch_models.py, in a clone: the models with short names",
}


@dataclass(frozen=True)
class DoctorResult(Printed):
    """Whether attnviz works on this machine, and how to install what is missing.

    Examples
    --------
    >>> DoctorResult(True, "verified", {}, {"cpu": "8 cores"}, {}).devices  # as of attnviz.doctor()
    {'cpu': '8 cores'}
    """

    works: bool  # whether the default model runs and agrees
    proof: str  # how far its attention agrees, or why it does not run
    versions: dict[str, str]  # of attnviz, Python and each required package
    devices: dict[str, str]  # those that torch finds
    extras: dict[str, bool]  # whether all that an extra of attnviz adds is there
    install: str = ""  # the command that installs what is missing

    @property
    def headline(self) -> str:
        """Whether attnviz works here, and if not, why."""
        if self.works:
            return "attnviz works on this machine."
        return "attnviz does not work on this machine: see the proof."

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table.grid(padding=(0, 2, 0, 0))
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        rows = {"versions": versions, **self.devices}
        rows |= {
            f"{'✓' if has else '–'} {name}": _EXTRAS[name] for name, has in self.extras.items()
        }
        for name, found in {**rows, "proof": self.proof}.items():
            table.add_row(name, Text(found))
        yield table
        if self.install:
            yield Text(f"Install what is missing: {self.install}", "cyan")
        yield Text(self.headline, "bold green" if self.works else "bold red")


def doctor() -> DoctorResult:
    """Say what works on this machine, and how to install what is missing.

    Returns
    -------
    DoctorResult
        The versions of the packages, the devices, the extras of attnviz that are there, and whether
        the attention of the default model agrees. It prints as a list.

    Examples
    --------
    >>> import attnviz
    >>> attnviz.doctor().headline  # the result itself prints as a list
    'attnviz works on this machine.'
    """
    from packaging.requirements import Requirement

    system = f"{platform.python_version()} ({platform.system()} {platform.machine()})"
    versions = {"attnviz": version_of("attnviz"), "Python": system}
    wanted, missing = [], set()
    for one in map(Requirement, requires("attnviz") or ()):
        version = version_of(one.name)
        is_there = version != NOT_INSTALLED and one.specifier.contains(version, prereleases=True)
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            versions[one.name] = version
            wanted += [] if is_there else [f"'{one.name}{one.specifier}'"]
        elif not is_there:
            missing |= {extra for extra in _EXTRAS if one.marker.evaluate({"extra": extra})}
    extras = {extra: extra not in missing for extra in _EXTRAS}
    wanted += [f"'attnviz[{','.join(sorted(missing))}]'"] if missing else []
    install = f"pip install {' '.join(wanted)}" if wanted else ""
    devices, proof = _try_out()
    works = proof.startswith("verified")
    return DoctorResult(works, proof, versions, devices, extras, install)


def _try_out() -> tuple[dict[str, str], str]:
    """Return the devices, and the proof of the default model."""
    devices: dict[str, str] = {}
    try:
        import torch

        import attnviz

        devices["cpu"] = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
        for number in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(number)
            devices[f"cuda:{number}"] = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GB"
        if len(devices) == 1 and shutil.which("nvidia-smi"):
            devices["cuda"] = f"torch for {torch.version.cuda or 'CPUs'} finds no GPU. Update the "
            devices["cuda"] += "NVIDIA driver, or install torch for CUDA: pytorch.org."
        return devices, attnviz.verify("the train left the station").summary()
    except Exception as error:  # of torch, transformers or a driver
        return devices, f"the default model does not run: {one_line(error)}"
