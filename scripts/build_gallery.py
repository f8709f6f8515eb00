"""Draw every figure of the gallery and of the guides, and write the page that shows the gallery.

Each script in gallery/ draws one figure. Its docstring is the title and the caption; the script
computes the values in braces. The pictures of the guides are what their code draws. Only figures
that changed are drawn, unless --all is given.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import runpy
import sys
import textwrap
import time
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import guide_pictures
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import typer
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import attnviz
from attnviz.io import atomic
from attnviz.models import NAMED, NamedModel

ROOT = Path(__file__).parent.parent
GALLERY = ROOT / "gallery"
FORMATS = ("png", "svg")
HEAVY = 2**20  # bytes from which photographs are stored with 256 colors
console = Console(stderr=True, highlight=False)
sys.path.insert(0, str(GALLERY))  # as when a script runs standalone: some share a module there


@dataclass(frozen=True)
class Entry:
    """A drawn figure: its title and caption, and the SHA-256 of its script and of the package."""

    title: str
    caption: str
    script: str
    package: str


def scripts() -> list[Path]:
    """Return the scripts of the gallery, in page order."""
    return sorted(GALLERY.glob("fig*.py"))


def models_of(script: Path) -> list[NamedModel]:
    """Return the models that a script loads by their short names."""
    return models_in(script.read_text(encoding="utf-8"))


def models_in(source: str) -> list[NamedModel]:
    """Return the models that code names, as strings or behind --model."""
    return [m for name, m in NAMED.items() if f'"{name}"' in source or f"--model {name}" in source]


def sha256(files: Iterable[Path]) -> str:
    """Return the SHA-256 of several files, concatenated in sorted order."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()


def package() -> str:
    """Return the SHA-256 of attnviz and of the modules that the scripts share."""
    sources = [p for p in (ROOT / "attnviz").rglob("*") if p.suffix in (".py", ".json")]
    return sha256([*sources, *(set(GALLERY.glob("*.py")) - set(scripts()))])


def draw(script: Path) -> tuple[Figure, str, str]:
    """Run a script; return its figure, title and caption. Warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = runpy.run_path(str(script))
    if not isinstance(figure := names.get("fig"), Figure):
        raise TypeError(f"{script.name} must assign a Figure to `fig`, not {figure!r}.")
    title, _, caption = (names["__doc__"] or "").strip().partition("\n")
    caption_text = caption.strip().format_map(names)
    return figure, title.removesuffix(".").format_map(names), caption_text


def page(entries: dict[str, Entry]) -> str:
    """Return the Markdown page that shows all figures."""
    parts = [
        "# Gallery\n",
        "Every figure is drawn by the script under it, which computes the numbers of its caption.\n"
        "`python scripts/build_gallery.py` draws them all again.\n",
        "What is verified in which architecture is in [architectures.md](architectures.md).\n",
    ]
    for name, entry in entries.items():
        number = int(re.findall(r"\d+", name)[0])
        image = f'<img src="images/{name}.png" width="640" alt="{entry.title}">'
        parts += [
            f"## {number}. {entry.title}\n",
            f'<a href="images/{name}.svg">{image}</a>\n',
            f"{_literal(entry.caption)}\n",
            f"[{name}.py]({name}.py), [svg](images/{name}.svg)\n",
        ]
    return "\n".join(parts)


def _literal(text: str) -> str:
    """Wrap a caption at 100 columns and escape Markdown markup."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    escaped = (re.sub(r"([\\`*_<\[\]])", r"\\\1", paragraph) for paragraph in paragraphs)
    options = {"break_long_words": False, "break_on_hyphens": False}
    return "\n\n".join(textwrap.fill(paragraph, 100, **options) for paragraph in escaped)


def stale(script: Path, entry: Entry | None, package: str) -> bool:
    """Return whether a figure is missing, or its script or attnviz has changed."""
    drawn = all(picture(script.stem, ending).exists() for ending in FORMATS)
    return (
        entry is None or not drawn or (entry.script, entry.package) != (sha256([script]), package)
    )


def picture(name: str, ending: str) -> Path:
    """Return the path of a saved figure."""
    return GALLERY / "images" / f"{name}.{ending}"


def reduce_colors(path: Path) -> None:
    """Store a picture, or the pictures within an SVG, with a palette of 256 colors."""
    if path.suffix == ".png":
        path.write_bytes(_with_palette(path.read_bytes()))
        return
    start = "data:image/png;base64,"
    parts = re.split(rf"({start}[^\"]+)", path.read_text(encoding="utf-8"))
    for n in range(1, len(parts), 2):
        data = base64.b64decode(parts[n].removeprefix(start))
        parts[n] = start + base64.b64encode(_with_palette(data)).decode()
    path.write_text("".join(parts), encoding="utf-8")


def _with_palette(data: bytes) -> bytes:
    """Return a PNG with a palette: the same colors if they are few, else dithered.

    White stays white. Transparency has steps of 1/51. With many colors it stays as it is.
    """
    image, about = Image.open(io.BytesIO(data)), PngInfo()
    pixels = np.array(image.convert("RGBA"))
    pixels[..., 3] = np.rint(pixels[..., 3] / 5) * 5  # 51 steps
    colors, places = np.unique(pixels.reshape(-1, 4), axis=0, return_inverse=True)
    options = {"dpi": image.info["dpi"]} if "dpi" in image.info else {}
    if len(colors) <= 256:
        reduced = Image.fromarray(places.reshape(pixels.shape[:2]).astype(np.uint8), "P")
        reduced.putpalette(colors[:, :3].tobytes())
        options["transparency"] = colors[:, 3].tobytes()
    elif (pixels[..., 3] == 255).all():
        rgb = image.convert("RGB")
        palette = rgb.quantize(255)
        dithered = np.array(rgb.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG))
        dithered[(pixels == 255).all(-1)] = 255
        reduced = Image.fromarray(dithered, "P")
        reduced.putpalette([*palette.getpalette()[: 3 * 255], 255, 255, 255])
    else:
        return data
    for name, text in image.info.items():
        if isinstance(text, str):
            about.add_itxt(name, text)
    file = io.BytesIO()
    reduced.save(file, "png", optimize=True, pnginfo=about, **options)
    return file.getvalue()


def draw_all(
    wanted: list[Path], built: dict[str, Entry], package: str, *, force: bool = False
) -> list[str]:
    """Draw and save figures, add them to `built`; return the names of the scripts that failed."""
    failed = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("", total=len(wanted))
        for script in wanted:
            progress.update(task, description=script.stem)
            start = time.perf_counter()
            try:
                figure, title, caption = draw(script)
                for ending in FORMATS:
                    path = picture(script.stem, ending)
                    attnviz.plot.save(figure, path, force=force)
                    if path.stat().st_size > HEAVY:
                        reduce_colors(path)
                built[script.stem] = Entry(title, caption, sha256([script]), package)
                seconds = f"{time.perf_counter() - start:.1f} s"
                progress.console.print(f"{script.stem}  {seconds}")
            except Exception:
                failed.append(script.stem)
                progress.console.print(f"[bold red]{script.stem} failed[/]")
                progress.console.print(traceback.format_exc(), markup=False)
            finally:
                plt.close("all")
            progress.advance(task)
    return failed


def draw_guides(wanted: list[guide_pictures.Drawing], guides: Path, package: str) -> list[str]:
    """Draw the pictures of guides; return the code that failed."""
    failed = []
    for drawing in wanted:
        start = time.perf_counter()
        try:
            guide_pictures.draw(drawing, guides, package)
            seconds = f"{time.perf_counter() - start:.1f} s"
            console.print(f"{drawing.guide}: {', '.join(drawing.pictures)}  {seconds}")
        except Exception:
            failed.append(f"{drawing.guide}: {drawing.code.strip().splitlines()[-1]}")
            console.print(f"[bold red]{drawing.guide} failed[/]")
            console.print(traceback.format_exc(), markup=False)
    guide_pictures.forget(guides)
    return failed


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Draw only these scripts and guides.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Draw all figures.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also overwrite read-only pictures.")
    ] = False,
) -> None:
    """Draw what changed (or --all), save it as PNG and SVG, and write gallery/README.md."""
    mpl.use("agg")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silence the profiler's log
    index, current = GALLERY / "built.json", package()
    (GALLERY / "images").mkdir(exist_ok=True)
    known = json.loads(index.read_text(encoding="utf-8")) if index.exists() else {}
    built = {name: Entry(**entry) for name, entry in known.items()}
    available = {script.stem: script for script in scripts()}
    guides = {guide.stem: guide for guide in sorted((GALLERY / "guides").glob("*.md"))}
    if unknown := set(names or ()) - set(available) - set(guides):
        sys.exit(f"Unknown gallery scripts: {', '.join(unknown)}. See {GALLERY}.")
    chosen = [script for name, script in available.items() if name in (names or available)]
    wanted = [s for s in chosen if everything or stale(s, built.get(s.stem), current)]
    in_guides = [
        drawing
        for name, guide in guides.items()
        for drawing in guide_pictures.drawings(guide)
        if drawing.pictures and name in (names or guides)
        if everything or guide_pictures.is_stale(drawing, GALLERY / "guides", current)
    ]
    needed = {model for script in wanted for model in models_of(script)}
    needed |= {model for drawing in in_guides for model in models_in(drawing.code)}
    if missing := sorted(model.name for model in needed if not model.is_here):
        sys.exit(f"Models are missing. Run 'python scripts/fetch_models.py {' '.join(missing)}'.")
    failed = draw_all(wanted, built, current, force=force)

    entries = {name: built[name] for name in available if name in built}
    with atomic(index) as file:
        data = {name: asdict(entry) for name, entry in entries.items()}
        file.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    with atomic(GALLERY / "README.md") as file:
        file.write_text(page(entries), encoding="utf-8")
    console.print(f"{len(wanted) - len(failed)} drawn, {len(available) - len(wanted)} unchanged")
    failed_in_guides = draw_guides(in_guides, GALLERY / "guides", current)
    if failed:
        sys.exit(f"{len(failed)} of {len(wanted)} scripts failed: {', '.join(failed)}.")
    if failed_in_guides:
        sys.exit(f"{len(failed_in_guides)} drawings of guides failed: {failed_in_guides}.")


if __name__ == "__main__":
    typer.run(main)
