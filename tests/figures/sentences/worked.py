"""Sentences of example, and the numbers that they should name."""

import math
from itertools import combinations

import numpy as np

from figures.sentences.reading import OneOf, Patterns

EXAMPLE = Patterns()
COARSE = 5  # half units of the last digit: more is too coarse for a closer check
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
    "<some> of <all> printed cells follow from the inputs[[, <linked> of <before> follow from the "
    "printed stages before them]][[ (<rounded> of these only within rounding)]][[, <untold> cannot "
    "be checked]][[.]][[ Slips: <slips:*>.]]"
)
def example_summary(facts, said):
    worked = worked_out(facts)
    rounded = worked.count("linked_follows") - worked.count("exactly")
    untold, before = worked.count("untold"), worked.cells("linked_follows")
    return {
        "some": worked.count("follows"), "all": worked.cells("follows"),
        "linked": worked.count("linked_follows") if before else None, "before": before or None,
        "rounded": rounded or None, "untold": untold or None,
        "slips": OneOf([None, ", ".join(worked.slips)]),
    }  # fmt: skip


@EXAMPLE.sentence("<what:All|None> <count> printed numbers of the example follow from its inputs")
def example_all(facts, said):
    worked = worked_out(facts)
    assert worked.count("follows") == worked.cells("follows")
    return {"what": "All", "count": worked.cells("follows")}


@EXAMPLE.sentence("None of the example's <all> <name:*> follows from its <source:*>")
def example_none(facts, said):
    worked = worked_out(facts)
    (stage,) = worked.stages
    assert not worked.count("follows")
    (source,) = worked.given
    return {"all": worked.cells("follows"), "name": stage.name, "source": source}


@EXAMPLE.sentence(
    "The example has <errors> errors in its <wrong:*> and <last:words>, and <inherit> inherited "
    "ones"
)
def example_begins(facts, said):
    worked = worked_out(facts)
    *wrong, last = (NOUNS[one.name] for one in worked.stages if one.begins)
    one = {"errors": worked.count("begins"), "inherit": worked.count("inherits")}
    return one | {"wrong": ", ".join(wrong), "last": last}


@EXAMPLE.sentence("all follow")
def example_all_of_a_stage(facts, said):
    assert any(one.follows is not None and one.follows.all() for one in worked_out(facts).stages)
    return {}


@EXAMPLE.sentence("[[<wrong> wrong]][[, ]][[<inherit> inherit errors]]")
def example_states(facts, said):
    return [
        {"wrong": one.begins or None, "inherit": one.inherits or None}
        for one in worked_out(facts).stages
        if one.follows is not None and (one.begins or one.inherits)
    ]


@EXAMPLE.sentence(
    "Too coarse for a closer check: the rounding of printed <names:*> can move a cell by <error>"
)
def example_coarse(facts, said):
    """The largest error that rounding explains; a source that the inputs give is not rounded."""
    worked, choices = worked_out(facts), []
    by_name = {one.name: one for one in worked.stages}
    for one in worked.stages:
        if one.slack is not None and one.slack.max() > COARSE * one.half:
            names = [n for n in one.sources if not by_name[n].follows.all()]
            choices.append({"names": " and ".join(names), "error": one.slack.max()})
    return choices


@EXAMPLE.sentence(
    "<count> printed cells cannot be <how:checked|told>: the matrices of the second head "
    "are not given"
)
def example_untold(facts, said):
    return {"count": worked_out(facts).count("untold"), "how": OneOf(["checked", "told"])}


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
    "from the inputs", "computed",
)  # fmt: skip


@EXAMPLE.sentence("from printed <sources:*>")
def example_sources(facts, said):
    return [{"sources": " and ".join(one.sources)} for one in worked_out(facts).stages]


@EXAMPLE.sentence("<what:wrong: an error begins here|inherits an error|within rounding>")
def example_frame(facts, said):
    worked = worked_out(facts)
    rounded = any(
        one.exactly is not None and (one.follows & one.linked_follows & ~one.exactly).any()
        for one in worked.stages
    )
    begins, inherits = worked.count("begins"), worked.count("inherits")
    shown = {"wrong: an error begins here": begins, "inherits an error": inherits}
    assert (shown | {"within rounding": rounded})[said["what"]]
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


@EXAMPLE.sentence("<name:*>, given")
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
