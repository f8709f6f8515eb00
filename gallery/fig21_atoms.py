"""One head of RXNMapper tells where {right} of {count} atoms of products come from

RXNMapper was trained to fill in masked tokens of reactions. In layer {layer}, head {head}, an atom
of the product gives its largest weight among the atoms of the reactants to the one that it comes
from: for {right} of {count} atoms, in the {reactions} reactions whose maps are published with its
package (Schwaller et al.; the bars). A guess would be right for {chance:.0f}. Layers share their
parameters, and head {head} of {alike} layers is as good as that. Of the heads with another number
the best, head {other_head} of layers {other_layers}, is right for {other}. In the reaction shown,
{rest:.1%} of the weight on atoms of the reactants is on the solvent and the base, from which the
product has no atom.
"""

from dataclasses import replace

import numpy as np
from panels import counts, frame_cells, panels
from reactions import PUBLISHED, atoms_of, draw_reaction

import attnviz
from attnviz.results import AxisGeometry

layer, head, hits, chance = 10, 5, [], 0
results = attnviz.attend(list(PUBLISHED), model="rxnmapper")
for result, origins in zip(results, PUBLISHED.values(), strict=True):
    reactants, product = atoms_of(result.record(0).key_axis.labels)
    weights = np.stack([record.weights()[:, product][..., reactants] for record in result])
    hits.append((weights.argmax(-1) == origins).sum(-1))  # (layers, heads)
    chance += len(product) / len(reactants)
right, sizes, reactions = sum(hits), [*map(len, PUBLISHED.values())], len(PUBLISHED)
alike = (right[:, head] >= right[layer, head]).sum()
others = np.where(np.arange(right.shape[1]) == head, 0, right)
other, (tied, (other_head, *same)) = others.max(), np.nonzero(others == others.max())
other_layers = " and ".join(map(str, tied))
assert {*same} == {other_head}
right, count = right[layer, head], sum(sizes)

result, (reaction, origins) = results[0], next(iter(PUBLISHED.items()))
reactants, product = atoms_of(result.record(0).key_axis.labels)
drawn = attnviz.attention_map(result, layer=layer, head=head, words=False)
weights = drawn.weights[product][:, reactants]
rest = 1 - sum(weights[:, part].sum() for part in (range(4), range(9, 17))) / weights.sum()

beside, stacked = ("CR;PM", (1, 3), (4, 11), 0.54), ("C;R;M;P", (1,), (1, 2, 5, 3), 1.4)
with attnviz.plot.style():
    title = __doc__.splitlines()[0].format(right=right, count=count)
    fig, bars, matrix, product_axes, top = panels(title, beside, stacked)
    names = "a thiol", "solvent", "difluoropyridine", "base", "", ""
    ours, which = [each[layer, head] for each in hits], ("shown here", "second", "third")
    counts(bars, "Right in each reaction", which, ours, sizes)
    rows, columns = map(tuple, draw_reaction(product_axes, top, reaction, origins, names))
    plain = {"special_rows": (), "special_columns": (), "sides": (AxisGeometry(),) * 2}
    atoms = replace(drawn, weights=weights, rows=rows, columns=columns, **plain)
    attnviz.plot.heatmap(atoms, ax=matrix, title="", annot=False)
    frame_cells(matrix, enumerate(weights.argmax(1)))
    product_axes.set_xlabel("the product\n(same color: same atom)", color="0.35")
text = f"RXNMapper, layer {layer}, head {head}", "red: the largest weight of a row"
fig = attnviz.plot.add_caption(fig, text=text, agreement=result.agreement)
