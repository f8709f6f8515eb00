"""None of the {cells} weights printed for “{text}” follows from its scores

A lesson prints these weights for these scores. Each row sums to {sums:.2f}, as weights do, but
{flagged} of {cells} cells are not the softmax of the scores. A forgotten scale does not explain it.
{proof}. The largest difference is at (“{row}”, “{column}”): printed {printed:.2f}, computed
{ours:.3f}.
"""

import attnviz

worked = attnviz.example("likes")
(stage,) = worked.stages

(sums,) = stage.printed.sum(1).unique().tolist()
follows = stage.from_inputs_follows
flagged, cells = int((~follows).sum()), follows.numel()

(proof,) = stage.notes
assert proof.startswith("No scale of the scores gives these weights")

difference = (stage.from_inputs - stage.printed).abs()
i, j = divmod(int(difference.argmax()), len(stage.columns))
row, column = stage.rows[i], stage.columns[j]
printed, ours = stage.printed[i, j], stage.from_inputs[i, j]

text = " ".join(worked.tokens)
assert flagged == cells
fig = attnviz.plot.example(worked, width=150, caption="none")
fig.texts[0].set_text(__doc__.splitlines()[0].format(cells=cells, text=text))
parts = worked.conclusion(), "own code in float64, no model"
fig = attnviz.plot.add_caption(fig, text=parts)
