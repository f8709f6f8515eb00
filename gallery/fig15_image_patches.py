"""Patches of an image as tokens (random weights)

This vision transformer divides a picture into {rows} × {columns} patches, and each attends to all
others. Its weights are random, with W_Q and W_K drawn {times} times as wide as usual so that
attention is not flat. Nothing was learned; the figure shows only the mechanics. Still, the weights
follow the picture, because patches of one color have similar keys: in layer 0, whether a patch
shows sky, sun or meadow explains {explained:.0%} of the variance of a query's scores, in the median
over queries and {heads} heads ({chance:.0%} if shuffled). Of these heads, the one shown gives most
of the framed patch's weight to the sun: {most:.0%}.
"""

import numpy as np
import torch
from transformers import ViTConfig, ViTImageProcessorPil, ViTModel

import attnviz

torch.manual_seed(0)
config = ViTConfig(hidden_size=96, num_hidden_layers=3, num_attention_heads=6)
vit, times = ViTModel(config), 10
for name, weight in vit.named_parameters():
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        torch.nn.init.normal_(weight, 0, times * config.initializer_range)

y, x = np.mgrid[0:448, 0:448]
meadow = y > 310 + 40 * np.sin(x / 80)
sun = (x - 310) ** 2 + (y - 135) ** 2 < 70**2
picture = np.full((448, 448, 3), (150, 195, 230), dtype=np.uint8)
picture[meadow] = (70, 130, 60)
picture[sun] = (250, 200, 60)
result = attnviz.attend(image=picture, model=attnviz.load(vit, processor=ViTImageProcessorPil()))

last_row, last_column = result.record(0).key_axis.patches[-1]
rows, columns = last_row + 1, last_column + 1
assert rows == columns == 448 // 32
shows = (meadow + 2 * sun)[16::32, 16::32].flatten()  # at the center of each 32 × 32 patch
scores = result.record(0).scores().detach().numpy()[:, 1:, 1:]  # without [CLS]
heads = len(scores)


def explained_share(
    kinds,
):  # share of the variance of each query's scores that lies between the kinds
    means = np.stack([scores[..., kinds == kind].mean(-1) for kind in kinds], axis=-1)
    return np.median(means.var(-1) / scores.var(-1))


explained = explained_share(shows)
chance = explained_share(np.random.default_rng(0).permutation(shows))

patch, maps = (4, 9), attnviz.head_maps(result)
from_patch = maps.weights[0, :, maps.sides[0].patches.index(patch), 1:]  # in layer 0, (heads, keys)
to_sun = from_patch[:, shows == 2].sum(1)
head, most = int(to_sun.argmax()), to_sun.max()
drawn = attnviz.attention_map(result, layer=0, head=head, notes=["its weights are random"])
fig = attnviz.plot.heatmap(drawn, patch=patch, overview=maps).figure
