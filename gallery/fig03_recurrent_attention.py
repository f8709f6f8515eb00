"""Over {far} tokens, self-attention takes {at_once} step, recurrent attention {in_line}

A state must wait for its inputs; the number of a state is the step that can compute it. (a)
Recurrent attention: the encoder computes its states h one after another, and so does the decoder
with its states s. Each s weighs all h into a context c. (b) Self-attention: every token weighs all
tokens at once. The darker a blue arrow, the larger its weight in one of two small networks trained
to reverse {T} symbols (each at least {floor:.0%} correct on new ones): for every output the
mirrored position has the largest weight. Recurrent attention gives {later:.0%} to later states,
which have read the symbol too. The recurrent network that was trained is simpler than (a): none of
its s reads a c. (c) At {far} tokens a network as in (a) computes {in_line} states one after
another: every h, then c and s in turn. Self-attention computes all outputs in {at_once} step.
"""

import matplotlib.pyplot as plt
import torch
from panels import CLAIM, write
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
far, in_line, at_once = int(tokens[-1]), int(line[-1]), 1

with attnviz.plot.style():
    size = {"figsize": (7.2, 3.6), "width_ratios": (7, 4), "height_ratios": (7, 4)}
    fig, axes = plt.subplot_mosaic([["a", "c"], ["b", "c"]], layout="constrained", **size)
    draw_recurrent(axes["a"], recurrent)
    draw_parallel(axes["b"], parallel)
    axes["a"].set_title(f"a  Recurrent attention: {3 * T - 1} steps for {T} tokens")
    axes["b"].set_title(f"b  Self-attention: {at_once} step")
    axes["c"].plot(tokens, line, "C1", tokens, 0 * tokens + at_once, "C0")
    write(
        axes["c"],
        (12, 48, "recurrent\nattention", "C1"),
        (12, 4, "self-attention", "C0"),
        ha="center",
    )
    look = {"textcoords": "offset points", "weight": "bold", "va": "center", "size": 9}
    for steps in (in_line, at_once):
        axes["c"].plot(far, steps, "o", color=CLAIM, clip_on=False)
        axes["c"].annotate(f"{steps}", (far, steps), (5, 0), color=CLAIM, **look)
    axes["c"].set(title="c  With more tokens", xlabel="tokens", ylim=(0, 75), xlim=(0, far))
    axes["c"].set(ylabel="steps, one after another", xticks=range(0, far + 1, 6))
title = f"Over {far} tokens, self-attention takes {at_once} step, recurrent attention {in_line}"
text = f"Two small networks, trained to reverse {T} of {symbols} symbols"
numbers = "numbers: the step that computes a state", "blue: darker with more trained weight"
fig = attnviz.plot.add_caption(fig, title=title, text=(*numbers, text))
