"""What a stored map costs

A map of T tokens has T² weights. Measured for one head of random Q and K (dₖ = {d_k}): the map
kept whole, and the same weights in blocks of {block} rows, each pooled into its part of a {cells} ×
{cells} map and dropped before the next. The pooled maps agree (largest difference {apart:.1g}). (a)
The most memory that torch held at once beside Q and K, by its profiler: whole, {copies:.1f} times
the map (the softmax needs copies), growing like T^{powers[0]:.2f}; in blocks like
T^{powers[1]:.2f}, at {T} tokens {less:.0f} times less. (b) Time, median of {rounds} alternating
rounds (threads: {threads}): all T² weights are computed either way; fitted, T^{powers[2]:.2f} and
T^{powers[3]:.2f}. One stored map of {far:,} tokens takes {gigabytes:.0f} GB.
"""

from functools import partial
from timeit import timeit

import matplotlib.pyplot as plt
import numpy as np
import torch

import attnviz
from attnviz.attention import attention_weights

d_k, cells, block, rounds, far, lengths = 32, 64, 64, 7, 100_000, 2 ** np.arange(8, 13)


def pool(weights):  # every cell is the mean of T/64 × T/64 weights
    return torch.nn.functional.avg_pool2d(weights[None], weights.shape[-1] // cells)[0]


def pooled_map(Q, K, rows):  # never more than so many rows of weights at once
    return torch.cat([pool(attention_weights(part, K)) for part in Q.split(rows)])


def measure_memory(way):  # in MB, the highest sum of what was taken and given back until then
    with torch.profiler.profile(profile_memory=True) as profile:
        way()
    events = profile.profiler.kineto_results.events()
    return max(np.cumsum([event.nbytes() for event in events if event.name() == "[memory]"])) / 1e6


assert measure_memory(partial(torch.ones, 1000)) == 0.004
chance, apart, found = torch.Generator().manual_seed(11), 0, []
for T in lengths.tolist():
    ways = [partial(pooled_map, *torch.randn(2, T, d_k, generator=chance), rows=T)]
    ways += [partial(ways[0], rows=block)]
    apart = max(apart, (ways[0]() - ways[1]()).abs().max())
    times = [[timeit(way, number=1) for way in ways] for _ in range(rounds)]
    found.append([[measure_memory(way) for way in ways], np.median(times, axis=0) * 1e3])
found, threads, gigabytes = np.array(found), torch.get_num_threads(), 4 * far**2 / 1e9
powers = np.polyfit(np.log(lengths), np.log(found.reshape(-1, 4)), 1)[0]
copies, less = found[-1, 0, 0] / (4e-6 * T**2), found[-1, 0, 0] / found[-1, 0, 1]

with attnviz.style():
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.6), layout="constrained")
    for n, (ax, title) in enumerate(zip(axes, ("a  Memory in MB", "b  Time in ms"), strict=True)):
        ax.loglog(lengths, found[:, n, 0], "C1o-", lengths, found[:, n, 1], "C0o-", base=2)
        for way, name in enumerate(("kept whole", "in blocks")):
            ax.text(T * 1.15, found[-1, n, way], name, color=f"C{1 - way}", va="center")
        ax.set(title=title, xlabel="tokens T", xticks=lengths)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_major_formatter("{x:g}")
attnviz.add_caption(fig, text=f"One head with random Q and K of {d_k} features, 4 bytes a weight")
