"""Sentences of ablate, check, explain and shift, and the numbers that they should name."""

import math
import re
from collections import Counter

import numpy as np

from figures.sentences.facts import by_word, numbered, spearman
from figures.sentences.reading import OneOf, Patterns, agrees

MANY = 6  # words or heads from which on ρ is said

# ------------------------------------------------------------------------------------- ablate

ABLATE = Patterns()


def losses(facts):
    """Return what is lost without each set, the mean over texts, and the names of the sets."""
    names = ["+".join(f"{layer}.{head}" for layer, head in one) for one in np.array(facts.sets)]
    return names, np.asarray(facts.lost, float).mean(0)


def first_loss(facts):
    """Return the set without which most changes; of several texts, of those that are certain."""
    names, lost = losses(facts)
    assert len(facts.texts) == 1, "several texts have intervals: check them, too"
    number = int(np.argmax(np.abs(lost)))
    return names[number], lost[number]


@ABLATE.sentence(
    "The <what:log-probability|logit> of “<target:w>” <verb:falls|rises> by <lost> "
    "<unit:nats|logits> without head <head:h>"
)
def ablate_headline(facts, said):
    head, lost = first_loss(facts)
    verb = "falls" if lost > 0 else "rises"
    unit = {"log-probability": "nats", "logit": "logits"}[facts.quantity]
    one = {"what": facts.quantity, "target": facts.targets[0], "verb": verb, "unit": unit}
    return one | {"lost": abs(lost), "head": head}


@ABLATE.sentence("The vector of “<target:w>” moves by <lost> of its length without head <head:h>")
def ablate_vector(facts, said):
    head, lost = first_loss(facts)
    assert facts.quantity == "vector"
    return {"target": facts.targets[0], "lost": lost, "head": head}


@ABLATE.sentence(
    "orange: the head raises the <number:*> (at most <most> <unit:*>); blue: lowers it"
)
def ablate_key(facts, said):
    _, lost = losses(facts)
    return {"number": facts.quantity, "most": np.abs(lost).max(), "unit": "nats"}


@ABLATE.sentence("nats lost; rank correlation of the gradient’s estimate: <rho>")
@ABLATE.sentence("rank correlation ρ of the gradient's estimate with what is lost: <rho>")
def ablate_correlation(facts, said):
    _, lost = losses(facts)
    assert len(lost) >= MANY
    return {"rho": spearman(np.asarray(facts.estimate, float).mean(0), lost)}


@ABLATE.sentence(
    "<what:T|t>he output of the head is replaced by its mean over the text at all "
    "positions[[ but the <sink:attention sink>]]; everything after it is recomputed."
)
@ABLATE.sentence(
    "<effect:total|direct> effects: the output of the head is replaced by its mean "
    "over the text at all positions[[ but the <sink:attention sink>]]"
)
def ablate_change(facts, said):
    sink = "attention sink" if "attention sink" in facts.how else None
    assert "its mean over the text" in facts.how
    one = {"sink": sink} | ({"what": OneOf("Tt")} if "what" in said else {})
    return one | ({"effect": facts.effect} if "effect" in said else {})


ABLATE.words("The largest effects (layer.head)")


@ABLATE.sentence("<heads:l>")
def ablate_bars(facts, said):
    """The names of the heads beside the bars, or their numbers: the eight largest, in order."""
    names, lost = losses(facts)
    order = np.argsort(-np.abs(lost), kind="stable")[:8]
    words = said["heads"].split()
    if len(words) != len(order):
        return []
    if words[0].count(".") and words == [names[n] for n in order]:
        return {"heads": said["heads"]}
    right = all(agrees(word, lost[n]) for word, n in zip(words, order, strict=True))
    return {"heads": said["heads"]} if right else []


# -------------------------------------------------------------------------------------- check

CHECK = Patterns()
LAYERS = "layers <low:i>–<high:i>"


def compared_layers(facts):
    """Return how many heads were compared, and the first and the last of their layers."""
    names = getattr(facts, "head_names", None)
    layers = [int(name.partition(".")[0]) for name in names] if names else facts.layers
    assert sorted(set(layers)) == list(range(min(layers), max(layers) + 1))
    return {"heads": len(layers), "low": min(layers), "high": max(layers)}


def is_off(facts):
    """Return which heads differ: by more than passes, or by the slope that the record holds."""
    wrong = ~np.asarray(facts.agree, bool)
    assert (np.asarray(facts.differences)[~wrong] <= np.asarray(facts.tolerances)[~wrong]).all()
    return wrong


@CHECK.sentence(
    f"agrees: <heads> heads of {LAYERS} differ from attnviz's by at most <most>",
    f"All <heads> heads of {LAYERS} agree, to <most>",
)
def check_agrees(facts, said):
    assert not is_off(facts).any()
    return compared_layers(facts) | {"most": np.max(facts.differences)}


@CHECK.sentence(
    "DIFFERS first in head <head:h>, from “<query:w>” to “<key:w>”: <theirs> instead of <ours>; "
    "<wrong> of <heads> heads differ"
)
def check_differs(facts, said):
    first = facts.first if isinstance(facts.first, dict) else vars(facts.first)
    wrong = is_off(facts)
    names = facts.head_names
    assert abs(first["theirs"] - first["ours"]) > facts.tolerances[int(np.argmax(wrong))]
    one = {"query": first["query"], "key": first["key"], "theirs": first["theirs"]}
    return one | {
        "head": names[int(np.argmax(wrong))],
        "ours": first["ours"],
        "wrong": int(wrong.sum()),
        "heads": len(wrong),
    }


@CHECK.sentence("heads <a> and <b> of layer <layer> are swapped")
def check_swapped(facts, said):
    wrong = [facts.head_names[n] for n in np.flatnonzero(is_off(facts))]
    (layer,) = {name.partition(".")[0] for name in wrong}
    first, second = (int(name.partition(".")[2]) for name in wrong)
    off = np.asarray(facts.differences)[is_off(facts)]
    assert np.ptp(off) < 1e-4, "what one has instead of the other, the other has instead of it"
    return {"a": first, "b": second, "layer": int(layer)}


@CHECK.sentence(
    "an array of shape (<m>, <n>, <T>, <T2>) was read as <layers> layers of <heads> heads"
)
def check_shape(facts, said):
    layers = {name.partition(".")[0] for name in facts.head_names}
    count = len(facts.head_names) // len(layers)
    side = len(facts.provenance.text.split()) + 2
    return {
        "m": len(layers),
        "n": count,
        "T": side,
        "T2": side,
        "layers": len(layers),
        "heads": count,
    }


CHECK.words("Blank: the head agrees.")
CHECK.words(
    "Color: the largest difference of a weight, on a logarithmic scale from what rounding explains "
    "in two runs."
)


@CHECK.sentence(
    "Another tool's weights beside attnviz's own, which have the verdict below, on "
    "“<text:w>”, read by <model:*>."
)
def check_caption(facts, said):
    return {"text": facts.provenance.text, "model": facts.provenance.model}


# ------------------------------------------------------------------------------------ explain

EXPLAIN = Patterns()
QUESTION = "“<target:w>”[[ over “<other:w>”]]"


def explained(facts):
    """Return what is measured of each word, and what it contributes, from the raw arrays."""
    special, unmeasured = np.asarray(facts.special, bool), list(facts.unmeasured)
    ranked = [n for n in range(len(special)) if not special[n] and n not in unmeasured]
    if hasattr(facts, "causal"):
        causal = {name: np.asarray(lost, float) for name, lost in facts.causal.items()}
        credit = by_word(facts, facts.decomposition.credit)
        methods = {name: np.array(scores, float) for name, scores in facts.methods.items()}
    else:
        fields = vars(facts)
        causal = {k[8:]: np.array(v, float) for k, v in fields.items() if k.startswith("lost_by_")}
        methods = {k[7:]: np.array(v, float) for k, v in fields.items() if k.startswith("method_")}
        credit = by_word(facts, facts.token_credit)
    for scores in (credit, *methods.values()):
        scores[unmeasured] = np.nan
    return ranked, causal, credit, methods


def mean_effect(causal, ranked):
    """Return the mean of the interventions, each scaled to their mean deviation over the words."""
    rows = np.array([*causal.values()])
    sizes = rows[:, ranked].std(1, ddof=1)
    return (rows * (sizes.mean() / np.where(sizes > 0, sizes, np.inf))[:, None]).mean(0)


def question(facts, said=()):
    """Return the choices, and what moves the number, if it is said: the context, or the text."""
    alone = "may read only itself" in facts.reference
    moved = {"moved": "context" if alone else "text"} if "moved" in said else {}
    return {"target": facts.target, "other": facts.against} | moved


def total_of(facts):
    """Return the sum of what the words contribute: how the context moves the number."""
    credit = getattr(facts, "token_credit", None)
    credit = facts.decomposition.credit if credit is None else credit
    return float(np.nansum(np.asarray(credit, float)))


def largest(numbers, ranked):
    """Return the word with the largest number, whatever its sign."""
    return max(ranked, key=lambda n: abs(numbers[n]))


def direction(facts):
    """Return the largest effect of a word: which way it moves the number."""
    ranked, causal, _, _ = explained(facts)
    effect = mean_effect(causal, ranked)
    return effect[largest(effect, ranked)]


def leading_words(facts):
    """Return the word that moves the number most by their mean, and those by each intervention."""
    ranked, causal, _, _ = explained(facts)
    sign = 1 if direction(facts) >= 0 else -1
    numbers = mean_effect(causal, ranked), *causal.values()
    return [max(ranked, key=lambda n: sign * of[n]) for of in numbers]


def strongest_word(facts):
    """Return the word that most interventions, and their mean, call the first; None if none."""
    (first, *firsts), (_, causal, _, _) = leading_words(facts), explained(facts)
    sign = 1 if direction(facts) >= 0 else -1
    agree = all(sign * lost[first] >= 0.005 for lost in causal.values())
    return first if agree and 2 * firsts.count(first) > len(firsts) else None


def neighbors(facts, words):
    """Return some neighboring words as the text has them; None if they are far apart."""
    low, high, (ranked, *_) = min(words), max(words) + 1, explained(facts)
    if high - low > min(4, len(ranked) // 2) or any(facts.special[low:high]):
        return None
    return re.sub(r" (?=[.,])", "", " ".join(facts.words[low:high]))


def lowered_by_context(facts):
    """Whether the contributions and the measured effects sum to much less than 0."""
    ranked, causal, _, _ = explained(facts)
    effect = mean_effect(causal, ranked)
    return max(total_of(facts), effect[ranked].sum(), effect[largest(effect, ranked)]) <= -0.1


@EXPLAIN.sentence(
    f"“<word:w>” <verb:raises|lowers> {QUESTION} <how:most|least>",
    f"The <moved:context|text> <verb:raises|lowers> {QUESTION}, “<word:w>” <how:most|least>",
    f"A word of “<group:w>” <verb:raises|lowers> {QUESTION} <how:most|least>",
    f"The <moved:context|text> <verb:raises|lowers> {QUESTION}, a word of “<group:w>” "
    "<how:most|least>",
)
def explain_headline(facts, said):
    first, (_, *firsts) = strongest_word(facts), leading_words(facts)
    if (first is None) != ("group" in said) or lowered_by_context(facts) != ("moved" in said):
        return []
    verb = "raises" if direction(facts) >= 0 else "lowers"
    one = {"group": neighbors(facts, firsts)}
    one = {"word": numbered(facts.words)[first]} if first is not None else one
    return question(facts, said) | one | {"verb": verb, "how": "most"}


@EXPLAIN.sentence(f"Interventions disagree on which word <verb:raises|lowers> {QUESTION} most")
def explain_disagree(facts, said):
    assert strongest_word(facts) is None, "they agree"
    assert neighbors(facts, leading_words(facts)[1:]) is None, "they name one group"
    return question(facts, said) | {"verb": "raises" if direction(facts) >= 0 else "lowers"}


@EXPLAIN.sentence(
    "The difference of the logits is <value> here and <baseline> <where:without context|in the "
    "reference>; probability <probability>.",
    "The <number:logit|log-probability> of “<target:w>” is <value> here and <baseline> "
    "<where:without context|in the reference>; probability <probability>.",
)
def explain_finding(facts, said):
    alone = "may read only itself" in facts.reference
    one = {"value": facts.value, "baseline": facts.baseline, "probability": facts.probability}
    one |= {"number": facts.number, "target": facts.target} if "number" in said else {}
    assert (facts.number == "difference") == ("number" not in said)
    assert math.isclose(facts.value - facts.baseline, total_of(facts), abs_tol=1e-4)
    return one | {"where": "without context" if alone else "in the reference"}


@EXPLAIN.sentence(
    "Changing “<word:w>” <verb:raises|lowers> it by <low> to <high> <unit:logits|nats>, by the "
    "kind of change."
)
def explain_changes(facts, said):
    first, (_, causal, _, _) = strongest_word(facts), explained(facts)
    sizes = sorted(abs(lost[first]) for lost in causal.values())
    verb = "lowers" if direction(facts) >= 0 else "raises"
    one = {"word": numbered(facts.words)[first], "verb": verb, "unit": unit_of(facts)}
    return one | {"low": sizes[0], "high": sizes[-1]}


@EXPLAIN.sentence("lowers, <least>", f"<most> <unit:logits|nats>, raises {QUESTION}")
def explain_ends_of_colors(facts, said):
    """The ends of the colors: the largest measured effect, or else contribution, of a word."""
    ranked, causal, credit, _ = explained(facts)
    numbers = mean_effect(causal, ranked) if causal else np.asarray(credit, float)
    end = max(abs(numbers[largest(numbers, ranked)]), 0.02)
    one = question(facts) | {"least": -end, "most": end, "unit": unit_of(facts)}
    return {name: one[name] for name in said}


def unit_of(facts):
    return "nats" if facts.number == "log-probability" else "logits"


@EXPLAIN.sentence(
    "The <how:largest|smallest> contribution is that of “<word:w>”, <credit> <unit:logits|nats>."
)
def explain_contribution(facts, said):
    ranked, _, credit, _ = explained(facts)
    n = largest(credit, ranked)
    assert strongest_word(facts) in (None, n)
    one = {"how": "largest", "word": numbered(facts.words)[n]}
    return one | {"credit": credit[n], "unit": unit_of(facts)}


@EXPLAIN.sentence(
    "The contributions name another word[[ of “<group:w>”]] first: “<word:w>”, <credit> "
    "<unit:logits|nats>."
)
def explain_other_word(facts, said):
    ranked, _, credit, _ = explained(facts)
    first, n = strongest_word(facts), largest(credit, ranked)
    assert first not in (None, n)
    one = {"word": numbered(facts.words)[n], "credit": credit[n], "unit": unit_of(facts)}
    return one | {"group": neighbors(facts, (first, n))}


@EXPLAIN.sentence(
    "<way:C|c>olors: measured effect, the <unit:logits|nats> that are lost in separate runs, mean "
    "of <kinds:*>, each scaled to their mean deviation[[.]]"
)
def explain_colors(facts, said):
    _, causal, _, _ = explained(facts)
    return {"way": OneOf("Cc"), "unit": unit_of(facts), "kinds": ", ".join(causal)}


@EXPLAIN.sentence(
    "Contributions over all paths, in <unit:logits|nats>, sum to <total> "
    "(completeness error <error>)."
)
def explain_sum(facts, said):
    return {
        "unit": unit_of(facts),
        "total": facts.value - facts.baseline,
        "error": split_error(facts.decomposition),
    }


def split_error(split):
    """Return how far the contributions and the direct parts miss the whole, the larger share."""
    direct = np.append((split.value + split.routing).ravel(), split.start)
    parts = np.asarray(split.credit, float), direct
    return max(abs(one.sum() - split.total) / np.abs(one).sum() for one in parts)


@EXPLAIN.sentence("<what:C|c>ompared with <reference:*>[[.]]")
def explain_reference(facts, said):
    return {"what": OneOf("Cc"), "reference": facts.reference}


@EXPLAIN.sentence(
    "“<a:w>” (<share_a>) and “<b:w>” (<share_b>) are nearly tied, so the first is explained alone"
)
def explain_tie(facts, said):
    (a, share_a), (b, share_b) = sorted(facts.top.items(), key=lambda one: -one[1])[:2]
    assert 0 <= math.log(share_a / share_b) < 0.5
    assert facts.against is None
    return {"a": a, "b": b, "share_a": share_a, "share_b": share_b}


@EXPLAIN.sentence(
    'read as special tokens, not as plain text: <token:*> (special_tokens="split", '
    "--special-tokens split)"
)
def explain_special(facts, said):
    marked = {word for word, one in zip(facts.words, facts.special, strict=True) if one}
    (token,) = {word for word in facts.provenance.text.split() if word in marked or "[" in word}
    return {"token": token}


EXPLAIN.words(
    "shares of the largest number of each row; partial split: contributions where some words are "
    "hidden",
    "measured effect",
    "contributions",
    "partial split",
    "gradient attention",
)


@EXPLAIN.sentence("<what:N|n>ot measured: <words:*>, the same in both runs[[.]]")
def explain_unmeasured(facts, said):
    names = [f"“{numbered(facts.words)[n]}”" for n in facts.unmeasured]
    return {"what": OneOf("Nn"), "words": ", ".join(names)}


@EXPLAIN.sentence("“<word:w>” is <place:first|last> in <rows:*>")
def explain_rows(facts, said):
    firsts = first_of_rows(facts)
    counts = Counter(firsts.values())
    (word, count), *_ = counts.most_common(1)
    assert count > 1
    *rows, last = [row for row, first in firsts.items() if first == word]
    one = {"word": numbered(facts.words)[word], "place": "first"}
    return one | {"rows": f"{', '.join(rows)} and {last}"}


@EXPLAIN.sentence("Each row has another word first[[, a word of “<group:w>”]]")
def explain_rows_that_differ(facts, said):
    firsts = [*first_of_rows(facts).values()]
    assert len({*firsts}) == len(firsts) > 1
    return {"group": neighbors(facts, firsts)}


def first_of_rows(facts):
    """Return the word with the largest number of each row."""
    ranked, causal, credit, methods = explained(facts)
    rows = {"measured effect": mean_effect(causal, ranked)} if causal else {}
    rows |= {"contributions": credit, **methods}
    return {row.replace("-", " "): largest(numbers, ranked) for row, numbers in rows.items()}


@EXPLAIN.sentence("<token:words>")
def explain_numbered_word(facts, said):
    """A numbered word."""
    return {"token": OneOf([name for name in numbered(facts.words) if "#" in name])}


def as_printed(share):
    return f"{share:.0%}" if share >= 0.01 else f"{100 * share:.2g}%"


@EXPLAIN.sentence("most probable: <top:*>")
def explain_top(facts, said):
    pairs = zip(facts.top, facts.top_probabilities, strict=True)
    listed = [f"{label} {as_printed(share)}" for label, share in pairs]
    assert [*facts.top_probabilities] == sorted(facts.top_probabilities, reverse=True)
    return {"top": ", ".join(listed)}


@EXPLAIN.sentence("[[→ ]]<target:*> <share>")
def explain_target(facts, said):
    return {"target": facts.target, "share": facts.probability}
