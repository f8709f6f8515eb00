"""A word takes {first:.0%} of the attention if it is first, {behind:.0%} after a start token

{texts} texts, read by SmolLM2: the share of all attention that goes to one token, by layer (the
mean over heads and later words) and at the right the mean of all layers. With a start token in
front, the first word of a text comes second: that token receives {special:.0%}. So it is the place
that counts and not the word. Uniform weights would give the first word {even:.0%} (dashed).
{resting} of {heads} heads give it more than half. Such an attention sink is what heads read that
find nothing to read (Xiao et al., “Efficient streaming language models with attention sinks”).
"""

import torch
from panels import bracket, panels, shares, write

import attnviz
from attnviz.attribution.reference import first_token

TEXTS = """The train left the station on time.|Rain fell all night, and the river rose.
She plays the violin and her brother plays the drums.|When the bell rang, nobody moved.
Children washed the dishes after dinner.
Old maps hang in the museum by the harbor.""".replace("\n", "|")
model, texts = attnviz.load("smollm2"), TEXTS.count("|") + 1
ids = model.tokenizer(TEXTS.split("|"))["input_ids"]
start = first_token(model.tokenizer)
plain, with_start = model.attend(ids), model.attend([[start, *one] for one in ids])


def received(results, key):  # the share that a key gets from later tokens, (layers, heads)
    rows = [result.weights()[..., key + 1 :, key] for result in results]
    return torch.cat(rows, dim=-1).mean(-1)


by_word, special, behind = received(plain, 0), received(with_start, 0), received(with_start, 1)
even = sum(1 / n for one in ids for n in range(2, len(one) + 1)) / (sum(map(len, ids)) - texts)
by_layer = [each.mean(1) for each in (by_word, special, behind)]
resting, heads = int((by_word > 0.5).sum()), by_word.numel()
means = first, special, behind = [float(each.mean()) for each in by_layer]
assert min(first, special) > 10 * behind

with attnviz.plot.style():
    title = __doc__.splitlines()[0].format(first=first, behind=behind)
    fig, ax = panels(title, ("a", (1,), (1,), 0.38), ("a", (1,), (1,), 0.75))
    names = "the first word", "a start token in its place", "the same word after it"
    looks, end = (("C0", 0.08), ("C1", -0.12), ("#7d9ed0", 0.07)), len(by_word)
    for name, each, mean, (color, up) in zip(names, by_layer, means, looks, strict=True):
        ax.plot(each, "o-", ms=3, color=color)
        ax.plot([end - 0.4, end + 0.6], [mean] * 2, color=color, lw=2.5)
        ax.text(6, each[6] + up, name, color=color, ha="center", va="center")
    ax.plot([-0.5, end - 0.5], [even] * 2, color="0.5", lw=0.8, ls="--")
    names = (21, even + 0.04, "uniform weights", "0.4"), (end + 0.1, first + 0.06, "mean", "0.4")
    write(ax, *names, ha="center", va="center")
    bracket(ax, end + 1, behind, first, f"{first:.0%} if first,\n{behind:.0%} if second")
    ax.spines.bottom.set_bounds(-0.5, end - 0.5)
    ax.set(xlim=(-0.5, end + 5), xticks=range(0, end, 5), xlabel="layer", ylabel="attention")
    shares(ax)
proof = attnviz.AgreementReport.joined(result.agreement for result in [*plain, *with_start])
text = f"{texts} texts, SmolLM2-135M-Instruct (4-bit weights)"
fig = attnviz.plot.add_caption(fig, text=text, agreement=proof)
