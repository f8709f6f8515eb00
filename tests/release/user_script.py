"""A user's script, which mypy and pyright read: a corpus as a table and as figures."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import attnviz


def load(folder: str | None) -> attnviz.Model:
    return attnviz.load(folder, device="cpu", dtype="float32")


def mean_map(result: attnviz.AttentionResult) -> np.ndarray:
    return result.weights().mean(dim=(0, 1)).numpy()


def one_row_per_head(result: attnviz.AttentionResult, name: str) -> pd.DataFrame:
    frame = result.to_frame(words=True)
    table = frame.groupby(["layer", "head"])["weight"].max().reset_index()
    table["sentence"] = name
    return table


def draw(result: attnviz.AttentionResult, path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(7, 3))
    for ax, head in zip(axes, (0, 1), strict=True):
        attnviz.plot.heatmap(result, layer=0, head=head, ax=ax, vmin=0, vmax=1)
    attnviz.plot.save(figure, path, force=True)


def main() -> None:
    model = load(None)
    texts = ["The train left.", "She cashed the check at the bank."]
    results = model.attend(texts)
    tables = [one_row_per_head(result, text) for result, text in zip(results, texts, strict=True)]
    print(pd.concat(tables).head())
    single = attnviz.attend("The train left.", model=model)
    print(mean_map(single).shape)
    draw(single, Path("two.pdf"))
    matches = attnviz.find_heads(single, query="train", key="left")
    first = matches.first[0]
    axes = attnviz.plot.heatmap(single, layer=first.layer, head=first.head)
    attnviz.plot.save(axes.figure, "one.pdf", force=True)
    senses = attnviz.senses("bank", model=model)
    figure = senses.plot()
    figure.savefig("senses.png")
    moved = attnviz.shift("bank", "We sat on the bank of the river.", model=model)
    best = moved.names[int(np.argmax(np.asarray(moved)))]
    steps = attnviz.steps(single, layer=0, head=1, word="train")
    print(best, steps["scaled scores"].values.shape)
    attnviz.save_result(single, "run.safetensors", force=True)
    again = attnviz.load_result("run.safetensors")
    print(again.weights(layer=0, head=0))
    attnviz.view(single).save("view.html", force=True)


if __name__ == "__main__":
    main()
