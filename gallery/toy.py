"""Two small networks that learn to say symbols backwards, and what each of their states waits for.

`fig03_recurrent_attention.py` draws them: one encoder and decoder joined by recurrent attention,
and one layer of self-attention. Both are trained from a seed, in seconds.
"""

import torch
from torch import nn

from attnviz.attention import additive_scores, attention_weights, context, softmax


class Recurrent(nn.Module):
    """An encoder and a decoder joined by additive scores alone (Bahdanau et al. 2015).

    The decoder begins with nothing: what it knows of the symbols comes to it through the weights.
    """

    def __init__(self, symbols, width=32):
        super().__init__()
        self.embed = nn.Embedding(symbols + 1, width)  # one more, for nothing said yet
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.W, self.U = (nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(2))
        self.v = nn.Parameter(torch.randn(width) / width**0.5)
        self.say = nn.Linear(2 * width, symbols)

    def forward(self, x, said):
        """Return what is said after `said` (N, T, symbols), and the weights (N, T, T)."""
        H, S = self.encoder(self.embed(x))[0], self.decoder(self.embed(said))[0]
        weights = softmax(additive_scores(S, H, self.W, self.U, self.v))
        return self.say(torch.cat([S, context(weights, H)], dim=-1)), weights

    @staticmethod
    def states(T):
        """Return what every state is made of, as (kind, position), in an order that works.

        Encoder states h, decoder states s, contexts c; what is said from s and c is heard by the
        next s.
        """
        made_of = {("h", t): [("x", t), ("h", t - 1)] for t in range(T)}
        for t in range(T):
            made_of["s", t] = [("s", t - 1), ("c", t - 1)]
            made_of["c", t] = [("s", t), *(("h", j) for j in range(T))]
        return made_of


class Parallel(nn.Module):
    """One layer of self-attention: with positions added, every token reads every token."""

    def __init__(self, symbols, T, width=32):
        super().__init__()
        self.embed, self.position = nn.Embedding(symbols, width), nn.Embedding(T, width)
        self.W = nn.Parameter(torch.randn(3, width, width) / width**0.5)
        self.say = nn.Linear(width, symbols)

    def forward(self, x, said):
        """Return what is said at every position (N, T, symbols), and the weights (N, T, T)."""
        X = self.embed(x) + self.position.weight
        Q, K, V = (X @ W for W in self.W)
        weights = attention_weights(Q, K)
        return self.say(weights @ V), weights

    @staticmethod
    def states(T):
        """Return what every output a is made of: all tokens x."""
        return {("a", t): [("x", j) for j in range(T)] for t in range(T)}


def train(network, symbols, T, steps):
    """Train to say T symbols backwards; return the accuracy on new ones and their mean weights."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more would wait for each other longer than they work
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(steps):
        x, said, wanted = task(symbols, T, 256)
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(x, said)[0].mT, wanted).backward()
        optimiser.step()
    x, said, wanted = task(symbols, T, 4096)
    with torch.no_grad():
        answers, weights = network(x, said)
    torch.set_num_threads(threads)
    return (answers.argmax(-1) == wanted).float().mean().item(), weights.mean(0)


def task(symbols, T, N):
    """Return N sequences (N, T), what was said before each answer, and the answers."""
    x = torch.randint(symbols, (N, T))
    return x, nn.functional.pad(x.flip(1)[:, :-1], (1, 0), value=symbols), x.flip(1)


def count_steps(states, goal):
    """Return how many states wait for each other, and the steps from the first token to a goal."""
    row, way = {}, {("x", 0): 0}
    for state, sources in states.items():
        row[state] = 1 + max(row.get(source, 0) for source in sources)
        way[state] = 1 + min(way.get(source, len(states)) for source in sources)
    return max(row.values()), way[goal]


def draw_states(ax, states, rows):
    """Draw what every state is made of, the kinds in `rows` from bottom to top.

    Blue: weighed by attention, dark for the last one. Red: states that wait for each other.
    """
    height = {name[-1]: y for y, name in enumerate(rows)}
    for (kind, t), sources in states.items():
        for source, j in sources:
            weighed = kind in "ca" and source in "hx"
            arrow = {"arrowstyle": "-|>", "shrinkA": 5, "shrinkB": 5, "mutation_scale": 6}
            arrow["color"] = "C0" if weighed else "0.7" if source == "x" else "C1"
            faint = {"alpha": 0.15, "zorder": 0} if weighed and (kind, t + 1) in states else {}
            if j >= 0:
                ends = (t, height[kind]), (j, height[source])
                ax.annotate("", *ends, arrowprops=arrow | faint)
    last = max(t for _, t in states)
    for kind, y in height.items():
        for t in range(last + 1):
            ax.text(t, y, kind, ha="center", va="center")
    ax.set(xlim=(-0.4, last + 0.4), ylim=(-0.3, len(rows) - 0.7), xticks=[])
    ax.set_yticks(range(len(rows)), [name[:-2] for name in rows])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
