"""Self-attention takes one step at any length, recurrent attention ever more

(a) Recurrent attention: the encoder computes its states h one after another, and so does the
decoder with its states s. Each s weighs all h into a context c (dark: the last one). (c)
Self-attention: every token weighs all tokens at once. (b, d) The weights of two small networks
trained to reverse {T} symbols (each at least {floor:.0%} correct on new ones): in every row the
mirrored position has the largest weight. Recurrent attention gives {later:.0%} to later states,
which have read the symbol too. The recurrent network that was trained is simpler than (a): none of
its s reads a c. (e) A state must wait for its inputs. At {far} tokens a network as in (a) computes
{in_line} states one after another: every h, then c and s in turn. Self-attention computes all
outputs in {at_once} step. The first token reaches the encoder's last state in {along} steps and
every context in {by_context} (x → h → c); in self-attention it reaches every output in {at_once}.
"""

import matplotlib.pyplot as plt
import torch
from panels import write
from toy import Parallel, Recurrent, draw_parallel, draw_recurrent, train

import attnviz

T, symbols, floor = 6, 10, 0.99
torch.manual_seed(3)
recurrent_right, recurrent = train(Recurrent(symbols), symbols, T)
parallel_right, parallel = train(Parallel(symbols, T), symbols, T)
assert min(recurrent_right, parallel_right) >= floor
for weights in (recurrent, parallel):
    assert (weights.argmax(1) == torch.arange(T).flip(0)).all()
later = recurrent.flip(1).tril(-1).sum() / T  # beyond the mirrored position

tokens = torch.arange(1, 25)
line = tokens + (2 * tokens - 1)  # all h, then c, s, c, s, …, c
far, in_line, along = tokens[-1], line[-1], tokens[-1]
by_context, at_once = 2, 1  # token → h → c, and token → a

with attnviz.plot.style():
    layout = [["a", "b", "e"], ["c", "d", "e"]]
    size = {"figsize": (7.2, 3.8), "width_ratios": (5, 3, 4)}
    fig, axes = plt.subplot_mosaic(layout, layout="constrained", **size)
    draw_recurrent(axes["a"], T)
    draw_parallel(axes["c"], T)
    edges = (0.5, T + 0.5, T + 0.5, 0.5)
    look = {"cmap": "cmc.devon_r", "vmin": 0, "vmax": 1, "extent": edges}
    for name, weights in (("b", recurrent), ("d", parallel)):
        axes[name].imshow(weights.numpy(), **look)
        axes[name].set(xticks=range(1, T + 1), yticks=range(1, T + 1))
    axes["b"].set(title="b  Its trained weights", xlabel="encoder state", ylabel="decoder state")
    axes["d"].set(title="d  Its trained weights", xlabel="token", ylabel="token")
    fig.colorbar(axes["d"].images[0], ax=[axes["b"], axes["d"]], label="weight", aspect=40)
    axes["e"].plot(tokens, line, "C1", tokens, tokens, "C1--", tokens, 0 * tokens + at_once, "C0")
    ends = (23, 69, f"recurrent: {in_line}", "C1"), (24, 3, f"self-attention: {at_once}", "C0")
    write(axes["e"], *ends, (24, 27, f"first x to last h: {along}", "C1"), ha="right")
    axes["e"].set(title="e  Steps, one after another", xlabel="tokens", ylabel="steps", ylim=0)
title = f"Over {far} tokens, self-attention takes {at_once} step, recurrent attention {in_line}"
text = f"Two small networks, trained to reverse {T} of {symbols} symbols"
fig = attnviz.plot.add_caption(fig, title=title, text=text)
