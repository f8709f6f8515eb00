"""Draw the sheet of gallery/guides/beside-other-tools.md: four tools beside attnviz, same weights.

attnviz runs its default model on three inputs. The other tools get the weights as arrays, so they
need no model. The call of each stands below its picture. Pages are opened in headless Chromium.
BertViz loads require.js, d3 and jQuery from a CDN; here they come from npm. The head is attnviz's
choice. Run by hand, with Chromium and npm on the PATH (minutes):

    pip install bertviz==1.4.1 circuitsvis==1.43.3 inspectus==0.2.0 seaborn==0.13.2 playwright
    python scripts/peers_sheet.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn
from benchmarks.pages import launch, shoot
from benchmarks.peers import bertviz_page, inspectus_page
from circuitsvis.attention import attention_heads, attention_pattern
from matplotlib.figure import Figure
from PIL import Image, ImageChops, ImageOps
from playwright.sync_api import Browser, sync_playwright

import attnviz
from attnviz import AttentionResult

SHEET = Path(__file__).parents[1] / "gallery" / "images" / "peers.png"
TRAIN = "the train left the station"
PAIR = "She sat by the bank.", "The water was cold."
LONG = (
    "The train left the station late because snow had fallen all night. The driver waited until the"
    " signal turned green, and then she slowly released the brakes. Near the river the passengers"
    " saw a fox that crossed the frozen field. Nobody spoke. When they reached the coast, the sun"
    " was rising, and the old conductor smiled at the children beside the window."
)
TOOLS = {  # the package, what its picture shows, and what it does not
    "attnviz": ("attnviz", "the finding, percentages, the verdict", "values on hover"),
    "BertViz head view": ("bertviz", "a line from each query to each key", "numbers"),
    "BertViz model view": ("bertviz", "all heads, one larger after a click", "numbers"),
    "CircuitsVis": ("circuitsvis", "a matrix, weights on hover", "numbers in cells, a color bar"),
    "Inspectus": ("inspectus", "a matrix, totals of queries and keys", "heads side by side"),
    "seaborn.heatmap": ("seaborn", "a matrix with a color bar", "all heads in one call"),
}
STYLE = """
body { margin: 0; padding: 30px; width: max-content; font: 23px/1.35 "DejaVu Sans"; color: #1a1a1a }
main { display: grid; grid-template-columns: repeat(3, 760px); gap: 22px 26px }
h2, h3 { font-size: 34px; margin: 0 } h2 { grid-column: 1 / -1; border-top: 4px solid }
h2 { margin-top: 26px; padding: 14px 0 0 } h3 { font-size: 28px; padding-bottom: 4px }
small, span { font-weight: normal; color: #5a5a5a } code { font: 20px "DejaVu Sans Mono" }
div { height: 640px; border: 1px solid #c8c8c8; padding: 8px } p { margin: 6px 0 0 }
img { width: 100%; height: 100%; object-fit: contain } section { min-width: 0 }
"""


@dataclass(frozen=True)
class View:
    """A figure or a page, its call, a note, the pixels of the window, and what is clicked."""

    drawn: Figure | str
    call: str
    note: str = ""
    width: int = 800
    click: str = ""


def one_head(result: AttentionResult) -> Iterator[View]:
    """Yield each tool's view of the head that attnviz chooses."""
    best = attnviz.rank_heads(result).best
    layer, head = best.layer, best.head
    words, weights = list(result.tokens), result.weights()
    layers, one = tuple(weights[:, None]), weights[layer, head]
    pair = {"sentence_b_start": words.index("[SEP]") + 1} if result.provenance.pair else {}
    drawn = attnviz.plot.heatmap(result, layer=layer, head=head).figure
    yield View(drawn, f"plot.heatmap(…, layer={layer}, head={head})")
    page = bertviz_page("head_view", layers, words, layer=layer, heads=[head], **pair)
    yield View(page, f"head_view(…, layer={layer}, heads=[{head}])")
    page, cell = bertviz_page("model_view", layers, words, **pair), f"_{layer}_{head}"
    note = f"layer {layer}, head {head} clicked"
    yield View(page, "model_view(…)", note, 1000, f"#attn_background{cell}")
    page = attention_pattern(words, one, mask_upper_tri=False).local_src
    yield View(page, "attention_pattern(…, mask_upper_tri=False)")
    yield View(inspectus_page(one.numpy(), words), "attention(…)", "one head")
    ax = seaborn.heatmap(pd.DataFrame(one, words, words), ax=plt.figure().add_subplot())
    yield View(ax.figure, "heatmap(…)")


def all_heads(result: AttentionResult) -> Iterator[View]:
    """Yield each tool's view of all heads."""
    words, weights = list(result.tokens), result.weights()
    layers, maps = tuple(weights[:, None]), weights.flatten(0, 1)
    yield View(attnviz.plot.heads(result), "plot.heads(…)")
    yield View(bertviz_page("head_view", layers, words), "head_view(…)", "all heads of one layer")
    yield View(bertviz_page("model_view", layers, words), "model_view(…)", width=1000)
    names = [f"{layer}.{head}" for layer, head in np.ndindex(*weights.shape[:2])]
    page = attention_heads(maps, words, names, mask_upper_tri=False).local_src
    yield View(page, "attention_heads(…, mask_upper_tri=False)", width=1280)
    yield View(inspectus_page(weights.numpy(), words), "attention(…)", "mean of all heads")
    figure, axes = plt.subplots(*weights.shape[:2], figsize=(9.6, 5.6))
    for ax, one in zip(axes.flat, maps, strict=True):
        seaborn.heatmap(one, ax=ax, cbar=False, square=True, xticklabels=False, yticklabels=False)
    yield View(figure, "heatmap(…)", "72 calls, without labels and bars")


def write(view: View, browser: Browser, file: Path) -> str:
    """Write the picture of a view without its margins; return the lines below it, as HTML."""
    if isinstance(view.drawn, Figure):
        view.drawn.savefig(file, dpi=200, bbox_inches="tight")
        shown = ""
    else:
        shown = shoot(browser, view.drawn, view.width, view.click, file)
    image = Image.open(file).convert("RGB")
    drawn = ImageChops.invert(image).getbbox()
    ImageOps.expand(image.crop(drawn), 8, "white").save(file)
    said = ", ".join(filter(None, (view.note, shown)))
    call = f"<code>{escape(view.call)}</code>"
    return f"<div><img src='{file.name}'></div><p>{call} <small>{said}</small></p>"


def main() -> None:
    """Draw every view, and all of them on one sheet."""
    mpl.use("agg")
    train, pair = attnviz.attend(TRAIN), attnviz.attend(PAIR[0], pair=PAIR[1])
    rows = {
        f"1 &ensp;A sentence, one head <span>“{TRAIN}”</span>": one_head(train),
        f"2 &ensp;All heads <span>“{TRAIN}”</span>": all_heads(train),
        f"3 &ensp;A pair <span>“{PAIR[0]}” + “{PAIR[1]}”</span>": one_head(pair),
        f"4 &ensp;{len(LONG.split())} words <span>“{LONG}”</span>": one_head(attnviz.attend(LONG)),
    }
    parts = [f"<!doctype html><meta charset=utf-8><style>{STYLE}</style><body><main>"]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser, sheet = launch(playwright), Path(folder) / "sheet.html"
        for row, (title, views) in enumerate(rows.items()):
            parts.append(f"<h2>{title}</h2>")
            tools = zip(TOOLS.items(), views, strict=True)
            for column, ((tool, (package, shows, lacks)), view) in enumerate(tools):
                told = write(view, browser, sheet.with_name(f"{row}-{column}.png"))
                name = f"<h3>{tool} <small>{version(package)}</small></h3>"
                told += f"<p>shows {shows}; not {lacks}</p>"
                parts.append(f"<section>{name}{told}</section>")
        sheet.write_text("".join(parts), "utf-8")
        page = browser.new_page()
        page.goto(sheet.as_uri())
        page.locator("body").screenshot(path=SHEET)
    Image.open(SHEET).convert("RGB").quantize(kmeans=3).save(SHEET, optimize=True)


if __name__ == "__main__":
    main()
