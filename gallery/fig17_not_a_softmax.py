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


def scale_of(j, k, sign):
    """Return the largest (1) or the smallest (-1) scale for two weights of the first row.

    In a softmax, log(w_j / w_k) = scale · (s_j - s_k), and a printed weight is rounded to 0.01.
    """
    scores, weights = worked.given[0].values[0], stage.printed[0]
    ratio = (weights[j] + sign * 0.005) / (weights[k] - sign * 0.005)
    return float(ratio.log() / (scores[j] - scores[k]))


least, most = scale_of(1, 2, -1), scale_of(0, 1, 1)
assert most < least
one, two, three = (f"“{token}”" for token in worked.tokens)
proof = (
    f"No scale of the scores gives these weights: {two} and {three} (row {one}) need a scale of at "
    f"least {least:.2f}, {one} and {two} (row {one}) need one of at most {most:.2f}"
)

difference = (stage.from_inputs - stage.printed).abs()
i, j = divmod(int(difference.argmax()), len(stage.columns))
row, column = stage.rows[i], stage.columns[j]
printed, ours = stage.printed[i, j], stage.from_inputs[i, j]

text = " ".join(worked.tokens)
assert flagged == cells
fig = attnviz.plot.example(worked, width=130, caption="none")
fig.texts[0].set_text(__doc__.splitlines()[0].format(cells=cells, text=text))
parts = worked.summary(), "own code in float64, no model"
fig = attnviz.plot.add_caption(fig, text=parts)
