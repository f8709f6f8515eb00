"""A long text, without a stored map

The first {tokens} tokens of this project's license. No map was stored: while the model ran, each
was reduced to {cells} × {cells} cells of {cell} × {cell} weights (columns summed, rows averaged),
and each query to a few numbers. The same works for {far:,} tokens, where one map would take
{gigabytes:.0f} GB. Head {head} of layer {layer}, drawn large, reads nearest: its mean distance is
{nearest:.0f} tokens, where the mean of all heads is {usual:.0f}. Head {sink_head} of layer
{sink_layer} gives most weight to the first token, [CLS]: {most:.0%}, the line at the left edge of
its tile.
"""

from pathlib import Path

import torch

import attnviz

far = 100_000
gigabytes = 4 * far**2 / 1e9
licence = (Path(__file__).parent.parent / "LICENSE").read_text(encoding="utf-8")
result = attnviz.attend(licence[:2300], mode="streamed", cells=125)
kept = [each.summary for each in result.streamed]
tokens, (_, cells, _), cell = kept[0].entropy.shape[1], kept[0].mean.shape, kept[0].cell

distances, rests = (
    torch.stack([numbers.mean(1) for numbers in each])  # layers × heads
    for each in zip(*[(summary.distance, summary.first) for summary in kept], strict=True)
)
layer, head = divmod(int(distances.argmin()), distances.shape[1])
sink_layer, sink_head = divmod(int(rests.argmax()), rests.shape[1])
nearest, usual, most = distances.min(), distances.mean(), rests.max()

fig = attnviz.plot.heatmap(result, layer=layer, head=head, overview=True).figure
