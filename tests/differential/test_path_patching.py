"""What the split says of a head is what putting back that one head does."""

import torch
from torch.overrides import TorchFunctionMode

from attnviz.attribution import secant
from attnviz.attribution.rules import elementwise
from attnviz.attribution.surrogate import Secants
from attnviz.attribution.watching import activations, run
from attnviz.capture.unchanged import unchanged
from attnviz.inputs import encode
from attnviz.words import units

SENTENCES = [
    ("bank", "She opened a savings account at the bank near the harbour."),
    ("bank", "Two herons stood on the muddy bank of the river."),
    ("check", "He wrote a check for the rent and signed it."),
    ("apple", "I love apple phones more than any others."),
    ("bat", "The player swung the wooden bat and missed the ball."),
    ("mouse", "She plugged the mouse into her old computer."),
]


class Replay(TorchFunctionMode):
    """Runs N copies in which every attention gives what it gave, but for one head in each."""

    def __init__(self, given, instead, row):
        super().__init__()
        self.given, self.instead, self.row = given, instead, row
        self.weights, self.layer = [], 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "softmax" or (name == "dropout" and any(args[0] is w for w in self.weights)):
            self.weights.append(made)
        if name == "matmul" and any(args[0] is w for w in self.weights):
            heads = made.shape[1]
            made = self.given[self.layer].expand_as(made).clone()
            for head in range(heads):
                put_back = self.instead[self.layer][head, self.row]
                made[self.layer * heads + head, head, self.row] = put_back
            self.layer += 1
        return made


def pieces(model, word, sentence):
    batch = encode(model.checkpoint, [sentence])
    axis = batch.axes["text"][0]
    side = units(axis)
    row = side.positions[[label.casefold() for label in side.labels].index(word)][0]
    gate = torch.eye(len(axis), dtype=torch.bool)
    gate[:, torch.tensor(axis.special)] = True
    return batch.inputs, row, gate


def put_back(model, inputs, row, gate, direction):
    """Return what each head's context moves, (72,): swapped between the runs, in either of them.

    What one head does depends on the others; a secant lies between, so the mean of both is asked.
    """
    twice = {name: torch.cat([each, each]) for name, each in inputs.items()}
    mode, moved = Secants(cut=True, gate=gate), []
    with unchanged(model.module), torch.no_grad():
        with activations(model.module, elementwise):
            run(model.module, twice, mode)
        mixes = [mix.weights @ mix.values for mix in mode.mixes]
        copies = {n: e.expand(sum(mix.shape[1] for mix in mixes), -1) for n, e in inputs.items()}
        for own, other in ((1, 0), (0, 1)):
            given, instead = [mix[own : own + 1] for mix in mixes], [mix[other] for mix in mixes]
            with Replay(given, [mix[0] for mix in given], row):
                whole = model.module(**copies).last_hidden_state[:, row]
            with Replay(given, instead, row):
                patched = model.module(**copies).last_hidden_state[:, row]
            moved.append((whole - patched) @ direction * (1 if own else -1))
    return sum(moved) / 2


def test_the_heads_of_a_split_agree_with_path_patching(model):
    agree = []
    for word, sentence in SENTENCES:
        inputs, row, gate = pieces(model, word, sentence)
        twice = {name: torch.cat([each, each]) for name, each in inputs.items()}
        with unchanged(model.module):
            found = secant(model.module, twice, rows=[row], gate=gate)
        by_split = found.table.sum(-1).flatten()
        assert len(by_split) == 72
        patched = put_back(model, inputs, row, gate, found.direction).double()
        both = torch.stack([by_split, patched])
        ranks = both.argsort(1).argsort(1).double()
        agree.append((torch.corrcoef(both)[0, 1], torch.corrcoef(ranks)[0, 1]))
    r, rho = (sum(each) / len(agree) for each in zip(*agree, strict=True))
    assert r >= 0.97
    assert rho >= 0.95
