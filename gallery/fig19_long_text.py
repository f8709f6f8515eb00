"""A long text, without a stored map

The first {tokens} tokens of this project's license. No map was stored: while the model ran, each
was reduced to {cells} × {cells} cells of {cell} × {cell} weights (columns summed, rows averaged),
and each query to a few numbers. The same works for {long_text:,} tokens, where one map would take
{gigabytes:.0f} GB. Head {head} of layer {layer}, drawn large, reads nearest: its mean distance is
{nearest:.0f} tokens, where the mean of all heads is {usual:.0f}. Head {sink_head} of layer
{sink_layer} gives most weight to the first token, [CLS]: {most:.0%}, the line at the left edge of
its tile.
"""

from pathlib import Path

import torch

import attnviz

long_text = 100_000
gigabytes = 4 * long_text**2 / 1e9
license_text = (Path(__file__).parent.parent / "LICENSE").read_text(encoding="utf-8")
result = attnviz.attend(license_text[:2300], mode="streamed", cells=125)
summaries = [attention.summary for attention in result.streamed]
tokens, (_, cells, _), cell = (
    summaries[0].entropy.shape[1],
    summaries[0].mean.shape,
    summaries[0].cell,
)

distances, first_weights = (
    torch.stack([getattr(summary, name).mean(1) for summary in summaries])  # layers × heads
    for name in ("distance", "first")
)
layer, head = divmod(int(distances.argmin()), distances.shape[1])
sink_layer, sink_head = divmod(int(first_weights.argmax()), first_weights.shape[1])
nearest, usual, most = distances.min(), distances.mean(), first_weights.max()

fig = attnviz.plot.heatmap(result, layer=layer, head=head, overview=True).figure
