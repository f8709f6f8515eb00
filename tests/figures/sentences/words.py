"""Sentences of senses and shift, and the numbers that they should name."""

import math

import numpy as np
from scipy.stats import binomtest

from figures.sentences.facts import by_word, numbered, spearman
from figures.sentences.proof import of_machine
from figures.sentences.reading import OneOf, Patterns, agrees, read_number

# ------------------------------------------------------------------------------------- senses

SENSES = Patterns()
LEVEL, BEYOND = 0.01, 0.05  # of significance: of the shuffles, and beside the other words
FEW = 12  # sentences


def joined(names):
    return " and ".join([part for part in (", ".join(names[:-1]), *names[-1:]) if part])


def counted(facts):
    """Return which occurrences count, and how many each sense has."""
    kept = [n for n in range(len(facts.occurrences)) if n not in facts.alike]
    senses = [facts.occurrences[n].sense for n in kept]
    return kept, {sense: senses.count(sense) for sense in facts.senses}


def scores(facts):
    """Return the share of right ones in each state: from each occurrence, not from the scores."""
    kept, _ = counted(facts)
    return np.asarray(facts.right, float)[:, kept].mean(1)


def chance(facts):
    _, counts = counted(facts)
    return max(counts.values()) / sum(counts.values())


def others_right(facts):
    """Return the share of right ones by the other words alone."""
    if facts.context_right is None:  # an older result
        return facts.context.accuracy
    kept, _ = counted(facts)
    return np.asarray(facts.context_right, float)[kept].mean()


def p_beyond(facts, state):
    """Return the p-value of a state against the other words alone: a sign test of sentences."""
    if facts.context_right is None:
        return math.nan
    by_sentence = {}
    gain = np.nan_to_num(np.asarray(facts.right, float)[state] - np.asarray(facts.context_right))
    for one, difference in zip(facts.occurrences, gain, strict=True):
        by_sentence[one.sentence] = by_sentence.get(one.sentence, 0.0) + difference
    better = sum(difference > 1e-9 for difference in by_sentence.values())
    worse = sum(difference < -1e-9 for difference in by_sentence.values())
    return binomtest(better, better + worse).pvalue if better > worse else 1.0


def separates(facts):
    """Return whether each state tells the senses apart: by the shuffles, and above guessing."""
    return [one.p_value <= LEVEL and one.low > chance(facts) for one in facts.scores]


def since(holds):
    """Return the first state from which on all hold; None if the last does not."""
    wrong = [n for n, holds_here in enumerate(holds) if not holds_here]
    first = wrong[-1] + 1 if wrong else 0
    return first if first < len(holds) else None


def splits(facts):
    """Return which states also do better than the other words alone."""
    pairs = enumerate(separates(facts))
    return [fine and p_beyond(facts, n) <= BEYOND for n, fine in pairs]


def sense_slots(facts):
    count = len(facts.senses)
    senses = joined(facts.senses) if count < 3 else f"its {count} senses"
    return {"word": facts.word, "senses": senses}


@SENSES.sentence("No split of “<word:w>” into <senses:*> can be shown at the output[[.]]")
def senses_none(facts, said):
    assert since(separates(facts)) is None, "the output tells them apart"
    assert len(counted(facts)[0]) >= FEW or scores(facts)[-1] < 0.8, "there are few sentences"
    return sense_slots(facts)


@SENSES.sentence(
    "<count> <unit:sentences|occurrences> are too few to show that “<word:w>” splits into "
    "<senses:*>[[.]]"
)
def senses_few(facts, said):
    """One that is wrong would decide, and most are right."""
    count = len(counted(facts)[0])
    assert since(separates(facts)) is None, "the output tells them apart"
    assert count < FEW
    assert scores(facts)[-1] >= 0.8
    return sense_slots(facts) | {"count": count, "unit": unit(facts)}


@SENSES.sentence("“<word:w>” differs between <senses:*> before any context[[.]]")
def senses_static(facts, said):
    """The word itself tells the senses apart as it enters the first layer, and ever after."""
    assert since(separates(facts)) == 0
    return sense_slots(facts)


@SENSES.sentence(
    "<from:From layer|At the output>[[ <state> on]], “<word:w>” tells <senses:*> apart, but "
    "<better:not clearly|no> better than the other words[[.]]"
)
def senses_told(facts, said):
    first, last = since(separates(facts)), len(facts.scores) - 1
    assert first not in (None, 0)
    assert since(splits(facts)) is None, "it does better than the other words alone"
    better = "not clearly" if scores(facts)[-1] > others_right(facts) + 1e-9 else "no"
    one = sense_slots(facts) | {"better": better}
    at_end, from_layer = {"from": "At the output", "state": None}, {"from": "From layer"}
    return one | (at_end if first == last else from_layer | {"state": first})


@SENSES.sentence(
    "<from:From layer|At the output>[[ <state> on]], “<word:w>” splits into <senses:*>[[.]]"
)
def senses_split(facts, said):
    first, last = since(splits(facts)), len(facts.scores) - 1
    assert first is not None
    at_end, from_layer = {"from": "At the output", "state": None}, {"from": "From layer"}
    return sense_slots(facts) | (at_end if first == last else from_layer | {"state": first})


def unit(facts):
    """Return what is counted: sentences that have the word once, or occurrences."""
    sentences = {one.sentence for one in facts.occurrences}
    return "sentences" if len(sentences) == len(facts.occurrences) else "occurrences"


@SENSES.sentence(
    "At the output <right> of <count> <unit:sentences|occurrences> lie nearer to their own sense "
    "(guessing <guessed>; the other words alone, without attention, <others>[[, p = <p>]])."
)
def senses_details(facts, said):
    kept, counts = counted(facts)
    p = p_beyond(facts, -1)
    return {
        "right": scores(facts)[-1] * len(kept), "count": len(kept), "unit": unit(facts),
        "guessed": max(counts.values()), "others": others_right(facts) * len(kept),
        "p": None if math.isnan(p) else p,
    }  # fmt: skip


def margins(facts):
    """Return the cosine to the own sense minus the largest to another (states, occurrences).

    The centroids, and the mean of all, are of the other sentences.
    """
    vectors, kept = np.asarray(facts.vectors, float), counted(facts)[0]
    found = np.full(vectors.shape[:2], math.nan)
    for n in kept:
        one = facts.occurrences[n]
        rest = [k for k in kept if facts.occurrences[k].sentence != one.sentence]
        middle = 0 if facts.raw else vectors[:, rest].mean(1)
        near = {}
        for sense in facts.senses:
            members = [k for k in rest if facts.occurrences[k].sense == sense]
            center, vector = vectors[:, members].mean(1) - middle, vectors[:, n] - middle
            lengths = np.linalg.norm(center, axis=1) * np.linalg.norm(vector, axis=1)
            near[sense] = (center * vector).sum(1) / lengths
        own = near.pop(one.sense)
        found[:, n] = own - np.max([*near.values()], axis=0)
    ties = (np.asarray(facts.right, float) % 1) > 0
    return np.where(ties, 0, found)


def best_state(facts):
    """Return the state with the highest accuracy, the first of equals."""
    shares = scores(facts)
    return int(np.flatnonzero(shares >= shares.max() - 1e-9)[0])


def state_name(facts, state):
    return "output" if state == len(facts.scores) - 1 else f"entering layer {state}"


@SENSES.sentence(
    "The <how:best|worst> of <count> states, <state:*>, has <right> (p = <p> over all)."
)
def senses_best(facts, said):
    best = best_state(facts)
    name = state_name(facts, best)
    one = {"how": "best", "count": len(facts.scores), "state": name}
    right = scores(facts)[best] * len(counted(facts)[0])
    return one | {"right": right, "p": facts.p_best}


@SENSES.sentence(
    "“<word:w>” <times> times in <sentences> sentences (<senses:*>), read by <model:*>.",
)
def senses_source(facts, said):
    _, counts = counted(facts)
    listed = ", ".join(f"{sense} {counts[sense]}" for sense in facts.senses)
    return {
        "word": facts.word, "times": len(facts.occurrences),
        "sentences": len({one.sentence for one in facts.occurrences}), "senses": listed,
        "model": facts.provenance.model,
    }  # fmt: skip


@SENSES.sentence(
    "Right, on its own side: nearest by cosine to the centroid of its own sense, computed without "
    "its sentence[[; <sure:from that layer on p ≤ 0.01 in each>]]."
)
def senses_rule(facts, said):
    sure = "from that layer on p ≤ 0.01 in each"
    return {"sure": None if since(separates(facts)) is None else sure}


@SENSES.sentence(
    "Underlined: gets most attention in layer <layer>.",
    "content words that get most of its attention in layer <layer>",
)
def senses_layer(facts, said):
    return {"layer": facts.attention_layer}


SENSES.words(
    "Attention to underlined words: mean of all heads, special tokens left out.",
    "Band: 95% interval (Wilson), wider by refits of the centroids with weighted sentences.",
    "margin",
)


@SENSES.sentence(
    "Margin[[ (<second:*>: down, mirrored)]]: cosine to the centroid of its own sense minus that "
    "of the nearest other, both without its sentence; clipped without context."
)
def senses_up(facts, said):
    return {"second": facts.senses[1] if len(facts.senses) == 2 else None}


@SENSES.sentence("Dashed: ends on the wrong side.")
def senses_dashed(facts, said):
    assert (np.asarray(facts.right, float)[-1] <= 0.5).any()
    return {}


@SENSES.sentence(
    "Thick: <who:the sentence that hesitates|the two that hesitate longest|"
    "the occurrence that hesitates>."
)
def senses_thick(facts, said):
    """Undecided in all states from that of the title on, or wrong in some and right at last."""
    first = since(splits(facts)) or since(separates(facts))
    assert first is not None
    after = margins(facts)[first:]
    small = np.abs(after).max(0) < 0.12
    turned = (after.min(0) < 0) & (after[-1] > 0)
    one = f"the {unit(facts)[:-1]} that hesitates"
    count = int((small | turned).sum())
    assert count
    return {"who": one if count == 1 else "the two that hesitate longest"}


@SENSES.sentence("<share> on their own side")
def senses_at_end(facts, said):
    return {"share": scores(facts)[-1]}


@SENSES.sentence("gray line: <share> by the other words alone")
def senses_beside(facts, said):
    return {"share": others_right(facts)}


@SENSES.sentence("read by <model:*>")
def senses_model(facts, said):
    return {"model": facts.provenance.model}


@SENSES.sentence(
    "[[<what:T|t>he best layer is chosen on the same sentences, the output is not]][[.]]"
)
def senses_choice(facts, said):
    return {"what": OneOf("Tt")}


@SENSES.sentence("<what:V|v>ectors <how:centered|centred> on the mean of all others[[.]]")
def senses_centered(facts, said):
    assert not facts.raw
    return {"what": OneOf("Vv"), "how": OneOf(["centered", "centred"])}


@SENSES.sentence(
    "Output <output> (<low> to <high>); guessing <chance>; other words, the mean static embedding "
    "of the sentence without the word, <others> (<o_low> to <o_high>); the p after them is that of "
    "a sign test of the output against them."
)
def senses_numbers(facts, said):
    return {
        "output": scores(facts)[-1], "chance": chance(facts), "others": others_right(facts),
        **interval(facts.scores[-1]), **interval(facts.context, "o_"),
    }  # fmt: skip


def interval(score, prefix=""):
    """Return the ends of an interval, which holds Wilson's of the same accuracy."""
    assert score.low <= score.accuracy <= score.high
    return {f"{prefix}low": score.low, f"{prefix}high": score.high}


@SENSES.sentence("<share>")
def senses_share(facts, said):
    """The numbers below the layers, and the one of the other words."""
    return [{"share": share} for share in (*scores(facts), others_right(facts))]


@SENSES.sentence(
    "accuracy as the word enters a layer, with its 95% interval; shuffled: the 95th percentile "
    "with shuffled senses; macro: mean recall of all senses; others: the other words alone; bold: "
    "the best layer, p = <p> over all"
)
def senses_legend(facts, said):
    return {"p": facts.p_best}


# -------------------------------------------------------------------------------------- shift

SHIFT = Patterns()
FAR = 0.1  # of the way: less is no movement to speak of


def raised(name):
    """Return the#2 as it is drawn."""
    word, mark, number = name.partition("#")
    return word + number.translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")) if mark else name


class Moved:
    """The numbers of a shift by word, from the arrays of a result or of a command."""

    def __init__(self, facts):
        self.facts = facts
        split = getattr(facts, "decomposition", None)
        if split is None:
            fields = vars(facts)
            self.causal = {
                k[7:].replace("_", "-"): np.array(v, float)
                for k, v in fields.items()
                if k.startswith("causal_")
            }
            by_token, self.table = facts.credit, np.asarray(facts.value) + np.asarray(facts.routing)
            self.total, self.start = facts.total, facts.start
            self.replaced = [facts.replaced.get(name, "") for name in numbered(facts.words)]
            self.length = facts.length
        else:
            self.causal = facts.causal
            by_token, self.table = split.credit, split.value + split.routing
            self.total, self.start, self.length = split.total, split.start, split.length
            self.replaced = facts.replaced or [""] * len(facts.words)
        self.whole, self.size = facts.way, facts.size
        self.credit = by_word(facts, by_token)
        sink = getattr(facts, "sink", None)
        if sink not in (None, facts.at):
            self.credit[sink] = math.nan
        self.direct = by_word(facts, self.table.sum((0, 1)))
        self.names = numbered(facts.words)
        self.raised = [raised(name) for name in self.names]
        self.sources = [
            n for n, special in enumerate(facts.special)
            if not special and n not in (facts.at, sink) and facts.rollout[n] > 0
        ]  # fmt: skip
        self.entries = [n for n, other in enumerate(self.replaced) if other]
        self.parts = by_word(facts, by_token)
        if self.reads_directly:
            self.parts = self.direct.copy()
            self.parts[facts.at] += self.start
        self.effect = np.mean([np.asarray(lost, float) for lost in self.causal.values()], 0)
        self.kind = next(
            kind for kind in ("mask", "knock-out", *self.causal) if kind in self.causal
        )
        self.takes = np.asarray(self.causal[self.kind], float)
        self.sign = 1 if self.total >= 0 else -1

    def share(self, number):
        return float(number) / self.whole if self.whole else float(number)

    def first(self, scores):
        known = [n for n in self.sources if scores[n] == scores[n]]
        return max(known, key=lambda n: abs(scores[n]))

    def toward(self, number):
        """Return where a movement of this sign comes from, and where it leads."""
        ends = self.facts.regions or ["its place here", f"its place {self.without}"]
        return (ends[1], ends[0]) if number >= 0 else (ends[0], ends[1])

    @property
    def reads_directly(self):
        """Whether all paths start at one other word, so that what is read from it counts."""
        return len(self.entries) == 1 and self.entries != [self.facts.at]

    @property
    def without(self):
        if self.entries:
            others = [*dict.fromkeys(f"“{self.replaced[n]}”" for n in self.entries)]
            return f"with {joined(others)}"
        if "may read only itself" in self.facts.reference:
            return "alone"
        masked = "all other words are" in self.facts.reference
        return "with all else masked" if masked else "in the reference"

    def along(self, numbers):
        return [self.sign * self.share(x) for x in numbers]

    @property
    def top(self):
        """Return the word with most credit; None if that is less than 0.1 of the way."""
        adds = self.along(self.credit)
        top = max(self.sources, key=lambda n: adds[n])
        return None if self.entries or min(adds[top], abs(self.share(self.total))) < FAR else top

    @property
    def ties(self):
        return [n for n in self.sources if self.printed(n) == self.printed(self.top)]

    def printed(self, n):
        return f"{self.share(self.credit[n]):.2f}"

    @property
    def other(self):
        """Return the word that takes half as much again as the first when it is changed."""
        takes = self.along(self.takes)
        most = max(self.sources, key=lambda n: takes[n])
        is_more = takes[most] >= max(FAR, 1.5 * takes[self.top])
        return most if most != self.top and is_more else None

    @property
    def confirms(self):
        """Whether changing the first word takes a quarter of its credit."""
        return self.along(self.takes)[self.top] >= 0.25 * self.along(self.credit)[self.top]

    @property
    def toward_end(self):
        return self.facts.regions[self.sign < 0] if self.facts.regions else None

    @property
    def verb(self):
        verbs = {"mask": "masking", "replace": "replacing", "knock-out": "hiding"}
        return verbs[self.kind]


def moved_by(facts):
    """Return the numbers of a shift by word, computed once."""
    if not hasattr(facts, "moved"):
        facts.moved = Moved(facts)
    return facts.moved


@SHIFT.sentence("Nothing here moves “<word:w>” far toward <a:*> or <b:*>[[.]]")
def shift_nothing(facts, said):
    moved = moved_by(facts)
    assert abs(moved.share(moved.total)) < FAR
    first, second = facts.regions
    return {"word": moved.names[facts.at], "a": first, "b": second}


def shift_top(facts):
    """Return the numbers of a title with one first word."""
    moved = moved_by(facts)
    assert len(moved.ties) == 1
    return moved, {"source": moved.names[moved.top], "word": moved.names[facts.at]}


@SHIFT.sentence(
    "“<source:w>” is credited most, but <how:masking|hiding> “<other:w>” moves “<word:w>” more[[.]]"
)
def shift_other(facts, said):
    moved, one = shift_top(facts)
    return one | {"how": moved.verb, "other": moved.names[moved.other]}


@SHIFT.sentence(
    "“<source:w>” gets the most credit for moving “<word:w>”, but <how:masking|hiding> it changes "
    "<little:little>[[.]]"
)
def shift_little(facts, said):
    moved, one = shift_top(facts)
    assert moved.other is None
    assert not moved.confirms
    return one | {"how": moved.verb, "little": "little"}


@SHIFT.sentence(
    "“<source:w>” pulls “<word:w>” toward <b:*>[[.]]",
    "“<source:w>” moves “<word:w>” <most:most|least>[[.]]",
)
def shift_strongest(facts, said):
    moved, one = shift_top(facts)
    assert moved.other is None
    assert moved.confirms
    assert ("b" in said) == bool(facts.regions)
    return one | ({"b": moved.toward_end} if "b" in said else {"most": "most"})


@SHIFT.sentence("The sentence moves it by <share> of its length.")
def shift_length(facts, said):
    moved = moved_by(facts)
    assert not facts.regions
    return {"share": abs(moved.total) / moved.size}


@SHIFT.sentence(
    "The sentence moves it <share> of the way toward <b:*> (0 is <second:*>, 1 is <first:*>).",
)
def shift_in_all(facts, said):
    moved = moved_by(facts)
    one = {"share": abs(moved.share(moved.total)), "b": moved.toward_end}
    ends = dict(zip(("first", "second"), facts.regions, strict=True))
    return one | (ends if "first" in said else {})


@SHIFT.sentence(
    "“<source:w>” adds <adds>[[ of this <gap:gap>]]; <how:masking|hiding> it takes <takes>"
    "[[, <again:masking|hiding> “<other:w>” <more>]]."
)
def shift_adds(facts, said):
    moved = moved_by(facts)
    adds, takes, other = moved.along(moved.credit), moved.along(moved.takes), moved.other
    one = {"source": moved.names[moved.top], "adds": adds[moved.top], "how": moved.verb}
    one |= {"takes": takes[moved.top], "again": None, "other": None, "more": None}
    one |= {"gap": None if facts.regions else "gap"}
    if other is not None:
        one |= {"again": moved.verb, "other": moved.names[other], "more": takes[other]}
    return one


@SHIFT.sentence(
    "“<here:w>” in place of “<other:w>” moves “<word:w>” by <total>, <share> of its length[[.]]"
)
def shift_pair(facts, said):
    moved = moved_by(facts)
    (entry,) = moved.entries
    assert not facts.regions
    assert moved.size is not None, "a command does not print it: compute the shift again"
    one = {"here": moved.names[entry], "other": moved.replaced[entry]}
    one |= {"word": moved.names[facts.at], "total": moved.total}
    return one | {"share": abs(moved.total) / moved.size}


@SHIFT.sentence(
    "“<here:w>” in place of “<other:w>” moves “<word:w>” <share> of the way from <a:*> "
    "to <b:*>[[.]]"
)
def shift_pair_between(facts, said):
    moved = moved_by(facts)
    (entry,) = moved.entries
    start, end = moved.toward(moved.total)
    one = {"here": moved.names[entry], "other": moved.replaced[entry], "a": start, "b": end}
    return one | {"word": moved.names[facts.at], "share": abs(moved.share(moved.total))}


@SHIFT.sentence(
    "All of it starts at “<here:w>” (“<other:w>” in the reference), the only difference."
)
def shift_start(facts, said):
    moved = moved_by(facts)
    (entry,) = moved.entries
    assert agrees("1.00", moved.credit[entry] / moved.total)
    return {"here": moved.names[entry], "other": moved.replaced[entry]}


@SHIFT.sentence(
    "Of [[<the:the whole>]][[<share>]], “<word:w>” takes <direct> directly from "
    "“<here:w>”, <own> from itself and <rest> from other tokens."
)
def shift_direct(facts, said):
    moved = moved_by(facts)
    (entry,) = moved.entries
    sign, at = np.sign(moved.total), facts.at
    rest = moved.direct.sum() - moved.direct[entry] - moved.direct[at]
    shares = {
        name: moved.share(number * sign)
        for name, number in (
            ("direct", moved.direct[entry]),
            ("own", moved.direct[at]),
            ("rest", rest),
            ("share", moved.total),
        )
    }
    assert math.isclose(
        sum(shares[name] for name in ("direct", "own", "rest")), shares["share"], abs_tol=1e-3
    )
    whole = {"the": "the whole", "share": None} if not facts.regions else {"the": None}
    return {**shares, **whole, "word": moved.names[at], "here": moved.names[entry]}


@SHIFT.sentence(
    "The strongest layer is <layer> (<of_layer>), the strongest head <head> of layer "
    "<layer_of_head> (<of_head>)."
)
def shift_place(facts, said):
    moved = moved_by(facts)
    by_head = moved.table.sum(-1) * np.sign(moved.total)
    layer, (row, head) = (
        int(by_head.sum(1).argmax()),
        np.unravel_index(by_head.argmax(), by_head.shape),
    )
    return {
        "layer": layer, "of_layer": moved.share(by_head[layer].sum()), "head": int(head),
        "layer_of_head": int(row), "of_head": moved.share(by_head[row, head]),
    }  # fmt: skip


@SHIFT.sentence("<what:C|c>ompared with <reference:*>[[.]]")
def shift_reference(facts, said):
    return {"what": OneOf("Cc"), "reference": OneOf([facts.reference, facts.reference + "."])}


@SHIFT.sentence("Alone: every token may read only itself and special tokens.")
def shift_alone(facts, said):
    assert facts.reference.endswith("every token may read only itself and special tokens")
    return {}


@SHIFT.sentence(
    "Bricks: <kind:contributions over all paths|direct contributions>, [[shares of the way, which "
    "is <way> ]]units of the hidden state (completeness error <error>)."
)
def shift_bricks(facts, said):
    moved = moved_by(facts)
    parts = moved.table.sum() + moved.start
    if not moved.reads_directly:
        parts = np.nansum(np.asarray(facts.decomposition.credit))
    kind = "direct contributions" if moved.reads_directly else "contributions over all paths"
    error = of_machine(facts.agreement, abs(parts - moved.total) / moved.length)
    return {"kind": kind, "way": moved.whole, "error": error}


@SHIFT.sentence("The bricks sum to the gap between both ends[[, <zoom> times as large]].")
def shift_gap(facts, said):
    """The enlargement is that of the bricks in the figure, which another test measures."""
    return {"zoom": said["zoom"] and OneOf([read_number(said["zoom"])[0]])}


@SHIFT.sentence(
    "Thin bars: what <how:masking|hiding> a word takes; wide, pale: what it adds.",
)
def shift_bars(facts, said):
    return {"how": moved_by(facts).verb}


SHIFT.words(
    "Dotted: the regions, as far apart as each layer has them.",
)


def stream_parts(facts):
    stream = facts.residual_stream
    return [stream.attention.sum(), stream.mlp.sum(), stream.bias, stream.own]


SHIFT.words(
    "static",
    "output",
    "in the text",
    "alone",
    "share of the gap",
    "share of the way",
    "adds",
    "masked",
    "gap",
    "itself",
)


SHIFT.words("1 other")


@SHIFT.sentence(
    "“<word:*>” <where:in the text|alone|in the reference>", "“<word:*>” with “<other:w>”"
)
def shift_paths(facts, said):
    moved = moved_by(facts)
    one = {"word": facts.word, "where": OneOf(("in the text", moved.without))}
    return {name: one.get(name, OneOf(moved.replaced)) for name in said}


@SHIFT.sentence("<word:one>", "<count:i> others", "× <zoom>")
def shift_labels(facts, said):
    """The names of bricks; how much they are enlarged, another test measures."""
    one = {"word": OneOf(moved_by(facts).raised), "count": OneOf(range(2, len(facts.words)))}
    one["zoom"] = OneOf([read_number(said["zoom"])[0]]) if "zoom" in said else None
    return {name: one[name] for name in said}


@SHIFT.sentence("“<word:w>” is in no text of <region:*>, where others count: “<others:w>”")
def shift_other_words(facts, said):
    """The words in which a text of a region differs from the sentence, which has the word."""
    texts = facts.toward[said["region"]]
    assert not any(facts.word in text.split() for text in texts)
    others = [word for text in texts for word in text.split() if word not in facts.words]
    return {"word": facts.word, "region": OneOf(facts.regions), "others": ", ".join(others)}


@SHIFT.sentence(
    "rank correlation ρ of the heads with the effect of patching: direct effect <rho>[[, "
    "total effect <total>]]"
)
def shift_rho_line(facts, said):
    by_head, total = moved_by(facts).table.sum(-1).ravel(), facts.total_effect
    one = {"rho": spearman(by_head, facts.direct_effect.ravel())}
    return one | {"total": None if total is None else spearman(by_head, total.ravel())}


@SHIFT.sentence(
    "the shift along <what:itself|the axis>, in units of the hidden state: <total>[[ of <way> for "
    "the whole way]]; all paths sum to it (error <error> of its length), and so do value and "
    "routing, the direct parts[[ plus <start> that differed at the start]] (error <other>)"
)
def shift_sum_line(facts, said):
    moved = moved_by(facts)
    off = abs(np.asarray(facts.decomposition.credit).sum() - moved.total) / moved.length
    other = abs(moved.table.sum() + moved.start - moved.total) / moved.length
    return {
        "what": "the axis" if facts.regions else "itself", "total": moved.total,
        "way": moved.whole if facts.regions and moved.whole else None, "error": off,
        "start": moved.start or None, "other": other,
    }  # fmt: skip


@SHIFT.sentence("first words by <kind:raw attention|rollout>: <words:*>")
def shift_first_words(facts, said):
    moved = moved_by(facts)
    scores = facts.rollout if said["kind"] == "rollout" else facts.raw_attention
    order = sorted(moved.sources, key=lambda n: -scores[n])[:5]
    return {"kind": said["kind"], "words": ", ".join(moved.raised[n] for n in order)}


@SHIFT.sentence(
    "residual stream, from the static vector to the end, <total>: attention <attention>, MLPs "
    "<mlp>, biases <bias>, own <own> (the static vector after the norms, minus itself)"
)
def shift_stream_line(facts, said):
    names, parts = ("attention", "mlp", "bias", "own"), stream_parts(facts)
    assert math.isclose(sum(parts), facts.residual_stream.total, abs_tol=1e-4)
    return dict(zip(names, parts, strict=True)) | {"total": facts.residual_stream.total}
