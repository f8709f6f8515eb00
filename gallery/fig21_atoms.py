"""One head of RXNMapper tells where {right} of {count} atoms of products come from

RXNMapper was trained to fill in masked tokens of reactions. In layer {layer}, head {head}, an atom
of the product gives its largest weight among the atoms of the reactants to the one that it comes
from: for {right} of {count} atoms, in the {reactions} reactions whose maps are published with its
package (Schwaller et al.). A guess would be right for {chance:.0f}. Layers share their parameters,
and head {head} of {alike} layers is as good as that. Of the heads with another number the best,
head {other_head} of layers {other_layers}, is right for {other}. In the reaction shown, {rest:.1%}
of the weight on atoms of the reactants is on the solvent and the base, from which the product has
no atom.
"""

from dataclasses import replace

import numpy as np
from panels import panels
from reactions import PUBLISHED, atoms_of, draw_reaction

import attnviz
from attnviz.results import AxisGeometry

layer, head, right, chance = 10, 5, 0, 0
results = attnviz.attend(list(PUBLISHED), model="rxnmapper")
for result, origins in zip(results, PUBLISHED.values(), strict=True):
    reactants, product = atoms_of(result.record(0).key_axis.labels)
    weights = np.stack([record.weights()[:, product][..., reactants] for record in result])
    right = right + (weights.argmax(-1) == origins).sum(-1)  # (layers, heads)
    chance += len(product) / len(reactants)
count, reactions = sum(map(len, PUBLISHED.values())), len(PUBLISHED)
alike = (right[:, head] >= right[layer, head]).sum()
others = np.where(np.arange(right.shape[1]) == head, 0, right)
other, (tied, (other_head, *same)) = others.max(), np.nonzero(others == others.max())
other_layers = " and ".join(map(str, tied))
assert {*same} == {other_head}
right = right[layer, head]

result, (reaction, origins) = results[0], next(iter(PUBLISHED.items()))
reactants, product = atoms_of(result.record(0).key_axis.labels)
drawn = attnviz.attention_map(result, layer=layer, head=head, words=False)
weights = drawn.weights[product][:, reactants]
used = range(4), range(9, 17)
rest = 1 - sum(weights[:, part].sum() for part in used) / weights.sum()

beside, stacked = (".R;PM", (1, 3), (4, 11), 0.54), ("R;M;P", (1,), (2, 5, 3), 1.3)
with attnviz.plot.style():
    title = "Each atom of the product attends to the atom it comes from"
    fig, matrix, product_axes, top = panels(title, beside, stacked)
    names = "a thiol", "solvent", "difluoropyridine", "base", "", ""
    origins = weights.argmax(1).tolist()
    rows, columns = map(tuple, draw_reaction(product_axes, top, reaction, origins, names))
    plain = {"special_rows": (), "special_columns": (), "sides": (AxisGeometry(),) * 2}
    atoms = replace(drawn, weights=weights, rows=rows, columns=columns, **plain)
    attnviz.plot.heatmap(atoms, ax=matrix, title="")
    product_axes.text(0, -3.1, "the product", ha="center", color="0.35")
what = "same number and color: where its weight is largest"
text = f"RXNMapper, layer {layer}, head {head}", what
fig = attnviz.plot.add_caption(fig, text=text, agreement=result.agreement)
