"""The first token takes {after:.0%} of the attention from layer {onset} on

{texts} texts, read by SmolLM2: the share of all attention that goes to the first token, by layer
(the mean over heads and words). Uniform weights would give {even:.0%} (dashed). Until layer
{before} it is {early:.0%} on average. {resting} of {heads} heads give it more than half. It is the
place that counts and not the word: with a start token in front, that one receives {special:.0%}
from layer {onset} on, and the first word, now after it, {left:.0%}. Such an attention sink is what
heads read that find nothing to read (Xiao et al., “Efficient streaming language models with
attention sinks”).
"""

import torch
from panels import from_here, panels

import attnviz
from attnviz.attribution.reference import first_token

TEXTS = """The train left the station on time.|Rain fell all night, and the river rose.
She plays the violin and her brother plays the drums.|When the bell rang, nobody moved.
Children washed the dishes after dinner.|Old maps hang in the museum by the harbor.""".replace(
    "\n", "|"
)
model, texts = attnviz.load("smollm2"), TEXTS.count("|") + 1
ids = model.tokenizer(TEXTS.split("|"))["input_ids"]
start = first_token(model.tokenizer)
plain, with_start = model.attend(ids), model.attend([[start, *one] for one in ids])


def received(results, key):  # the share that a key gets from later tokens, (layers, heads)
    rows = [result.weights()[..., key + 1 :, key] for result in results]
    return torch.cat(rows, dim=-1).mean(-1)


first, special, behind = received(plain, 0), received(with_start, 0), received(with_start, 1)
even = sum(1 / n for one in ids for n in range(2, len(one) + 1)) / (sum(map(len, ids)) - texts)
by_layer = [shares.mean(1) for shares in (first, special, behind)]
onset = next(n for n in range(len(first)) if (by_layer[0][n:] > 2 * even).all())
before, resting, heads = onset - 1, int((first > 0.5).sum()), first.numel()
after, special, left = (float(shares[onset:].mean()) for shares in by_layer)
early = float(by_layer[0][:onset].mean())
assert special > 2 * left

with attnviz.plot.style():
    title = f"From layer {onset} on, heads rest on what comes first, whatever it is"
    fig, ax = panels(title, ("a", (1,), (1,), 0.38), ("a", (1,), (1,), 0.75))
    names = "the first word", "a start token", "the first word, after a start token"
    places = (6, 0.1), (6, -0.13), (21, 0.125)
    for name, shares, (at, above) in zip(names, by_layer, places, strict=True):
        (line,) = ax.plot(shares, "o-", ms=3)
        ax.text(at, shares[at] + above, name, color=line.get_color(), ha="center", va="center")
    ax.axhline(even, color="0.5", lw=0.8, ls="--")
    ax.text(len(first) - 0.6, even + 0.04, "uniform weights", color="0.4", ha="right", va="center")
    ax.set(xlabel="layer", xlim=(-0.5, len(first) - 0.5), ylim=(0, 1), ylabel="share of attention")
    from_here(ax, onset, 0.95)
    ax.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
proof = attnviz.AgreementReport.joined(result.agreement for result in [*plain, *with_start])
text = f"{texts} texts, SmolLM2-135M-Instruct (4-bit weights)"
fig = attnviz.plot.add_caption(fig, text=text, agreement=proof)
