"""At {T:,} tokens, attention in blocks takes {less:.0f} × less memory

A map of T tokens has T² weights. Measured for one head of random Q and K (dₖ = {d_k}): the map
stored as a whole, and the same weights in blocks of {block} rows, each pooled into its part of a
{cells} × {cells} map and then discarded. The pooled maps agree. (a) The peak memory of torch beside
Q and K, from its profiler: the whole map needs {copies:.1f} times its size (the softmax makes
copies), and {whole_growth:.1f} times as much for twice the tokens. Blocks need {block_growth:.1f}
times as much for twice the tokens, and {less:.0f} times less than the whole map at {T} tokens. (b)
Time, median of {rounds} rounds, on the machine that drew this figure: all T² weights are computed
either way. One stored map of {far:,} tokens takes {gigabytes:.0f} GB.
"""

from functools import partial
from timeit import repeat

import matplotlib.pyplot as plt
import torch

import attnviz
from attnviz.formula.attention import attention_weights

d_k, cells, block, rounds, far, lengths = 32, 64, 64, 7, 100_000, [256, 512, 1024, 2048, 4096]


def pool(weights):  # each cell is the mean of T/64 × T/64 weights
    return torch.nn.functional.avg_pool2d(weights[None], weights.shape[-1] // cells)[0]


def pooled_map(Q, K, rows):  # holds at most `rows` rows of weights at once
    return torch.cat([pool(attention_weights(part, K)) for part in Q.split(rows)])


def measure_memory(way):  # peak of allocated memory in MB
    with torch.profiler.profile(profile_memory=True) as profile:
        way()
    changes = [event.self_cpu_memory_usage for event in profile.events()]
    return torch.tensor(changes).cumsum(0).max().item() / 1e6


assert measure_memory(partial(torch.ones, 1000)) == 0.004
torch.manual_seed(11)
memory, time = {"whole": [], "blocks": []}, {"whole": [], "blocks": []}
for T in lengths:
    both = partial(pooled_map, *torch.randn(2, T, d_k))
    ways = {"whole": partial(both, rows=T), "blocks": partial(both, rows=block)}
    assert torch.allclose(ways["whole"](), ways["blocks"]())
    for name, way in ways.items():
        memory[name].append(measure_memory(way))
        time[name].append(1000 * torch.tensor(repeat(way, number=1, repeat=rounds)).median())
whole_growth, block_growth = (each[-1] / each[-2] for each in memory.values())
copies, less = memory["whole"][-1] / (4e-6 * T**2), memory["whole"][-1] / memory["blocks"][-1]
gigabytes = 4 * far**2 / 1e9

with attnviz.plot.style():
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.6), layout="constrained")
    titles = ("a  Memory in MB", "b  Time in ms")
    for ax, title, measured in zip(axes, titles, (memory, time), strict=True):
        ax.loglog(lengths, measured["whole"], "C1o-", lengths, measured["blocks"], "C0o-", base=2)
        ax.set(title=title, xlabel="tokens T", xticks=lengths, xticklabels=lengths)
        ax.yaxis.set_major_formatter("{x:g}")
    axes[0].text(1024, 30, "stored whole", color="C1", ha="right")
    axes[0].text(1024, 0.4, "in blocks", color="C0")
title = f"At {T:,} tokens, attention in blocks takes {less:.0f} × less memory"
fig = attnviz.plot.add_caption(fig, title=title, text=f"Threads: {torch.get_num_threads()}")
