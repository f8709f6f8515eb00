"""Over {far} steps, attention passes at least {times} × an LSTM's gradient

How strongly does the first token change the last state? The figure shows the gradient of one number
of the last state with respect to the first input, before training (line: mean of {seeds} networks,
band: lowest to highest). At {far} steps the lowest of self-attention is {exact:.1f} times the
highest of any LSTM. An LSTM passes a signal from state to state and keeps {lstm:.0%} of it each
time, or {opened:.0%} with its forget gates opened (bias {bias}). Its gradient falls exponentially,
which bends down on these axes. In self-attention the last token reads the first one directly, at
any distance. The gradient falls here too, but as a power of the length, T^{power:.2f}, close to a
straight line: untrained weights are spread over T tokens.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from panels import bracket, percents

import attnviz

d, seeds, batch, bias, steps = 64, 8, 32, 2, 2 ** np.arange(8)


def lstm_network(forget):
    network = torch.nn.LSTM(d, d, batch_first=True, dtype=torch.float64)
    network.bias_hh_l0.data[d : 2 * d] += forget
    return lambda X: network(X)[0]


def self_attention_network():
    W_q, W_k, W_v = torch.randn(3, d, d, dtype=torch.float64) / d**0.5
    return lambda X: attnviz.formula.attention.attention(X @ W_q, X @ W_k, X @ W_v)


def gradient(network, T):  # of the last state's first component with respect to the first token
    X = torch.randn(batch, T, d, dtype=torch.float64, requires_grad=True)
    network(X)[:, -1, 0].sum().backward()
    return X.grad[:, 0].norm(dim=1).mean()


def measure(networks):  # (seeds, lengths)
    return np.array([[gradient(network, step + 1) for step in steps] for network in networks])


torch.manual_seed(9)
names = "self-attention", "LSTM, gates opened", "LSTM"
makers = self_attention_network, lambda: lstm_network(bias), lambda: lstm_network(0)
found = [measure([make() for _ in range(seeds)]) for make in makers]
direct, gated, chain = (np.log(each.mean(0)) for each in found)
opened, lstm = np.exp(np.polyfit(steps, gated, 1)[0]), np.exp(np.polyfit(steps, chain, 1)[0])
power, far = np.polyfit(np.log(steps + 1), direct, 1)[0], steps[-1]
low, high = found[0].min(0)[-1], np.max(found[1:], (0, 1))[-1]
exact, times = low / high, int(low / high // 10 * 10)

with attnviz.plot.style():
    fig, ax = plt.subplots(figsize=(5.2, 3.1), layout="constrained")
    for name, each, x, y in zip(names, found, (40, 13, 18), (0.1, 3e-4, 2e-5), strict=True):
        ax.loglog(steps, each.mean(0), "o-")
        ax.fill_between(steps, each.min(0), each.max(0), alpha=0.2, linewidth=0)
        ax.text(x, y, name, color=ax.lines[-1].get_color())
    bracket(ax, 150, low, high, f"at least {times} ×\nthe LSTM with\ngates opened")
    ax.set_ylabel("part of a change of the first token\nthat reaches the last state")
    ax.set(xlabel="steps from first token to last", ylim=(1e-6, 1), xticks=steps, xticklabels=steps)
    percents(ax)
title = f"Over {far} steps, attention passes at least {times} × an LSTM's gradient"
fig = attnviz.plot.add_caption(fig, title=title, text=f"{seeds} networks each; bands: their range")
