"""Compare the interactive view with the two BertViz views: same weights, same browser."""

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
_COPIES = 40.0  # peak memory of writing a BertViz view, in copies of the weights
_FLOOR = "a canvas with five squares"  # minimum that Chromium needs for any page
_SQUARES = """<!doctype html><canvas></canvas><script>
const pen = document.querySelector("canvas").getContext("2d");
for (const n of [0, 1, 2, 3, 4]) { pen.fillStyle = `hsl(${72 * n} 80% 50%)`; pen.fillRect(60 * n, 0, 60, 150); }
document.onmousemove = () => document.querySelector("canvas").setAttribute("role", "tooltip");
</script>"""  # noqa: E501
_TEXT = Path(__file__).parents[2] / "LICENSE"


@dataclass
class _Page:
    """A page, the number of bytes that a browser loads, and the measurements of each opening."""

    file: Path
    size: int
    opened: list[Opened] = field(default_factory=list)


def measure(rounds: int, patience: float) -> None:
    """Print bytes, seconds and elements of each page.

    rounds : number of times each page is opened, alternating.
    patience : time limit in seconds for writing or drawing a page.
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
    console.print("The bytes of BertViz include the libraries that the page loads.", style="dim")
    show_setting("attnviz", "bertviz", "playwright")


def _compare(
    title: str, result: AttentionResult, folder: Path, rounds: int, patience: float
) -> None:
    pages: dict[str, _Page] = {}
    needed = _COPIES * sum(
        4.0 * record.heads * len(record.key_axis) ** 2 for record in result.records
    )
    for variant, write in _variants(result).items():
        file = folder / f"{variant}.html"
        if variant in _BERTVIZ and not peers.installed("bertviz"):
            skip_reason = "not installed (pip install 'attnviz[bench]')"
        elif variant in _BERTVIZ and needed > 0.8 * available():
            skip_reason = f"would need about {needed / 1e9:.0f} GB"
        elif variant in _BERTVIZ:
            skip_reason = _write(write, file, patience)
        else:  # in this process: the threads of torch do not survive a fork
            write(file)
            skip_reason = None
        if skip_reason:
            console.print(f"{variant}: skipped: {skip_reason}", style="dim", markup=False)
        else:
            extra = loaded_bytes() if variant in _BERTVIZ else 0
            pages[variant] = _Page(file, file.stat().st_size + extra)
    late: set[str] = set()
    for _ in range(rounds):
        for variant, page in pages.items():
            opened = None if variant in late else open_page(page.file, patience)
            if opened:
                page.opened.append(opened)
            elif variant not in late:
                late.add(variant)
                console.print(f"{variant}: not drawn after {patience:.0f} s", style="dim")
    console.print(_table(title, pages))


def _variants(result: AttentionResult) -> dict[str, Callable[[Path], object]]:
    """Return the functions that write each page into a file."""
    words = list(result.records[0].query_axis.labels)
    attentions = tuple(
        result.weights(layer=record.layer)[None].float() for record in result.records
    )

    def writer(view: str) -> Callable[[Path], object]:
        return lambda file: file.write_text(
            f"<meta charset='utf-8'>{peers.bertviz_page(view, attentions, words)}", "utf-8"
        )

    return {
        _FLOOR: lambda file: file.write_text(_SQUARES, "utf-8"),
        _OURS: attnviz.view(result).save,
        **{variant: writer(view) for variant, view in _BERTVIZ.items()},
    }


def _write(write: Callable[[Path], object], file: Path, patience: float) -> str | None:
    """Write a page in a separate process; return the reason if it fails, else None."""
    process = get_context("fork").Process(target=write, args=(file,))
    process.start()
    process.join(patience)
    if process.is_alive():
        process.kill()
        process.join()
        return f"not written after {patience:.0f} s"
    return f"exit code {process.exitcode} while writing" if process.exitcode else None


def _text(model: Model, tokens: int) -> str:
    """Return the beginning of a text with this number of tokens, including special tokens."""
    ids = model.tokenizer(_TEXT.read_text("utf-8"), truncation=True, max_length=tokens)["input_ids"]
    text: str = model.tokenizer.decode(ids, skip_special_tokens=True)
    assert len(model.tokenizer(text)["input_ids"]) == tokens
    return text


def _table(title: str, pages: Mapping[str, _Page]) -> Table:
    table = Table("", "MB", "drawn, s", "answers, s", "elements", title=title)
    table.add_column("÷ attnviz: MB, s, s, elements")
    base = _figures(pages[_OURS])
    for variant, page in pages.items():
        figures = _figures(page)
        ratios = ", ".join(f"{one / other:,.1f}" for one, other in zip(figures, base, strict=True))
        megabytes, *seconds, nodes = figures
        cells = [f"{megabytes:,.2f}", *(f"{value:.2f}" for value in seconds), f"{nodes:,.0f}"]
        table.add_row(variant, *(cell.replace("nan", "–") for cell in [*cells, ratios]))
    return table


def _figures(page: _Page) -> tuple[float, ...]:
    """Return megabytes, median seconds until drawn and until responsive, and elements."""
    rows = [(opening.drawn, opening.answered, opening.nodes) for opening in page.opened]
    medians = map(statistics.median, zip(*rows, strict=True)) if rows else [math.nan] * 3
    return page.size / 1e6, *medians
