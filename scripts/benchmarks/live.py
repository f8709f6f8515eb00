"""Compare the page that runs the model in the browser with PyTorch on one thread."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright

import attnviz
from benchmarks.measuring import alternate, console, show, show_setting
from benchmarks.pages import launch

_TEXT = "the old train left the station on time although its driver was unsure of the way and "
_READ = """([text, ids, plain]) => {
    const {engine} = document.querySelector('#attnviz').lesson;
    const changes = {scale: 1, mask: {before: null, after: null, hidden: []}, positions: 'kept',
                     off: []};
    const start = performance.now();
    return engine.read(text, changes, ids, plain)
        .then(({milliseconds}) => [performance.now() - start, milliseconds]);
}"""
_PATIENCE = 120_000  # milliseconds until the page has loaded the model


def measure(tokens: Sequence[int], rounds: int) -> None:
    """Print the time from a text to all weights, by PyTorch and by the page."""
    torch.set_num_threads(1)
    model = attnviz.load()
    model.module.set_attn_implementation("eager")
    page = attnviz.view("the train left the station")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page.save_live(folder)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        console.print(f"The folder has {size / 1e6:.1f} MB.")
        tab = launch(playwright).new_page()
        tab.goto(Path(folder, "index.html").as_uri())
        tab.locator("[data-state=drawn]").wait_for(state="attached", timeout=_PATIENCE)
        for count in tokens:
            ids = model.tokenizer(_TEXT * (count // 8 + 1))["input_ids"]
            ids = [*ids[: count - 1], ids[-1]]

            def pytorch(ids: list[int] = ids) -> None:
                with torch.no_grad():
                    model.module(torch.tensor([ids]), output_attentions=True)

            # Seconds as the page measures them, without the way from this process to the browser.
            whole: dict[str, list[float]] = {"page, WebAssembly": [], "page, plain code": []}
            alone: dict[str, list[float]] = {f"{name}, model alone": [] for name in whole}

            def in_the_page(name: str, ids: list[int] = ids) -> None:
                took = tab.evaluate(_READ, [_TEXT, ids, "plain" in name])
                whole[name].append(took[0] / 1000)  # noqa: B023
                alone[f"{name}, model alone"].append(took[1] / 1000)  # noqa: B023

            variants: dict[str, Callable[[], None]] = {"PyTorch": pytorch}
            variants |= {name: partial(in_the_page, name) for name in whole}
            times = alternate(variants, rounds)
            times |= {name: of[1:] for name, of in {**whole, **alone}.items()}  # without warm-up
            show(f"{count} tokens", times, against="PyTorch")
    show_setting("attnviz", "torch", "playwright")
