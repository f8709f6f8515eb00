"""The captions of the gallery about networks of their own: random ones, and small trained ones.

Networks that the gallery trains are trained again. What they do is computed from their parameters.
"""

import html
import re
import sys
from functools import cache, partial

import numpy as np
import torch

import attnviz
from attnviz.formula.attention import attention_weights
from figures.sentences.facts import facts_of
from figures.sentences.gallery import FILES, GALLERY, caption, kept
from figures.sentences.reading import read_number

TRAINED = 0.02  # of shares, because rounding differs by machine and a training adds it up


def toy():
    """Return the module of the small networks."""
    if str(GALLERY) not in sys.path:
        sys.path.insert(0, str(GALLERY))
    import toy

    return toy


def about(said, name, value, slack=TRAINED):
    """Return what is said, if it is the value up to a slack."""
    shown = read_number(said[name])[0]
    assert abs(shown - value) < slack + 0.005, (name, value)
    return shown


# ------------------------------------------------------------------------------ reversing symbols

RECURRENT = caption(
    "fig03_recurrent_attention",
    "A state must wait for its inputs; the number of a state is the step that can compute it.",
    "(a) Recurrent attention: the encoder computes its states h one after another, and so does the "
    "decoder with its states s.",
    "Each s weighs all h into a context c.",
    "(b) Self-attention: every token weighs all tokens at once.",
)
SYMBOLS, LENGTH, FAR = 10, 6, 24


@kept
def reversing():
    """Return the networks, and the accuracy and mean weights of both on other sequences."""
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
        right = [
            (network(x, told)[0].argmax(-1) == answers).double().mean() for network in networks
        ]
    return networks, right, [weights.double().mean(0).numpy() for weights in found]


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


@RECURRENT.sentence(
    "The darker a blue arrow, the larger its weight in one of two small networks trained to "
    "reverse <length> symbols (each at least <floor> correct on new ones): for every output the "
    "mirrored position has the largest weight."
)
def recurrent_right(model, said):
    _, right, weights = reversing()
    assert min(right) >= read_number(said["floor"])[0]
    for one in weights:
        assert (one.argmax(1) == np.arange(LENGTH)[::-1]).all()
    return {"length": LENGTH, "floor": 0.99}


@RECURRENT.sentence(
    "Recurrent attention gives <later> to later states, which have read the symbol too."
)
def recurrent_later(model, said):
    """Later are those beyond the mirrored position, of the mean row."""
    _, _, (recurrent, _) = reversing()
    later = sum(recurrent[row, LENGTH - row :].sum() for row in range(LENGTH)) / LENGTH
    return {"later": about(said, "later", later)}


@RECURRENT.sentence(
    "The recurrent network that was trained is simpler than (a): none of its s reads a c."
)
def recurrent_simpler(model, said):
    """Its decoder has inputs of one embedding, and gives the same states for another encoder."""
    network = reversing()[0][0]
    assert network.decoder.input_size == network.embed.embedding_dim
    states = []
    hook = network.decoder.register_forward_hook(lambda _, inputs, output: states.append(output[0]))
    told = torch.arange(LENGTH)[None]
    with torch.no_grad():
        for x in (told, told.flip(1)):
            network(x, told)
    hook.remove()
    assert torch.equal(*states)
    return {}


@RECURRENT.sentence(
    "(c) At <far> tokens a network as in (a) computes <line> states one after another: every h, "
    "then c and s in turn.",
    "Self-attention computes all outputs in <once> step.",
    "Over <far> tokens, self-attention takes <once> step, recurrent attention <line>",
)
def recurrent_steps(model, said):
    steps = max(in_line(("c", t), FAR) for t in range(FAR))
    one = {"far": FAR, "line": steps, "once": in_line(("a", FAR - 1), FAR)}
    return {name: one[name] for name in said}


FILES.words("Numbers: the step that computes a state.", "Blue: darker with more trained weight.")


@FILES.sentence("Two small networks, trained to reverse <length> of <symbols> symbols.")
def file_networks(file, said):
    return {"length": LENGTH, "symbols": SYMBOLS}


# -------------------------------------------------------------------------------- a signal's reach

SIGNAL = caption(
    "fig09_signal_decay",
    "In self-attention the last token reads the first one directly, at any distance.",
)
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


@SIGNAL.sentence(
    "How strongly does the first token change the last state? The figure shows the gradient of one "
    "number of the last state with respect to the first input, before training (line: mean of "
    "<seeds> networks, band: lowest to highest)."
)
def signal_count(model, said):
    return {"seeds": len(gradients()["lstm"])}


@SIGNAL.sentence(
    "An LSTM passes a signal from state to state and keeps <lstm> of it each time, or <opened> "
    "with its forget gates opened (bias <bias>)."
)
def signal_kept(model, said):
    kept_by = {
        name: np.exp(line(STEPS, np.log(gradients()[name].mean(0)))[0])
        for name in ("lstm", "opened")
    }
    return kept_by | {"bias": BIAS}


@SIGNAL.sentence(
    "Over <far> steps, attention passes at <how:least|most> <times> × an LSTM's gradient",
    "At <far> steps the lowest of self-attention is <exact> times the highest of any LSTM.",
)
def signal_title(model, said):
    """The least of the networks of one kind, over the most of both others, in whole tens."""
    attention, *both = (gradients()[name][:, -1] for name in ("attention", "opened", "lstm"))
    exact = attention.min() / np.max(both)
    one = {"far": STEPS[-1], "exact": exact, "times": 10 * (exact // 10), "how": "least"}
    return {name: one[name] for name in said}


@SIGNAL.sentence("Its gradient falls exponentially, which bends down on these axes.")
def signal_exponential(model, said):
    """A line explains the logarithm better over steps than over their logarithms."""
    for name in ("lstm", "opened"):
        logs = np.log(gradients()[name].mean(0))
        assert line(STEPS, logs)[1] > max(0.98, line(np.log(STEPS), logs)[1])
    return {}


@SIGNAL.sentence(
    "The gradient falls here too, but as a power of the length, T^<power>, close to a straight "
    "line: untrained weights are spread over T tokens."
)
def signal_power(model, said):
    slope, explained = line(np.log(STEPS + 1), np.log(gradients()["attention"].mean(0)))
    assert explained > 0.98
    return {"power": slope}


@FILES.sentence("<seeds> networks each; bands: their range.")
def file_signal(file, said):
    return {"seeds": SEEDS}


# ------------------------------------------------------------------------------------------ memory

COST = caption(
    "fig11_cost",
    "A map of T tokens has T² weights.",
    "The pooled maps agree.",
)
KEYS, BLOCK, CELLS, TOKENS = 32, 64, 64, 4096


def pooled(weights):
    """Return the means of square parts of some rows of a map, (…, CELLS)."""
    side = weights.shape[1] // CELLS
    return weights.view(-1, side, CELLS, side).mean((1, 3))


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
                parts = [pooled(attention_weights(some, K)) for some in Q.split(rows)]
            changes = np.cumsum([event.self_cpu_memory_usage for event in profile.events()])
            peaks.setdefault(T, []).append(changes.max() / (4 * TOKENS**2))
            maps.append(torch.cat(parts))
        assert torch.allclose(*maps, atol=1e-6)
    return peaks


@COST.sentence(
    "Measured for one head of random Q and K (dₖ = <keys>): the map stored as a whole, and the "
    "same weights in blocks of <rows> rows, each pooled into its part of a <cells> × <again> map "
    "and then discarded."
)
def cost_sizes(model, said):
    return {"keys": KEYS, "rows": BLOCK, "cells": CELLS, "again": CELLS}


@COST.sentence(
    "(a) The peak memory of torch beside Q and K, from its profiler: the whole map needs <copies> "
    "times its size (the softmax makes copies), and <growth> times as much for twice the tokens.",
    "Blocks need <growth> times as much for twice the tokens, and <less> times less than the whole "
    "map at <tokens> tokens.",
)
def cost_memory(model, said):
    (whole, blocks), (more, some) = memory()[TOKENS // 2], memory()[TOKENS]
    if "copies" in said:
        return {"copies": more, "growth": more / whole}
    return {"growth": some / blocks, "less": more / some, "tokens": TOKENS}


@COST.sentence(
    "At <tokens> tokens, attention in blocks takes <less> × <how:less|more> memory",
)
def cost_title(model, said):
    """Blocks need memory that grows with the text, the whole map with its square."""
    (whole, blocks), (more, some) = memory()[TOKENS // 2], memory()[TOKENS]
    assert abs(some / blocks - 2) < 0.1 < 1 < more / whole - 2
    return {"tokens": TOKENS, "less": more / some, "how": "less"}


@COST.sentence(
    "(b) Time, median of <rounds> rounds, on the machine that drew this figure: all T² weights are "
    "computed either way."
)
def cost_time(model, said):
    """Times differ by machine, so no sentence compares them."""
    return {"rounds": 7}


@COST.sentence("One stored map of <tokens> tokens takes <size> GB.")
def cost_far(model, said):
    return {"tokens": 100_000, "size": 4 * 100_000**2 / 1e9}


@FILES.sentence("Threads: <threads>.")
def file_threads(file, said):
    """They are those of the machine that drew it."""
    assert file.stem == "fig11_cost"
    return {"threads": int(said["threads"])}


# ---------------------------------------------------------------------------- learning to copy

LEARNING = caption(
    "fig28_training",
    "Each training text has its own period, so no fixed distance helps.",
)
ALPHABET, HALF_TEXT, TEXTS, CHECKPOINTS = 24, 12, 64, (0, 50, 100, 150, 200, 250)


@kept
def learned():
    """Return by step the weight on what followed before, (steps, texts, heads), and accuracies.

    Also the roles of the heads at each step, which attnviz gives them.
    """
    copies = toy().train_to_copy(steps=CHECKPOINTS, symbols=ALPHABET)
    letters, tokenizer = toy().letters_tokenizer(ALPHABET)
    torch.manual_seed(1)
    ids = torch.rand(TEXTS, ALPHABET).argsort(1)[:, :HALF_TEXT].repeat(1, 2)
    behind, right = [], []
    rows = torch.arange(HALF_TEXT, 2 * HALF_TEXT)
    for step in CHECKPOINTS:
        with torch.no_grad():
            output = copies[step](ids, output_attentions=True)
        weights = torch.stack([*output.attentions], 1)  # (texts, layers, heads, T, T)
        behind.append(weights[..., rows, rows - HALF_TEXT + 1].mean(-1).flatten(1))
        likely = output.logits[:, HALF_TEXT:-1].argmax(-1)
        right.append((likely == ids[:, HALF_TEXT + 1 :]).double().mean().item())
    compared = attnviz.compare(
        [" ".join(letters[number] for number in row) for row in ids.tolist()],
        models={f"{step}": attnviz.load(copies[step], tokenizer=tokenizer) for step in CHECKPOINTS},
    )
    return torch.stack(behind).double().numpy(), right, facts_of(compared).roles


def name_of(head):
    return f"{head // 4}.{head % 4}"


@kept
def steepest():
    """Return the head whose weight changes most in all, and the step where it rises most."""
    means = learned()[0].mean(1)
    head = int(np.ptp(means, axis=0).argmax())
    return head, int(np.diff(means[:, head]).argmax())


@LEARNING.sentence("While a small model learns to copy, <some> heads turn to what followed before")
def learning_title(model, said):
    behind, _, roles = learned()
    means = behind.mean(1)
    assert ((means[-1] - means[0]) > 0.2).sum() == roles[-1].count("induction")
    return {"some": roles[-1].count("induction")}


@LEARNING.sentence(
    "A decoder with two layers of <heads> heads learns to repeat <symbols> symbols.",
    "The same <texts> new texts of <half> random symbols twice are read by its copy at <steps> "
    "steps of the training.",
)
def learning_sizes(model, said):
    behind, _, _ = learned()
    one = {"heads": behind.shape[2] // 2, "symbols": ALPHABET, "texts": behind.shape[1]}
    one |= {"half": HALF_TEXT, "steps": len(behind)}
    return {name: one[name] for name in said}


@LEARNING.sentence(
    "Between step <before> and step <after> head <head:h> gives <rise> more of its weight to what "
    "followed the same symbol before (<low> to <high>, an interval of <level> over the texts)."
)
def learning_rise(model, said):
    head, step = steepest()
    rises = np.diff(learned()[0][:, :, head], axis=0)[step]
    means = np.random.default_rng(28).choice(rises, (4000, TEXTS)).mean(1)
    ends = zip(("low", "high"), np.quantile(means, (0.025, 0.975)), strict=True)
    one = {name: about(said, name, end) for name, end in ends}
    one |= {"before": CHECKPOINTS[step], "after": CHECKPOINTS[step + 1], "head": name_of(head)}
    return one | {"rise": about(said, "rise", rises.mean()), "level": 0.95}


@LEARNING.sentence(
    "There the model begins to copy: the next symbol of the second half is right in <first> of the "
    "places at step <before>, in <second> at step <after>, and in <last> at the end."
)
def learning_right(model, said):
    _, right, _ = learned()
    _, step = steepest()
    places = {"first": right[step], "second": right[step + 1], "last": right[-1]}
    one = {name: about(said, name, share) for name, share in places.items()}
    return one | {"before": CHECKPOINTS[step], "after": CHECKPOINTS[step + 1]}


@LEARNING.sentence(
    "At first no head has a role; at the end <induction> have the role induction (red)."
)
def learning_roles(model, said):
    first, *_, last = learned()[2]
    assert not any(first)
    return {"induction": last.count("induction")}


# ------------------------------------------------------------------------------- linear attention

LINEAR = caption(
    "fig29_linear_attention",
    "Each is drawn as a share of the sizes of all weights of its row.",
    "In the second half the symbol to copy is what followed the same symbol before (red).",
)
KINDS = {"softmax": ("decoder", 0), "gated delta": ("linear", 0), "Mamba-2": ("linear", 1)}
PERIOD = 8


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


@LINEAR.sentence("Softmax copies from one symbol, linear attention with spread, signed weights")
def linear_title(model, said):
    right, matrices = trained_in_turn()
    assert min(right) > 0.7
    softmax, *others = matrices.values()
    assert outlined(softmax) > 0.8 > 0.5 > max(map(outlined, others))
    assert all(one.min() < 0 < one.max() for one in others)
    return {}


@LINEAR.sentence(
    "One layer of a decoder has softmax attention, a gated delta network and <third:*> side by "
    "side."
)
def linear_kinds(model, said):
    return {"third": [*KINDS][-1]}


@LINEAR.sentence(
    "They took turns in a training to repeat <symbols> symbols, and alone copy <softmax>, <delta> "
    "and <mamba> of them right."
)
def linear_right(model, said):
    """Softmax learns it; the others are right in most places, in each training another share."""
    right, _ = trained_in_turn()
    assert right[0] > 0.97
    one = {name: read_number(said[name])[0] for name in ("softmax", "delta", "mamba")}
    assert one["softmax"] > 0.97
    assert all(0.7 < shown <= 1 for shown in (*right[1:], *one.values()))
    return one | {"symbols": ALPHABET}


@LINEAR.sentence(
    "Weights of the last two are signed and their rows need not sum to 1: the matrix that mixes "
    "the values, found by calling the function of the layer with the identity in their place."
)
def linear_signed(model, said):
    softmax, *others = trained_in_turn()[1].values()
    assert np.allclose(softmax.sum(-1), 1)
    assert all(np.ptp(one.sum(-1)) > 0.01 for one in others)
    return {}


@LINEAR.sentence(
    "Drawn is the head of each that gives it the largest share: head <a> with <softmax>, head <b> "
    "with <delta> and head <c> with <mamba>."
)
def linear_shares(model, said):
    shares = [*map(outlined, trained_in_turn()[1].values())]
    shown = [read_number(said[name])[0] for name in ("softmax", "delta", "mamba")]
    for first, *others in (shares, shown):
        assert first > 0.8 > 0.5 > max(others) > 0.1
    (a, first), (b, second), (c, third) = drawn_shares()
    one = {"a": a, "b": b, "c": c, "softmax": first, "delta": second, "mamba": third}
    return {name: read_number(value)[0] for name, value in one.items()}
