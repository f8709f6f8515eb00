"""Sentences of example, and the numbers that they should name."""

import math
from collections import Counter
from itertools import combinations

import numpy as np

from figures.sentences.reading import OneOf, Patterns

EXAMPLE = Patterns()
TITLES = {
    "Q": "Queries Q", "K": "Keys K", "V": "Values V", "scores": "Scores",
    "scaled scores": "Scaled scores", "weights": "Weights W",
    "head output": "Attention vectors A", "concatenated": "All heads, side by side",
}  # fmt: skip
NOUNS = {
    "Q": "queries", "K": "keys", "V": "values", "scores": "scores",
    "scaled scores": "scaled scores", "weights": "weights", "head output": "attention vectors",
}  # fmt: skip
FORMULAS = {
    "Q": "Q = X W_q", "K": "K = X W_k", "V": "V = X W_v", "scores": "QKᵀ",
    "scaled scores": "QKᵀ / √2", "weights": "W = softmax({})", "head output": "A = W V",
    "concatenated": "A of all heads",
}  # fmt: skip


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Stage:
    """One stage: what is printed, ours from the inputs, and ours from printed stages before."""

    def __init__(self, name, ours, linked, printed, half, slack, sources):
        self.name, self.ours, self.linked, self.printed = name, ours, linked, printed
        self.half, self.slack, self.sources = half, slack, sources
        self.follows = self.linked_follows = self.exactly = None
        if printed is not None:
            off = np.abs(ours - printed[:, : ours.shape[1]])
            self.follows = off <= half
            if linked is not None:
                off = np.abs(linked - printed[:, : ours.shape[1]])
                self.exactly, self.linked_follows = off <= half, off <= slack

    @property
    def begins(self):
        """How many printed cells do not follow from the nearest printed stages, or the inputs."""
        nearest = self.follows if self.linked_follows is None else self.linked_follows
        return 0 if nearest is None else int((~nearest).sum())

    @property
    def inherits(self):
        """How many printed cells follow only from printed stages before."""
        if self.linked_follows is None:
            return 0
        return int((self.linked_follows & ~self.follows).sum())

    @property
    def untold(self):
        return 0 if self.printed is None else self.printed[:, self.ours.shape[1] :].size

    def states(self):
        """Return how many printed cells have which state."""
        rounded = 0
        if self.exactly is not None:
            rounded = int((self.follows & self.linked_follows & ~self.exactly).sum())
        states = {
            "wrong": self.begins, "inherit": self.inherits, "rounded": rounded,
            "untold": self.untold,
        }  # fmt: skip
        cells = 0 if self.printed is None else self.printed.size
        return Counter({**states, "exact": cells - sum(states.values())})


class Worked:
    """An example, computed once more from the matrices that it gives."""

    def __init__(self, facts):
        self.facts, self.stages = facts, []
        self.given = {one.key: np.array(one.values, float) for one in facts.given}
        ours, linked = dict(self.given), dict(self.given)
        for one in facts.stages:
            name, other = one.name, one.from_printed
            ours[name], mine = self.compute(name, ours), self.compute(name, linked)
            assert np.allclose(ours[name], one.from_inputs), f"{name} is another one"
            assert other is None or np.allclose(mine, other), f"{name} from printed is another one"
            half = None if one.decimals is None else 0.5 * 10.0**-one.decimals + 1e-12
            shown, slack = (
                None if x is None else np.array(x, float)
                for x in (one.printed, one.slack_from_printed)
            )
            linked[name] = mine if shown is None else shown[:, : mine.shape[1]]
            from_printed = mine if one.sources else None
            self.stages.append(
                Stage(name, ours[name], from_printed, shown, half, slack, one.sources)
            )

    def compute(self, name, known):
        if name in ("Q", "K", "V"):
            return known["X"] @ known[f"W_{name.lower()}"]
        if name == "scores":
            return known["Q"] @ known["K"].T
        if name == "scaled scores":
            return known["scores"] / math.sqrt(self.given["W_q"].shape[1])
        if name == "weights":
            return softmax(known.get("scaled scores", known.get("scores")))
        if name == "concatenated":
            return known["head output"]
        return known["weights"] @ known["V"]

    def count(self, kind):
        arrays = [getattr(one, kind) for one in self.stages]
        return int(sum(np.sum(one) for one in arrays if one is not None))

    def cells(self, kind):
        arrays = [getattr(one, kind) for one in self.stages]
        return sum(one.size for one in arrays if one is not None)

    @property
    def slips(self):
        """The stages where an error begins that no stage before explains."""
        found, by_name = [], {one.name: one for one in self.stages}
        for one in self.stages:
            if one.follows is None:
                continue
            before = [by_name[name].follows for name in one.sources]
            wrong = not one.follows.all()
            if one.linked_follows is not None:
                slips = not one.linked_follows.all()
                slips |= wrong and all(follows.all() for follows in before)
            else:
                slips = wrong
            if slips:
                found.append(one.name)
        return found


def worked_out(facts):
    """Return the example, computed once."""
    if not hasattr(facts, "worked"):
        facts.worked = Worked(facts)
    return facts.worked


@EXAMPLE.sentence(
    "<what:printed|Printed>: [[<wrong> wrong]][[, ]][[<inherit> inherited]][[, ]]"
    "[[<rounded> within rounding]][[, ]][[<untold> cannot be checked]][[, ]]"
    "[[<exact> exact]][[; slips: <slips:*>]][[.]]"
)
def example_states(facts, said):
    """The cells of one stage, or those of all with the slips."""
    worked = worked_out(facts)
    of_each = [one.states() for one in worked.stages]
    choices = [(states, None) for states in of_each]
    choices.append((sum(of_each, Counter()), ", ".join(worked.slips) or None))
    return [
        {"what": said["what"], "slips": slips}
        | {
            name: states[name] or None
            for name in ("wrong", "inherit", "rounded", "untold", "exact")
        }
        for states, slips in choices
    ]


@EXAMPLE.sentence("nothing is printed")
def example_unprinted(facts, said):
    assert any(one.printed is None for one in worked_out(facts).stages)
    return {}


@EXAMPLE.sentence("All <count> printed numbers of the example follow from its inputs")
def example_all(facts, said):
    worked = worked_out(facts)
    assert worked.count("follows") == worked.cells("follows")
    return {"count": worked.cells("follows")}


@EXAMPLE.sentence("The example has <errors> errors in its <wrong:w>")
def example_of_one_stage(facts, said):
    worked = worked_out(facts)
    (wrong,) = (NOUNS[one.name] for one in worked.stages if one.begins)
    assert not worked.count("inherits")
    return {"errors": worked.count("begins"), "wrong": wrong}


@EXAMPLE.sentence(
    "The example has <errors> errors in its <wrong:*> and <last:words>, and <inherit> inherited "
    "ones"
)
def example_begins(facts, said):
    worked = worked_out(facts)
    *wrong, last = (NOUNS[one.name] for one in worked.stages if one.begins)
    one = {"errors": worked.count("begins"), "inherit": worked.count("inherits")}
    return one | {"wrong": ", ".join(wrong), "last": last}


@EXAMPLE.sentence("the matrices of the second head are not given")
def example_untold(facts, said):
    (one,) = (one for one in worked_out(facts).stages if one.untold)
    assert one.untold == one.ours.size
    return {}


@EXAMPLE.sentence(
    "No scale of the scores gives these weights: “<a:w>” and “<b:w>” (row “<row:w>”) need a scale "
    "of at least <least>, “<c:w>” and “<d:w>” (row “<other:w>”) need one of at most <most>"
)
def example_scale(facts, said):
    """Each pair of weights of a row allows some scales: log(w / v) = scale · (s − t)."""
    (stage,) = worked_out(facts).stages
    scores, names = worked_out(facts).given["scores"], facts.tokens
    ends = []
    for i, weights in enumerate(stage.printed):
        for j, k in combinations(range(len(weights)), 2):
            gap = scores[i, j] - scores[i, k]
            if min(weights[j], weights[k]) > stage.half and gap:
                pair = [
                    math.log((weights[j] + e) / (weights[k] - e)) / gap
                    for e in (-stage.half, stage.half)
                ]
                ends.append((min(pair), max(pair), names[j], names[k], names[i]))
    least, most = max(ends), min(ends, key=lambda one: one[1])
    assert least[0] > most[1], "some scale does"
    one = dict(zip(("a", "b", "row"), least[2:], strict=True)) | {"least": least[0]}
    return one | dict(zip(("c", "d", "other"), most[2:], strict=True)) | {"most": most[1]}


EXAMPLE.words(
    "Own code in float64, no model.",
    "Each stage is computed from what is given and, if something is printed before it, from the "
    "nearest printed stages.",
    "A cell follows exactly if it differs from the printed one by at most half a unit of the last "
    "digit, and within rounding if the rounding of printed cells before it can explain the rest.",
    "from the inputs", "Given",
)  # fmt: skip


@EXAMPLE.sentence("from printed <sources:*>")
def example_sources(facts, said):
    return [{"sources": " and ".join(one.sources)} for one in worked_out(facts).stages]


@EXAMPLE.sentence("<what:wrong|inherited|within rounding>")
def example_frame(facts, said):
    states = sum((one.states() for one in worked_out(facts).stages), Counter())
    names = {"wrong": "wrong", "inherited": "inherit", "within rounding": "rounded"}
    assert states[names[said["what"]]]
    return {"what": said["what"]}


@EXAMPLE.sentence("<title:*>")
def example_title(facts, said):
    return {"title": facts.title}


@EXAMPLE.sentence("<number> <rest:*>")
def example_heading(facts, said):
    choices = []
    for number, one in enumerate(worked_out(facts).stages, start=1):
        before = (
            "scaled scores" if "scaled scores" in vars(facts) or len(facts.stages) > 1 else "scores"
        )
        title, formula = TITLES[one.name], FORMULAS[one.name].format(before)
        choices += [{"number": number, "rest": rest} for rest in (title, f"{title} {formula}")]
    return choices


@EXAMPLE.sentence("<name:*>")
def example_given(facts, said):
    return {"name": OneOf([*worked_out(facts).given])}


@EXAMPLE.sentence("<formula:*>")
def example_formula(facts, said):
    return {
        "formula": OneOf(
            [
                one.format(other)
                for one in FORMULAS.values()
                for other in ("scores", "scaled scores")
            ]
        )
    }
