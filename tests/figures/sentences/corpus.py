"""Sentences of survey, explore and compare, and the numbers that they should name."""

from collections import Counter

import numpy as np

from figures.sentences.proof import largest
from figures.sentences.reading import OneOf, Patterns, agrees

SURE = 0.01  # a smaller p is sure
REST = ("rests on the first token", "rests on special tokens")
COLUMNS = {  # the statistic of a role
    "own token": "self", "previous token": "previous", "next token": "next",
    REST[0]: "first", REST[1]: "separators", "same token": "same token",
    "induction": "induction", "punctuation": "punctuation",
}  # fmt: skip
TITLES = {
    "distance": "mean distance, tokens", "self": "weight for itself",
    "previous": "for the previous token", "next": "for the next token",
    "first": "for the first token", "separators": "for special tokens",
    "same token": "for the same token elsewhere", "induction": "for what followed it before",
    "punctuation": "for periods and commas", "entropy": "entropy, nats",
    "most read": "most read token's share",
}  # fmt: skip
SHORT = ("same token", "induction", "most read", "entropy, nats", "distance", "self", "previous",
         "next", "first", "separators", "punctuation")  # fmt: skip


def names_of(facts):
    """Return the names of the heads: layer.head."""
    if hasattr(facts, "head_names"):
        return [name.split()[-1] for name in facts.head_names]
    return [f"{one.layer}.{one.head}" for one in facts.heads]


def model_of(facts):
    return facts.provenance.model


def panels(patterns):
    """Add the titles of panels, and the end of the scale of each."""

    @patterns.sentence("[[±]]<end>")
    def scale_end(facts, said):
        """The end of the scale of some statistic: its largest mean or change, roughly."""
        arrays = [getattr(facts, name, None) for name in ("mean", "change", "apart")]
        ends = [
            float(np.nanmax(np.abs(column)))
            for array in arrays if array is not None
            for column in np.asarray(array, float).reshape(len(array), -1).T
        ]  # fmt: skip
        return {"end": OneOf([*ends, 1.0])}

    patterns.words(*TITLES.values(), *SHORT, "how far apart the maps are", "none")


# ------------------------------------------------------------------------------------- survey

SURVEY = Patterns()
panels(SURVEY)


def named(facts):
    return [role for role in facts.roles if role]


@SURVEY.sentence("<none:No|Every> head of <model:*> has a confirmed role on <texts> texts")
def survey_none(facts, said):
    assert not named(facts)
    return {"none": "No", "model": model_of(facts), "texts": facts.texts}


@SURVEY.sentence(
    "<some> of <all> heads have a role on <texts> texts, <most:most|least> often "
    "“<role:w>” (<count>)"
)
@SURVEY.sentence(
    "<some> of <all> heads have a role on <texts> texts, and <count> of these "
    "<rest:rest|rests> on <rested:the first token|special tokens>"
)
def survey_roles(facts, said):
    roles = Counter(named(facts))
    most = max(roles.values())
    one = {"some": sum(roles.values()), "all": len(facts.roles), "texts": facts.texts}
    ties = [role for role, count in roles.items() if count == most]
    one["count"] = most
    if "rest" in said:
        one["rest"] = "rest" if most > 1 else "rests"
        return one | {"rested": OneOf([role.removeprefix("rests on ") for role in ties])}
    assert not any(role.startswith("rests") for role in ties)
    return one | {"most": "most", "role": OneOf(ties)}


@SURVEY.sentence("<texts> texts, <tokens> tokens, read by <model:*>.")
def survey_source(facts, said):
    return {"texts": facts.texts, "tokens": facts.tokens, "model": model_of(facts)}


SURVEY.words(
    "Bars with 95% intervals over texts; faint: no significant difference from shuffled keys.",
    "Each panel: layers down, heads across; means over texts of the mean over tokens other than "
    "special tokens.",
    "Faint: no significant difference (p ≥ 0.01 by sign flips of the texts, corrected for all "
    "heads and statistics) from what the keys of each query give when they are shuffled; of "
    "entropy and of the token read most, from what the model does on shuffled tokens.",
    "Mean weight of heads with a role (line: even weights)",
    "Each statistic: layers down, heads across",
    "each panel: 0",
    "the number above; faint: not surely unlike shuffled keys",
)


@SURVEY.sentence(
    "Named: heads whose weight exceeds that of shuffled keys by a quarter on half of the texts, "
    "significantly so on the other half: <listed:*>."
)
def survey_named(facts, said):
    """Heads that rest are left out; each that is named exceeds its even weight by a quarter."""
    listed = []
    for n, (name, role) in enumerate(zip(names_of(facts), facts.roles, strict=True)):
        if role and role not in REST:
            column = facts.statistics.index(COLUMNS[role])
            excess = facts.mean[n][column] - facts.even[n][column]
            assert excess > 0.2, f"{name} has {excess:.2f} more than even weights"
            listed.append(f"{name} {role}")
    return {"listed": ", ".join(listed) or "none"}


@SURVEY.sentence(
    "In <compared> of the texts the statistics differ from those of the model's own "
    "weights by at most <most> of the most they can be."
)
def survey_compared(facts, said):
    return {"compared": facts.compared, "most": largest(facts.agreement, "statistics")}


@SURVEY.sentence("<count> heads of <model:*> on <texts> texts")
def survey_line(facts, said):
    return {"count": len(facts.roles), "model": model_of(facts), "texts": facts.texts}


@SURVEY.sentence("[[<head:h> ]]<role:*>")
def survey_role(facts, said):
    """A role in the key, or a head beside its bar: the twelve with most weight, at rest last."""
    if said["head"] is None:
        return {"head": None, "role": OneOf(named(facts))}
    weights = {}
    for n, (name, role) in enumerate(zip(names_of(facts), facts.roles, strict=True)):
        if role:
            column = facts.statistics.index(COLUMNS[role])
            weights[name] = (role in REST, -facts.mean[n][column], role)
    shown = sorted(weights, key=weights.get)[:12]
    return [{"head": name, "role": weights[name][2]} for name in shown]


@SURVEY.sentence("<role:*>: <heads:*>")
def survey_role_line(facts, said):
    if said["role"] not in facts.roles:
        return []
    pairs = zip(names_of(facts), facts.roles, strict=True)
    return {
        "role": said["role"],
        "heads": ", ".join(n for n, role in pairs if role == said["role"]),
    }


# ------------------------------------------------------------------------------------ explore

EXPLORE = Patterns()


@EXPLORE.sentence("<texts> texts, <tokens> tokens")
def explore_source(facts, said):
    return {"texts": facts.survey.texts, "tokens": facts.survey.tokens}


@EXPLORE.sentence("<count> heads of <model:*> on <texts> texts")
def explore_line(facts, said):
    return survey_line(facts.survey, said)


# ------------------------------------------------------------------------------------ compare

COMPARE = Patterns()
panels(COMPARE)


def farthest(facts):
    return [int(n) for n in np.argsort(-np.nan_to_num(facts.apart, nan=-1), kind="stable")]


@COMPARE.sentence(
    "<changed> of <all> heads changed significantly from <first:*> to <second:*>; the maps of head "
    "<head:h> differ <most:most|least>"
)
def compare_title(facts, said):
    first, second = facts.checkpoints
    changed = (np.asarray(facts.p_value)[0] < SURE).any(1).sum()
    one = {"changed": changed, "all": len(facts.apart), "first": first, "second": second}
    return one | {"head": names_of(facts)[farthest(facts)[0]], "most": "most"}


@COMPARE.sentence("<texts> texts, <tokens> tokens, read by <first:*> and by <second:*>.")
def compare_source(facts, said):
    first, second = facts.checkpoints
    return {"texts": facts.texts, "tokens": facts.tokens, "first": first, "second": second}


COMPARE.words(
    "Each panel: layers down, heads across.",
    "First panel: the root of the Jensen–Shannon divergence between what a head gives to the same "
    "keys in both models, from 0 to 1, mean over rows and texts.",
)


@COMPARE.sentence(
    "The others: <second:*> minus <first:*>, mean over texts; blank: no significant "
    "difference (p ≥ 0.01 by sign flips of the texts, corrected for all heads and "
    "statistics)."
)
def compare_others(facts, said):
    first, second = facts.checkpoints
    change = np.diff(np.asarray(facts.mean), axis=0)
    assert np.allclose(np.nan_to_num(change), np.nan_to_num(facts.change), atol=1e-5)
    return {"first": first, "second": second}


@COMPARE.sentence("Farthest apart, with 95 % intervals: <listed:*>.")
def compare_farthest(facts, said):
    words = said["listed"].replace("(", "").replace(")", "").replace(",", "").split()
    fine = len(words) == 8 * 5
    for n, place in zip(farthest(facts)[:8], range(0, len(words), 5), strict=False):
        name, apart, low, to, high = words[place : place + 5]
        fine &= name == names_of(facts)[n] and to == "to" and agrees(apart, facts.apart[n])
        fine &= agrees(low, facts.apart_low[n]) and agrees(high, facts.apart_high[n])
    return {"listed": said["listed"]} if fine else []


@COMPARE.sentence("<count> heads of <second:*> beside those of <first:*>, <texts> texts")
def compare_line(facts, said):
    first, second = facts.checkpoints
    return {"count": len(facts.apart), "first": first, "second": second, "texts": facts.texts}
