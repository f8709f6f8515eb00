"""Build the documentation site from what the repository has: `site/index.html` opens from disk.

Pages are written into `build/docs`: those of gallery/ as they are, with their links pointed to the
site, and those that are computed: the commands, the Python reference with what its examples draw,
the gallery, the messages, the architectures, the executed quickstart, llms.txt and the cheat sheet.
Examples are kept in `build/docs-cache` and run again when attnviz or they changed. Warnings are
errors.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import typer
from build_gallery import Entry, package, picture, scripts
from docs import (
    api,
    architectures,
    cheatsheet,
    commands,
    errors,
    figures,
    json_pages,
    llms,
    notebooks,
)
from docs.examples import NAMES, docstring, models, run, shrink
from docs.text import formulas, frame, links
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from rich.console import Console

import attnviz

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "gallery"
PAGES, CACHE = ROOT / "build" / "docs", ROOT / "build" / "docs-cache"
# The pages that people write: where they are in the repository, and where on the site.
README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLE = "".join(re.findall(r"^\| \[.*\n", README, re.MULTILINE))
GUIDES = tuple(dict.fromkeys(re.findall(r"\(gallery/guides/([\w-]+)\.md\)", TABLE)))
CONCEPTS = ("glossary", "capture", "verified", "splits")
WRITTEN = {
    "gallery/site/index.md": "index.md",
    "gallery/lessons.md": "lessons.md",
    "gallery/cheat-sheet.md": "cheat-sheet.md",
    **{f"gallery/guides/{name}.md": f"guides/{name}.md" for name in GUIDES},
    **{f"gallery/concepts/{name}.md": f"concepts/{name}.md" for name in CONCEPTS},
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "STABILITY.md": "stability.md",
    "SECURITY.md": "security.md",
    "THIRD_PARTY.md": "licenses.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
COMPUTED = {
    "gallery/README.md": "gallery.md",
    "gallery/architectures.md": "architectures.md",
    "gallery/notebooks": "notebooks/index.md",
    "tests/golden/data/commands": "json.md",
}
# What stands beside a page elsewhere; and which pages the search finds first.
HIDDEN = {
    "index.md": ("navigation", "toc"),
    "errors.md": ("navigation", "toc"),
    "architectures.md": ("navigation", "toc"),
    "guides/beside-other-tools.md": ("navigation", "toc"),
    "lessons.md": ("navigation",),
    "gallery.md": ("toc",),
    "cheat-sheet.md": ("toc",),
}
RANKS = {
    "guides/faq": 4, "concepts/glossary": 4, "concepts/": 2, "guides/proof": 1, "guides/": 2,
    "notebooks/index": 2, "contributing": 1, "readme": 1, "figures/": 0.3, "api/": 0.7,
}  # fmt: skip
UNSEARCHED = ("errors.md", "architectures.md")  # each has a line that filters it
console = Console(stderr=True, highlight=False)


def main(
    site: Annotated[Path, typer.Option(help="Folder of the site.")] = ROOT / "site",
    skip_examples: Annotated[
        bool, typer.Option("--skip-examples", help="Show nothing of what examples draw.")
    ] = False,
) -> None:
    """Build the site. Without what its examples show it takes a minute, and needs no models."""
    mpl.use("agg")
    if skip_examples:
        globals()["kept"] = lambda name, source, make: []
    elif missing := sorted(model.name for model in models() if not model.is_here):
        sys.exit(f"Models are missing. Run 'python scripts/fetch_models.py {' '.join(missing)}'.")
    every = {file.stem for file in (GALLERY / "guides").glob("*.md")}
    if every != set(GUIDES):
        sys.exit(f"Not in README's table of guides: {', '.join(every ^ set(GUIDES))}.")
    shutil.rmtree(PAGES, ignore_errors=True)
    pages = computed_pages()
    for address, text in pages.items():
        write(address, text)
    for file, address in WRITTEN.items():
        write(address, written_page(ROOT / file, address))
    copy_assets()
    titles = {address: title_of(address) for address in map(str, addresses())}
    cheat_sheet = GALLERY / "cheat-sheet.md"
    cheatsheet.draw(cheat_sheet, PAGES / "cheat-sheet.pdf")
    listed = {
        address.removesuffix("md") + "html": title
        for address, title in titles.items()
        if not address.startswith(("api/", "figures/"))
    }
    (PAGES / "llms.txt").write_text(
        llms.text(cheat_sheet.read_text(encoding="utf-8"), listed), encoding="utf-8"
    )
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    config = load_config(
        str(GALLERY / "mkdocs.yml"), docs_dir=str(PAGES), site_dir=str(site), nav=navigation(titles)
    )
    config.plugins["mkdocstrings"].config["handlers"]["python"]["paths"] = [str(ROOT)]
    try:
        build(config)
    except Abort:
        sys.exit("The site was not built: its warnings are errors.")
    console.print(f"{len(titles)} pages: {site / 'index.html'}")


def computed_pages() -> dict[str, str]:
    """Return the pages that are computed, and write the files that they show."""
    version = package()
    shown = {}
    for name in NAMES:
        if name != "plot":
            files = kept(f"api-{name}", docstring(name) + version, lambda to, n=name: run(n, to))
            if files:
                shown[name] = files[-1]
    built = json.loads((GALLERY / "built.json").read_text(encoding="utf-8"))
    entries = {name: Entry(**entry) for name, entry in built.items()}
    available = {script.stem: script for script in scripts()}
    views = set()
    for name, script in available.items():
        source = script.read_text(encoding="utf-8") + version
        for file in kept(name, source, lambda to, s=script: save_view(s, to)):
            publish(file, f"views/{file.name}")
            views.add(name)
        shrink(picture(name, "png"), PAGES / "thumbnails" / f"{name}.webp", 560)
    for file in shown.values():
        if file.suffix == ".html":
            publish(file, f"views/{file.name}")
        else:
            shrink(file, PAGES / "drawn" / f"{file.stem}.webp", 1600)
    date = subprocess.run(
        ["git", "log", "-1", "--format=%cs", "--", "attnviz/models/architectures.json"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    return {
        **commands.pages(),
        **api.pages(shown),
        **figures.pages(entries, available, views),
        **notebook_pages(version),
        "errors.md": errors.page(),
        "json.md": json_pages.page(),
        "architectures.md": architectures.page(date),
        "guides/index.md": guides_index(),
    }


def notebook_pages(version: str) -> dict[str, str]:
    """Run the notebooks; return their pages and that of all."""
    pages, rows = {}, []
    for file in sorted((GALLERY / "notebooks").glob("*.ipynb")):
        address = "quickstart.md" if file.stem == "quickstart" else f"notebooks/{file.stem}.md"
        media = f"notebooks/{file.stem}"
        relative = media if "/" not in address else file.stem

        def execute(folder: Path, file: Path = file, relative: str = relative) -> None:
            text = notebooks.page(file, folder / "media", relative)
            (folder / "page.md").write_text(text, encoding="utf-8")

        source = file.read_text(encoding="utf-8") + version
        found = {one.name: one for one in kept(f"notebook-{file.stem}", source, execute)}
        if found:
            pages[address] = found["page.md"].read_text(encoding="utf-8")
            shutil.copytree(found["media"], PAGES / media, dirs_exist_ok=True)
        else:
            pages[address] = notebooks.page(file, PAGES / media, relative, run=False)
        pages[address] = formulas(links(pages[address], file, address, place))
        publish(file, f"notebooks/{file.name}")
        title = pages[address].partition("\n")[0].removeprefix("# ")
        page = os.path.relpath(address, "notebooks")
        rows.append(f"- [{title}]({page}), [download]({file.name})")
    about = (
        "# Notebooks\n\nEach runs from top to bottom on a CPU or a GPU. To use attnviz in Google "
        "Colab, choose *File* → *Upload notebook* and the downloaded file. The first cell installs "
        "attnviz from PyPI; before 0.1.0 is there, install it from a clone. In Jupyter, open the "
        "notebook where attnviz is installed.\n\n"
    )
    return {**pages, "notebooks/index.md": about + "\n".join(rows) + "\n"}


def kept(name: str, source: str, make: Callable[[Path], object]) -> list[Path]:
    """Return files that were made from a source before, or make them."""
    folder = CACHE / f"{name}-{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    if not folder.exists():
        console.print(f"running {name}")
        for outdated in CACHE.glob(f"{name}-" + "?" * 16):
            shutil.rmtree(outdated)
        scratch = folder.with_suffix(".part")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        make(scratch)
        scratch.rename(folder)
    return sorted(folder.iterdir())


def save_view(script: Path, folder: Path) -> None:
    """Save the interactive page of the result that a script draws, if it has one."""
    result = figures.result_of(script)
    if result is not None and not result.streamed:
        attnviz.view(result).save(folder / f"{script.stem}.html")


def written_page(file: Path, address: str) -> str:
    """Return a page that people write, as it is on the site."""
    text = file.read_text(encoding="utf-8")
    text = links(text, file, address, place)
    if address == "cheat-sheet.md":
        text = f'<div class="stacked" markdown>\n\n{text}\n</div>\n'
    for name, make in (("view", view_of), ("live", live_of)):
        text = re.sub(rf"<!-- {name}: (.*?) -->", lambda match, make=make: make(match[1]), text)
    return formulas(text)


def view_of(text: str) -> str:
    """Return the interactive page of a text inside a page."""
    files = kept(
        "lesson", text + package(),
        lambda folder: attnviz.view(attnviz.attend(text)).save(folder / "lesson.html"),
    )  # fmt: skip
    if not files:
        return ""
    publish(files[0], "views/lesson.html")
    return frame("views/lesson.html", f"Interactive: {text}", 760)


def live_of(text: str) -> str:
    """Return a link to the page that runs the model, which begins with a text."""
    page = attnviz.view(text, show="head")
    files = kept("live", text + package(), page.save_live)
    for file in files:
        publish(file, f"live/{file.name}")
    return "[Type your own sentence](live/index.html){ .md-button }" if files else ""


def place(file: Path) -> str | None:
    """Return where a file of the repository is on the site. Files that are no pages are copied."""
    name = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else ""
    if name in WRITTEN | COMPUTED:
        return (WRITTEN | COMPUTED)[name]
    if match := re.fullmatch(r"gallery/(images/fig.*)", name):
        return match[1]
    if match := re.fullmatch(r"gallery/(guides/images/.*)", name):
        publish(file, match[1])
        return match[1]
    if match := re.fullmatch(r"gallery/(fig\w+)\.py", name):
        return f"figures/{match[1]}.md"
    if match := re.fullmatch(r"gallery/notebooks/(\w+)\.ipynb", name):
        return "quickstart.md" if match[1] == "quickstart" else f"notebooks/{match[1]}.md"
    if file.is_file():
        publish(file, f"files/{name}")
        return f"files/{name}"
    return None


def copy_assets() -> None:
    """Copy the style of the site, the pictures and the scripts of the gallery."""
    for file in (GALLERY / "site").glob("*.[cj]s*"):
        publish(file, f"assets/{file.name}")
    shutil.copytree(GALLERY / "images", PAGES / "images")
    for script in scripts():
        publish(script, f"files/gallery/{script.name}")


def publish(file: Path, address: str) -> None:
    """Copy a file to the pages."""
    target = PAGES / address
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)


def write(address: str, text: str) -> None:
    """Write a page."""
    target = PAGES / address
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = ", ".join(HIDDEN.get(address, ()))
    boost = next((rank for start, rank in RANKS.items() if address.startswith(start)), 1)
    search = "exclude: true" if address in UNSEARCHED else f"boost: {boost}"
    head = f"---\nhide: [{hidden}]\nsearch:\n  {search}\n---\n"
    target.write_text(head + text, encoding="utf-8")


def addresses() -> list[Path]:
    """Return all pages, relative to their folder."""
    found = (file.relative_to(PAGES) for file in PAGES.rglob("*.md"))
    return sorted(file for file in found if file.parts[0] != "files")


def title_of(address: str) -> str:
    """Return the title of a page."""
    text = (PAGES / address).read_text(encoding="utf-8")
    return re.sub(r"\\(.)", r"\1", re.findall(r"^# (.*)$", text, re.MULTILINE)[0])


def guides_index() -> str:
    """Return the page of all guides: the table of the README."""
    (lines,) = re.findall(r"^\| guide \|.*?(?=\n\n)", README, re.DOTALL | re.MULTILINE)
    return "# Guides\n\n" + links(lines, ROOT / "README.md", "guides/index.md", place) + "\n"


def navigation(titles: dict[str, str]) -> list[dict[str, object]]:
    """Return the navigation: every page in its place."""

    def items(*pages: str) -> list[object]:
        return [{titles[page]: page} for page in pages]

    def short(page: str) -> dict[str, str]:
        return {titles[page].removeprefix("attnviz.").removeprefix("attnviz "): page}

    names = [
        {group: [short(f"api/{name}.md") for name in names]} for group, names in api.GROUPS.items()
    ]
    commands_ = [short(f"commands/{name}.md") for name in commands.summaries()]
    drawn = [{titles[page]: page} for page in sorted(titles) if page.startswith("figures/")]
    how_to = [f"guides/{name}.md" for name in GUIDES if name != "proof"]  # that is a concept
    more = [page for page in titles if page.startswith("notebooks/") and "index" not in page]
    return [
        {"Start": ["index.md", *items("quickstart.md", "cheat-sheet.md"),
                   {"Notebooks": ["notebooks/index.md", *items(*more)]}, {"About": "readme.md"}]},
        {"Guides": ["guides/index.md", *items(*how_to)]},
        {"Concepts": items(*(f"concepts/{name}.md" for name in CONCEPTS), "guides/proof.md")},
        {"Gallery": ["gallery.md", *drawn]},
        {"Lessons": "lessons.md"},
        {"Commands": ["commands/index.md", *commands_]},
        {"Python": ["api/index.md", *names]},
        {"Architectures": "architectures.md"},
        {"Errors": "errors.md"},
        {"JSON": "json.md"},
        {"Project": items("contributing.md", "changelog.md", "stability.md", "security.md",
                          "licenses.md", "conduct.md")},
    ]  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
