"""How far a signal reaches

How strongly does the first token move the last state? Shown is the gradient of the last state by
the first input, before any training (line: mean of {seeds} networks, band: lowest to highest). An
LSTM hands a signal on, {chain} times over {far} steps, and keeps {lstm:.0%} of it each time; with
its forget gates opened (bias {bias}), {opened:.0%}. In self-attention every token reads every other
one, {direct} step away at any distance. Here too the gradient falls, but as a power of the length,
T^{power:.2f}, since untrained weights are shared out among T tokens. From {steps[0]} to {far} steps
it falls {falls[0]:.0f}-fold, that of the LSTM by a factor of {falls[2]:.0e}.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import attnviz
from attnviz.attention import attention
from attnviz.plot.formulas import power as in_powers

d, seeds, bias, far, steps = 64, 8, 2, 128, 2 ** np.arange(8)


def recurrent(forget):
    network = torch.nn.LSTM(d, d, batch_first=True, dtype=torch.float64)
    network.bias_hh_l0.data[d : 2 * d] += forget
    return lambda X: network(X)[0]


def self_attention():
    W_q, W_k, W_v = torch.randn(3, d, d, dtype=torch.float64) / d**0.5
    return lambda X: attention(X @ W_q, X @ W_k, X @ W_v)


def gradient(network, T):  # of the last state, in a random direction, by the first token
    X, u = torch.randn(17, T, d).double().requires_grad_(), torch.randn(d).double() / d**0.5
    return torch.autograd.grad((network(X)[:, -1] @ u).sum(), X)[0][:, 0].norm(dim=1).mean()


def path(reads):  # in how few steps the last state reaches the first, through what each one reads
    return next(k for k in range(1, len(reads)) if torch.matrix_power(reads, k)[-1, 0])


torch.manual_seed(9)
chain, direct = path(torch.ones(far).diag(-1)), path(torch.ones(far + 1, far + 1))
makers = self_attention, lambda: recurrent(bias), lambda: recurrent(0)
networks = ([make() for _ in range(seeds)] for make in makers)
found = np.array([[[gradient(net, k + 1) for k in steps] for net in nets] for nets in networks])
mean, lowest, highest = found.mean(1), found.min(1), found.max(1)
opened, lstm = np.exp(np.polyfit(steps, np.log(mean[1:]).T, 1)[0])
power, falls = np.polyfit(np.log(steps + 1), np.log(mean[0]), 1)[0], mean[:, 0] / mean[:, -1]

with attnviz.style():
    fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.8), layout="constrained")
    names = ("self-attention", 9), ("LSTM, gates opened", 1e-3), ("LSTM", 9)
    for n, (name, above) in enumerate(names):
        left.text(far / 2, mean[n, -2] * above, name, color=f"C{n}")
        for ax, plot in (left, left.semilogy), (right, right.loglog):
            ax.fill_between(steps, lowest[n], highest[n], color=f"C{n}", alpha=0.2, linewidth=0)
            plot(steps, mean[n], "o-", color=f"C{n}")
            ax.xaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_major_formatter(lambda x, _: in_powers(x))
    left.set(title="a  One axis logarithmic", xlabel="steps from first to last", ylabel="gradient")
    right.set(title="b  Both axes logarithmic", xlabel="steps from first to last", ylim=(1e-4, 1))
attnviz.add_caption(fig, text=f"Random networks with {d} features, {seeds} of each kind")
