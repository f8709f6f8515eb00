"""Draw the pictures of the guides: what their commands and snippets draw.

Pictures follow the block of code that draws them: `![what is seen](images/NAME.png)`, one for each
command that draws, or for the figures and pages of a snippet, in their order. `images/built.json`
has the SHA-256 of the code of each picture, so the tests find a picture of other code.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

import attnviz
from attnviz.app import run
from attnviz.io import atomic

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "gallery"))

from screenshot import screenshot  # noqa: E402

SAMPLE = ROOT / "attnviz" / "analyses" / "survey" / "sample.txt"
SILENT = ("verify", "check", "example", "models", "serve", "doctor")  # commands that draw nothing
PAGES = ("view", "explore")  # commands that write a page
# What commands need that is not here: other checkpoints, a GPU, files of the reader, a long time.
ELSEWHERE = re.compile(r"cuda|\w/\w+-\w|\.csv|photos/|speech/|\./before")
SNIPPET = re.compile(r"attnviz\.plot\.(?!save|style)|\.plot\(|attnviz\.view\(")
_IMAGE = r"!\[[^\]]+\]\((?:\.\./)?images/[\w.-]+\)"
_NEEDS = r'(?: title="Needs [^"]*")?'  # a fence that does not run everywhere
BLOCK = re.compile(rf"^```(\w*{_NEEDS})\n(.*?)^```\n((?:\n?{_IMAGE}\n)*)", re.S | re.M)
PICTURE = re.compile(r"!\[([^\]]+)\]\(images/([\w.-]+)\)")
SHRINK = 0.5  # of the 300 dpi of a figure


@dataclass(frozen=True)
class Drawing:
    """Code of a guide that draws: a command or a snippet, and its pictures with what is seen."""

    guide: str
    code: str
    pictures: dict[str, str]
    is_needed: bool  # whether it must have a picture

    @property
    def is_command(self) -> bool:
        """Whether it is typed in a terminal."""
        return self.code.startswith("attnviz ")

    @cached_property
    def sha256(self) -> str:
        """The digest of the code."""
        return hashlib.sha256(self.code.strip().encode()).hexdigest()


def drawings(guide: Path) -> Iterator[Drawing]:
    """Yield what draws in a guide. Each command of a block has a picture, the first come first.

    A block may show a figure of the gallery in place of a picture of its own.
    """
    for language, code, below in BLOCK.findall(guide.read_text(encoding="utf-8")):
        seen = {name: alt for alt, name in PICTURE.findall(below)}
        is_in_gallery = "(../images/" in below
        commands = [line for line in code.splitlines() if line.startswith("attnviz ")]
        if not commands:
            if seen or SNIPPET.search(code):
                yield Drawing(guide.stem, code, seen, language == "python" and not is_in_gallery)
            continue
        drawing = [line for line in commands if shlex.split(line)[1] not in SILENT]
        names = list(seen)
        for number, command in enumerate(drawing):
            is_last = number == len(drawing) - 1
            own = names[number:] if is_last else names[number : number + 1]
            # A list of variants, for a model that is fetched first, needs none.
            is_needed = language == "bash" or len(drawing) == 1
            is_needed = is_needed and not (is_in_gallery or ELSEWHERE.search(command))
            yield Drawing(guide.stem, command, {name: seen[name] for name in own}, is_needed)


def problems(guides: Path) -> list[str]:
    """Return what is wrong with the pictures of the guides in a folder."""
    built = known(guides)
    found, shown = [], set()
    for drawing in (one for guide in sorted(guides.glob("*.md")) for one in drawings(guide)):
        code = f"{drawing.guide}: {drawing.code.strip().splitlines()[-1]}"
        if drawing.is_needed and not drawing.pictures:
            found.append(f"no picture follows it: {code}")
        if drawing.is_command and len(drawing.pictures) > 1:
            found.append(f"more than one picture follows it: {code}")
        for name, alt in drawing.pictures.items():
            shown.add(name)
            if not (guides / "images" / name).is_file():
                found.append(f"{name} is not drawn: {code}")
            elif built.get(name, {}).get("code") != drawing.sha256:
                found.append(f"{name} was drawn by other code: {code}")
            if len(alt) < 30:
                found.append(f"{name} has no text that says what is seen")
    there = {path.name for path in (guides / "images").glob("*.png")}
    found += [f"{name} belongs to no block" for name in sorted((there | built.keys()) - shown)]
    return found


def known(guides: Path) -> dict[str, dict[str, str]]:
    """Return the digests of the code and of the package that drew each picture."""
    index = guides / "images" / "built.json"
    return json.loads(index.read_text(encoding="utf-8")) if index.exists() else {}


def is_stale(drawing: Drawing, guides: Path, package: str) -> bool:
    """Return whether a picture is missing, or was drawn by other code or another attnviz."""
    built, now = known(guides), {"code": drawing.sha256, "package": package}
    return any(
        built.get(name) != now or not (guides / "images" / name).is_file()
        for name in drawing.pictures
    )


def draw(drawing: Drawing, guides: Path, package: str) -> None:
    """Draw the pictures of a command or a snippet, and add them to the index."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("LICENSE").write_bytes((ROOT / "LICENSE").read_bytes())
        Path("corpus.txt").write_bytes(SAMPLE.read_bytes())
        Path("speech.flac").write_bytes((ROOT / "gallery" / "speech.flac").read_bytes())
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            drawn = _by_command(drawing.code) if drawing.is_command else _by_snippet(drawing.code)
        if len(drawn) < len(drawing.pictures):
            raise ValueError(f"It draws {len(drawn)} pictures, not {len(drawing.pictures)}.")
        (guides / "images").mkdir(exist_ok=True)
        for picture, name in zip(drawn, drawing.pictures, strict=False):
            _shrink(picture, guides / "images" / name)
    now = {name: {"code": drawing.sha256, "package": package} for name in drawing.pictures}
    _write_index(guides, known(guides) | now)


def forget(guides: Path) -> None:
    """Remove the pictures that belong to no block."""
    shown = {n for guide in guides.glob("*.md") for one in drawings(guide) for n in one.pictures}
    for path in (guides / "images").glob("*.png"):
        if path.name not in shown:
            path.unlink()
    if built := known(guides):
        _write_index(guides, {name: built[name] for name in built if name in shown})


def _write_index(guides: Path, built: dict[str, dict[str, str]]) -> None:
    with atomic(guides / "images" / "built.json") as file:
        text = json.dumps(dict(sorted(built.items())), indent=1) + "\n"
        file.write_text(text, encoding="utf-8")


def _by_command(command: str) -> list[Path]:
    """Run a command that writes a picture, a page or a folder; return its picture."""
    _, name, *words = shlex.split(command)
    if "-o" in words:
        at = words.index("-o")
        del words[at : at + 2]
    written = "page.html" if name in PAGES else "survey" if name == "survey" else "picture.png"
    if "--live" in words:
        written = f"{words[words.index('--live') + 1]}/index.html"
    else:
        words += ["-o", written]
    if (code := run([name, *words])) != 0:
        raise ValueError(f"The exit code is {code}.")
    if name in PAGES:
        return [screenshot(Path(written))]
    return [Path(written, "survey.png") if name == "survey" else Path(written)]


def _by_snippet(code: str) -> list[Path]:
    """Run a snippet; return pictures of its figures and its pages, in the order of each."""
    pages: list[attnviz.View] = []
    make = attnviz.View.__init__

    def record(self: attnviz.View, *arguments: object, **keywords: object) -> None:
        make(self, *arguments, **keywords)
        pages.append(self)

    plt.close("all")
    with patch.object(attnviz.View, "__init__", record):
        names: dict[str, object] = {"__name__": "guide"}
        exec(compile(code, "guide", "exec"), names)
    drawn = [_save(plt.figure(number), number) for number in plt.get_fignums()]
    plt.close("all")
    for number, page in enumerate(pages):
        page.save(path := Path(f"page-{number}.html"))
        drawn.append(screenshot(path))
    return drawn


def _save(figure: Figure, number: int) -> Path:
    attnviz.plot.save(figure, path := Path(f"figure-{number}.png"))
    return path


def _shrink(picture: Path, to: Path) -> None:
    """Save a picture with fewer pixels and colors."""
    with Image.open(picture) as image:
        small = image.convert("RGB")
        if "dpi" in image.info:  # of a figure, not a screen
            size = (round(side * SHRINK) for side in small.size)
            small = small.resize(tuple(size), Image.Resampling.LANCZOS)
    how = Image.Quantize.MAXCOVERAGE  # it keeps the color of a thin frame
    small = small.quantize(256, how, kmeans=3, dither=Image.Dither.NONE)
    with atomic(to) as file:
        small.save(file, "png", optimize=True)


if __name__ == "__main__":
    sys.exit("Run 'python scripts/build_gallery.py', which draws these pictures, too.")
