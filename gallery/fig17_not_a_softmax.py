"""Weights that are no softmax of their scores

A lesson prints these weights for these scores. Each row sums to {sums:.2f}, as weights do, yet
{flagged} of {cells} cells are not what the softmax makes of the scores. It is not a forgotten scale
either: with any factor on the scores some cell is off, by {misses:.3f} or more. The largest
difference is at (“{row}”, “{column}”), printed {printed:.2f}, computed {ours:.3f}.
"""

import torch

import attnviz
from attnviz.attention import softmax

worked = attnviz.make_example("likes")
(stage,) = worked.stages
given = worked.given[0].values

(sums,) = stage.printed.sum(1).unique().tolist()
follows = stage.from_inputs_follows
flagged, cells = int((~follows).sum()), follows.numel()

scales = torch.linspace(0, 50, 5001, dtype=torch.float64)
off = (softmax(scales[:, None, None] * given) - stage.printed).abs().amax((1, 2))
misses = off.min()
assert misses > 0.005  # half a unit of the last printed digit

difference = (stage.from_inputs - stage.printed).abs()
i, j = divmod(int(difference.argmax()), len(stage.columns))
row, column = stage.rows[i], stage.columns[j]
printed, ours = stage.printed[i, j], stage.from_inputs[i, j]

fig = attnviz.example(worked, width=120)
