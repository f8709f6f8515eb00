"""The captions of the gallery about networks of their own: random ones, and small trained ones.

Networks that the gallery trains are trained again. What they do is computed from their parameters.
"""

import html
import math
import re
from functools import cache, partial

import numpy as np
import torch

import attnviz
from figures.sentences.gallery import GALLERY, figure, kept, module
from figures.sentences.reading import Near, OneOf, read_number

TRAINED = 0.025  # of shares, because rounding differs by machine and a training adds it up


toy = partial(module, "toy")  # the small networks

# ------------------------------------------------------------------------------ reversing symbols

SYMBOLS, LENGTH, FAR, FLOOR = 10, 6, 24, 0.99


def recurrent_weights(network, x, told):
    """Return softmax(v · tanh(W s + U h)) of Bahdanau et al., (N, T, T)."""
    H, _ = network.encoder(network.embed(x))
    S, _ = network.decoder(network.embed(told))
    sums = (S @ network.W.mT)[:, :, None] + (H @ network.U.mT)[:, None]
    return (torch.tanh(sums) @ network.v).softmax(-1)


def parallel_weights(network, x):
    X = network.embed(x) + network.position.weight
    Q, K = X @ network.W_q, X @ network.W_k
    return (Q @ K.mT / K.shape[-1] ** 0.5).softmax(-1)


def inputs_of(node, T):
    """Return the nodes of panels (a) and (b) that a node reads: kinds and numbers."""
    kind, t = node
    before = [(kind, t - 1)] if t else []
    return {
        "x": [],
        "h": [("x", t), *before],
        "c": [("s", t), *(("h", n) for n in range(T))],
        "s": [*before, ("c", t - 1)] if t else [],
        "a": [("x", n) for n in range(T)],
    }[kind]


@cache
def in_line(node, T):
    """Return how many states are computed one after another, up to a node."""
    lines = [in_line(one, T) for one in inputs_of(node, T)]
    return max(lines) + 1 if lines else 0


@figure("fig03_recurrent_attention", "takes, least, largest")
def recurrent_attention(model):
    """On other sequences the mirrored position has the largest mean weight.

    Later are states beyond it. The decoder has inputs of one embedding, and gives the same states
    for another encoder.
    """
    torch.manual_seed(3)
    networks = []
    for make in (toy().Recurrent, partial(toy().Parallel, T=LENGTH)):
        networks.append(make(SYMBOLS))
        toy().train(networks[-1], SYMBOLS, LENGTH)
    x = torch.randint(SYMBOLS, (4096, LENGTH))
    answers = x.flip(1)
    told = torch.cat([torch.full((len(x), 1), SYMBOLS), answers[:, :-1]], 1)
    with torch.no_grad():
        found = recurrent_weights(networks[0], x, told), parallel_weights(networks[1], x)
        for network, weights in zip(networks, found, strict=True):
            assert (network(x, told)[0].argmax(-1) == answers).double().mean() >= FLOOR
            assert torch.equal(weights.mean(0).argmax(1), torch.arange(LENGTH).flip(0))
    assert_its_states_read_no_context(networks[0])
    mean = found[0].double().mean(0)
    later = sum(mean[row, LENGTH - row :].sum() for row in range(LENGTH)) / LENGTH
    return {
        "T": LENGTH, "symbols": SYMBOLS, "floor": FLOOR, "later": Near(later, TRAINED), "far": FAR,
        "in_line": max(in_line(("c", t), FAR) for t in range(FAR)),
        "at_once": in_line(("a", FAR - 1), FAR),
    }  # fmt: skip


def assert_its_states_read_no_context(network):
    assert network.decoder.input_size == network.embed.embedding_dim
    states = []
    hook = network.decoder.register_forward_hook(lambda _, inputs, output: states.append(output[0]))
    told = torch.arange(LENGTH)[None]
    with torch.no_grad():
        for x in (told, told.flip(1)):
            network(x, told)
    hook.remove()
    assert torch.equal(*states)


# -------------------------------------------------------------------------------- a signal's reach

WIDTH, SEEDS, BATCH, BIAS = 64, 8, 32, 2
STEPS = 2 ** np.arange(8)


@kept
def gradients():
    """Return the gradients of the last state by the first input, (networks, lengths) by kind."""

    def lstm(bias):
        network = torch.nn.LSTM(WIDTH, WIDTH, batch_first=True, dtype=torch.float64)
        with torch.no_grad():
            network.bias_hh_l0[WIDTH : 2 * WIDTH] += bias  # of the forget gates
        return lambda X: network(X)[0]

    def self_attention(_):
        W = torch.randn(3, WIDTH, WIDTH, dtype=torch.float64) / WIDTH**0.5

        def run(X):
            Q, K, V = (X @ one for one in W)
            return (Q @ K.mT / WIDTH**0.5).softmax(-1) @ V

        return run

    def measured(make, bias=0):
        networks, found = [make(bias) for _ in range(SEEDS)], []
        for network in networks:
            for step in STEPS:
                X = torch.randn(BATCH, step + 1, WIDTH, dtype=torch.float64, requires_grad=True)
                (gradient,) = torch.autograd.grad(network(X)[:, -1, 0].sum(), X)
                found.append(gradient[:, 0].norm(dim=1).mean().item())
        return np.reshape(found, (SEEDS, len(STEPS)))

    torch.manual_seed(9)
    kinds = ("attention", self_attention, 0), ("opened", lstm, BIAS), ("lstm", lstm, 0)
    return {name: measured(make, bias) for name, make, bias in kinds}


def line(x, y):
    """Return the slope of the best line, and how much of the variance it explains."""
    slope, start = np.polyfit(x, y, 1)
    return slope, 1 - np.var(y - slope * x - start) / np.var(y)


@figure("fig09_signal_decay", "least, lowest, highest, lowest, highest, falls, falls")
def signal_decay(model):
    """The least of the networks of one kind, over the most of both others, in whole tens.

    A line explains the logarithm better over steps than over their logarithms.
    """
    found = gradients()
    attention, *both = (found[name][:, -1] for name in ("attention", "opened", "lstm"))
    exact, kept_by = attention.min() / np.max(both), {}
    for name in ("lstm", "opened"):
        logs = np.log(found[name].mean(0))
        slope, explained = line(STEPS, logs)
        assert explained > max(0.98, line(np.log(STEPS), logs)[1])
        kept_by[name] = np.exp(slope)
    power, explained = line(np.log(STEPS + 1), np.log(found["attention"].mean(0)))
    assert explained > 0.98
    return kept_by | {
        "far": STEPS[-1], "exact": exact, "times": 10 * (exact // 10), "seeds": SEEDS,
        "bias": BIAS, "power": power,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------ memory

KEYS, BLOCK, CELLS, TOKENS = 32, 64, 64, 4096


def pooled(weights):
    """Return the means of square parts of some rows of a map, (…, CELLS)."""
    side = weights.shape[1] // CELLS
    return weights.view(-1, side, CELLS, side).mean((1, 3))


def softmax(scores):
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


@kept
def memory():
    """Return the peak of memory by length: of a whole map, and of blocks; in units of a map."""
    torch.manual_seed(11)
    peaks = {}
    for T in (TOKENS // 2, TOKENS):
        Q, K = torch.randn(2, T, KEYS)
        maps = []
        for rows in (T, BLOCK):
            with torch.profiler.profile(profile_memory=True) as profile:
                parts = [pooled(softmax(some @ K.mT / KEYS**0.5)) for some in Q.split(rows)]
            changes = np.cumsum([event.self_cpu_memory_usage for event in profile.events()])
            peaks.setdefault(T, []).append(changes.max() / (4 * TOKENS**2))
            maps.append(torch.cat(parts))
        assert torch.allclose(*maps, atol=1e-6)
    return peaks


@figure("fig11_cost", "takes, less, less, takes")
def cost(model):
    """Blocks need memory that grows with the text, the whole map with its square.

    Times and threads are those of the machine that drew it, so no sentence compares them.
    """
    (whole, blocks), (more, some) = memory()[TOKENS // 2], memory()[TOKENS]
    assert abs(some / blocks - 2) < 0.1 < 1 < more / whole - 2
    return {
        "T": TOKENS, "less": more / some, "d_k": KEYS, "block": BLOCK, "cells": CELLS,
        "copies": more, "whole_growth": more / whole, "block_growth": some / blocks, "rounds": 7,
        "far": 100_000, "gigabytes": 4 * 100_000**2 / 1e9,
        "torch.get_num_threads()": Near(0, math.inf),
    }  # fmt: skip


# ------------------------------------------------------------------------------- linear attention

KINDS = {"softmax": ("decoder", 0), "gated delta": ("linear", 0), "Mamba-2": ("linear", 1)}
ALPHABET, PERIOD = 24, 8


@kept
def trained_in_turn():
    """Return how often each kind is right, and its matrices (heads, T, T), trained anew.

    The training is not reproducible between machines, not even which head is drawn. So of these
    numbers only what is stable is compared with the caption: their order and rough sizes. Its
    exact numbers are compared with those that the drawn file says in the titles of its panels.
    """
    model, right = toy().train_hybrid(symbols=ALPHABET)
    letters, tokenizer = toy().letters_tokenizer(ALPHABET)
    order = torch.randperm(ALPHABET)[:PERIOD].tolist() * 2
    text = " ".join(letters[number] for number in order)
    result = attnviz.attend(text, model=attnviz.load(model, tokenizer=tokenizer))
    matrices = {
        name: result.stack(stack).weights(layer).double().numpy()
        for name, (stack, layer) in KINDS.items()
    }
    return [right[name] for name in ("softmax", "delta", "mamba")], matrices


def outlined(matrices):
    """Return the largest share of heads in what followed before, of the sizes of all weights."""
    rows, sizes = np.arange(PERIOD, 2 * PERIOD), np.abs(matrices)
    return (sizes[:, rows, rows - PERIOD + 1] / sizes[:, rows].sum(-1)).mean(-1).max()


def drawn_shares():
    """Return the head and the share of each panel of the drawn file."""
    file = html.unescape((GALLERY / "images" / "fig29_linear_attention.svg").read_text("utf-8"))
    heads = re.search(r"trained to copy, heads (\d), (\d) and (\d)\.", file).groups()
    shares = re.findall(r">(\d+%) of the weight<", file)
    return [*zip(heads, shares, strict=True)]


@figure("fig29_linear_attention", "second half, largest")
def linear_attention(model, said):
    """Softmax learns it; the others are right in most places, in each training another share."""
    right, matrices = trained_in_turn()
    softmax, *others = matrices.values()
    assert np.allclose(softmax.sum(-1), 1)
    assert all(one.min() < 0 < one.max() for one in others)
    assert all(np.ptp(one.sum(-1)) > 0.01 for one in others)
    names = "softmax", "delta", "mamba"
    for first, *rest in (right, [read_number(said[name])[0] for name in names]):
        assert first > 0.97
        assert all(0.7 < share <= 1 for share in rest)
    one = {"third": [*KINDS][-1], "symbols": ALPHABET}
    for n, (name, (head, share)) in enumerate(zip(names, drawn_shares(), strict=True)):
        one |= {f"heads[{n}]": head, f"of_{name}": read_number(share)[0]}
        one[name] = OneOf([read_number(said[name])[0]])
    for first, *rest in (map(outlined, matrices.values()), [one[f"of_{name}"] for name in names]):
        assert first > 0.8 > 0.5 > max(rest) > 0.1
    return one
