"""Patches of an image as tokens (random weights)

This vision transformer cuts a picture into {rows} × {columns} patches, and each asks all others.
Its weights are random, with W_Q and W_K drawn {times} times as wide as usual so that attention is
not flat; nothing was learned, and only the mechanics are shown. Yet weights follow the picture, for
patches of one colour have like keys: in layer 0, whether a patch shows sky, sun or meadow makes
{explained:.0%} of the variance of a query's scores, in the median over queries and {count} heads;
shuffled, {chance:.0%}. Of all heads, in the one shown the
framed patch gives most to the median patch of the sun, and to all of the sun {most:.0%}.
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
sky = np.stack([120 + 0.2 * y, 170 + 0.12 * y, 235 - 0.05 * y], axis=-1)
picture = np.where(meadow[..., None], (70, 130, 60), sky)
picture = np.where(sun[..., None], (250, 200, 60), picture).astype(np.uint8)
result = attnviz.attend(image=picture, model=attnviz.load(vit, processor=ViTImageProcessorPil()))
rows, columns = np.add(result.record(0).key_axis.patches[-1], 1)

kinds = (meadow + 2 * sun)[16::32, 16::32].ravel()  # what the middle of each patch shows
scores = result.record(0).scores().detach().double().numpy()[:, 1:, 1:]  # without [CLS]
count, shares, patch = len(scores), [], (4, 9)
for kind in (kinds, np.random.default_rng(0).permutation(kinds)):
    means = np.stack([scores[..., kind == each].mean(-1) for each in kind], -1)
    shares.append(np.median(means.var(-1) / scores.var(-1)))
explained, chance = shares

weights = attnviz.make_maps(result).weights[:, :, 1 + patch[0] * columns + patch[1], 1:]
sun = weights[..., kinds == 2]  # the head is shown in which the median patch of the sun gets most
layer, head = divmod(int(sun.median(-1).values.argmax()), count)
most = sun[layer, head].sum()
fig = attnviz.heatmap(result, layer=layer, head=head, patch=patch, overview=True).figure
fig = attnviz.add_caption(fig, text="the weights of this model are random")
