"""In a head of DINOv2's last layer, patches attend to what they show

DINOv2 divides a photo of Grace Hopper into {rows} × {columns} patches. In layer {layer}, head
{head}, patches of her face give {face:.0%} of their weight to the face ({near_face:.0%} if each two
patches had the mean weight of all that lie as far apart in the same direction), those of the wall
{wall:.0%} to the wall ({near_wall:.0%}), those of the ribbons {ribbons:.0%} to the ribbons
({near_ribbons:.0%}), and [CLS] gives the face {cls:.0%}. Head {sink_head} of layer {first} has a
sink instead: on average patches give {sink:.0%} of their weight to one patch below the name tag. It
is no outlier like those that Darcet et al. replace by registers: its norm after the last layer is
{norm:.1f} times the median of all patches, and none exceeds {largest:.1f} times. (Photo: James S.
Davis, U.S. Navy, public domain, from matplotlib.)
"""

import numpy as np
from matplotlib import colors, get_data_path
from panels import panels
from transformers import AutoImageProcessor

import attnviz
from attnviz.models import NAMED

folder, side = NAMED["dinov2-small"].folder, 518  # pixels, as in the training of DINOv2
processor = AutoImageProcessor.from_pretrained(folder, backend="pil", size=side, crop_size=side)
model, outputs = attnviz.load("dinov2-small", processor=processor), []
model.module.layernorm.register_forward_pre_hook(lambda _, x: outputs.append(x[0][0].norm(dim=1)))
result = attnviz.attend(image=f"{get_data_path()}/sample_data/grace_hopper.jpg", model=model)

layer, head, first, sink_head = 11, 2, 0, 5
row, column = np.array(result.record(0).key_axis.patches[1:]).T
rows, columns = row[-1] + 1, column[-1] + 1
from_cls, weights = np.split(result.weights(layer, head).numpy()[:, 1:], [1])
offset = (row - row[:, None] + rows) * 2 * columns + column - column[:, None] + columns
near = (np.bincount(offset.flat, weights.flat) / np.bincount(offset.flat).clip(1))[offset]
near /= near.sum(1, keepdims=True)  # the mean weight at each offset
thing = np.zeros((rows, columns))
thing[7:21, 14:25], thing[:20, 28:], thing[32:35, 23:33] = 1, 2, 3  # face, wall, ribbons
shares = [[w[k][:, k].sum(1).mean() for k in thing.flat == np.c_[1:4]] for w in (weights, near)]
(face, wall, ribbons), (near_face, near_wall, near_ribbons) = shares
received = result.weights(first, sink_head).numpy()[1:, 1:].mean(0)
cls, sink, norms = from_cls[0, thing.flat == 1].sum(), received.max(), outputs[-1].numpy()[1:]
norm, largest = norms[received.argmax()] / np.median(norms), norms.max() / np.median(norms)

titles = "From [CLS]|From the face|From the wall|From the ribbons|From the face in layer 0"
glow = colors.LinearSegmentedColormap.from_list("", ["#79b", "#9bc", "#eef", "#f90", "#e01"])
patches = "[CLS]", (17, 19), (10, 32), (33, 28), (17, 19)
beside, stacked = ("P01|;234|", (9, 9, 9, 0.4), None, 0.67), ("P0|;12|;34|", (9, 9, 0.5), None, 1.5)
with attnviz.plot.style():
    fig, *axes, photo, bar = panels(__doc__.splitlines()[0], beside, stacked)
    photo.imshow(result.image.numpy(), aspect="auto").axes.set_axis_off()
    for ax, patch, title in zip(axes, patches, titles.split("|"), strict=True):
        where = (first, sink_head) if ax is axes[-1] else (layer, head)
        place = {"ax": ax, "cbar_ax": bar, "title": title, "vmax": 16, "cmap": glow}
        attnviz.plot.heatmap(result, patch=patch, layer=where[0], head=where[1], **place)
    ax.text(9.8, 35.2, "sink →", color="w", ha="right")
marks = "white frame: the patch that attends; red: the patches that it attends to most"
text = f"layer {layer}, head {head}; in the last panel layer {first}, head {sink_head}"
fig = attnviz.plot.add_caption(fig, text=(marks, text), agreement=result.agreement)
