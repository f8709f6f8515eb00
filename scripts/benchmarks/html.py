"""The interactive view beside BertViz' two, of the same weights, in the same browser."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import torch
from architectures.sharpen import sharpen
from rich.table import Table
from transformers import BertConfig, BertModel

import attnviz
from attnviz import AttentionResult, Model
from benchmarks import peers
from benchmarks.measuring import available, console, show_setting
from benchmarks.pages import Opened, loaded_bytes, open_page

_OURS, _BERTVIZ = "attnviz", {"BertViz head_view": "head_view", "BertViz model_view": "model_view"}
_COPIES = 40.0  # of the weights, at the peak of what BertViz takes to write a view
_FLOOR = "a canvas with five squares"  # what Chromium takes for any page
_SQUARES = """<!doctype html><canvas></canvas><script>
const pen = document.querySelector("canvas").getContext("2d");
for (const n of [0, 1, 2, 3, 4]) { pen.fillStyle = `hsl(${72 * n} 80% 50%)`; pen.fillRect(60 * n, 0, 60, 150); }
document.onmousemove = () => document.querySelector("canvas").setAttribute("role", "tooltip");
</script>"""  # noqa: E501
_TEXT = Path(__file__).parents[2] / "LICENSE"


@dataclass
class _Page:
    """A page, how many bytes its reader loads, and what opening it took, each time."""

    file: Path
    size: int
    opened: list[Opened] = field(default_factory=list)


def measure(rounds: int, patience: float) -> None:
    """Print bytes, seconds and elements of each page.

    rounds : how often each is opened, in turns. patience : seconds for writing or drawing one.
    """
    minilm = attnviz.load()
    torch.manual_seed(0)
    base = BertModel(BertConfig(), add_pooling_layer=False).eval()
    sharpen(base)
    cases: list[tuple[str, Model, int]] = [
        ("all-MiniLM-L6-v2, 6 × 12 heads, 64 tokens", minilm, 64),
        (
            "BERT in its base size, random weights, 12 × 12 heads, 512 tokens",
            attnviz.load(base, tokenizer=minilm.tokenizer),
            512,
        ),
    ]
    for title, model, tokens in cases:
        with tempfile.TemporaryDirectory() as folder:
            _compare(title, model.attend(_text(model, tokens)), Path(folder), rounds, patience)
    console.print("BertViz' bytes are those of the page and of what it loads.", style="dim")
    show_setting("attnviz", "bertviz", "playwright")


def _compare(
    title: str, result: AttentionResult, folder: Path, rounds: int, patience: float
) -> None:
    pages: dict[str, _Page] = {}
    needed = _COPIES * sum(4.0 * each.heads * len(each.key_axis) ** 2 for each in result.records)
    for way, write in _ways(result).items():
        file = folder / f"{way}.html"
        if way in _BERTVIZ and not peers.installed("bertviz"):
            why = "not installed (pip install 'attnviz[bench]')"
        elif way in _BERTVIZ and needed > 0.8 * available():
            why = f"would need about {needed / 1e9:.0f} GB"
        else:
            why = _write(write, file, patience)
        if why:
            console.print(f"{way}: left out, {why}", style="dim")
        else:
            beside = loaded_bytes() if way in _BERTVIZ else 0
            pages[way] = _Page(file, file.stat().st_size + beside)
    late: set[str] = set()
    for _ in range(rounds):
        for way, page in pages.items():
            opened = None if way in late else open_page(page.file, patience)
            if opened:
                page.opened.append(opened)
            elif way not in late:
                late.add(way)
                console.print(f"{way}: not drawn after {patience:.0f} s", style="dim")
    console.print(_table(title, pages))


def _ways(result: AttentionResult) -> dict[str, Callable[[Path], object]]:
    """Return what writes a page into a file."""
    words = list(result.records[0].query_axis.labels)
    attentions = tuple(result.weights(layer=each.layer)[None].float() for each in result.records)

    def writer(view: str) -> Callable[[Path], object]:
        return lambda file: file.write_text(
            f"<meta charset='utf-8'>{peers.bertviz_page(view, attentions, words)}", "utf-8"
        )

    return {
        _FLOOR: lambda file: file.write_text(_SQUARES, "utf-8"),
        _OURS: attnviz.view(result).save,
        **{way: writer(view) for way, view in _BERTVIZ.items()},
    }


def _write(write: Callable[[Path], object], file: Path, patience: float) -> str | None:
    """Write a page in a process of its own; return why there is none, or None."""
    process = get_context("fork").Process(target=write, args=(file,))
    process.start()
    process.join(patience)
    if process.is_alive():
        process.kill()
        process.join()
        return f"not written after {patience:.0f} s"
    return f"ended with {process.exitcode} while it was written" if process.exitcode else None


def _text(model: Model, tokens: int) -> str:
    """Return the beginning of a text, of as many tokens with those that the model adds."""
    ids = model.tokenizer(_TEXT.read_text("utf-8"), truncation=True, max_length=tokens)["input_ids"]
    text: str = model.tokenizer.decode(ids, skip_special_tokens=True)
    assert len(model.tokenizer(text)["input_ids"]) == tokens
    return text


def _table(title: str, pages: Mapping[str, _Page]) -> Table:
    table = Table("", "MB", "drawn, s", "answers, s", "elements", title=title)
    table.add_column("÷ attnviz: MB, s, s, elements")
    base = _figures(pages[_OURS])
    for way, page in pages.items():
        found = _figures(page)
        ratios = ", ".join(f"{one / other:,.1f}" for one, other in zip(found, base, strict=True))
        megabytes, *seconds, nodes = found
        cells = [f"{megabytes:,.2f}", *(f"{each:.2f}" for each in seconds), f"{nodes:,.0f}"]
        table.add_row(way, *(cell.replace("nan", "–") for cell in [*cells, ratios]))
    return table


def _figures(page: _Page) -> tuple[float, ...]:
    """Return megabytes, and medians of seconds until drawn and until it answers, and elements."""
    rows = [(each.drawn, each.answered, each.nodes) for each in page.opened]
    medians = map(statistics.median, zip(*rows, strict=True)) if rows else [math.nan] * 3
    return page.size / 1e6, *medians
