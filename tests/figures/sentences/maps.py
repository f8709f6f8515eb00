"""Sentences of heatmap, heads and steps, and the numbers that they should name."""

from collections import Counter

import numpy as np

from figures.sentences.proof import of_machine
from figures.sentences.reading import OneOf, Patterns

MAPS = Patterns()
FUNCTION_WORDS = {
    "the", "a", "an", "on", "of", "to", "in", "at", "by", "his", "her", "she", "he", "it", "we",
    "i", "and", "was", "were", "this", "that", "with", "after", "why", "did", "so", "when",
    "until", "is", "over", "down", "here", "because", "across",
}  # fmt: skip
HALF, QUARTER = 0.5, 0.25  # of the weight beyond even: a head rests, or follows a rule
LOOKS = {
    "previous": "look at the word before them", "next": "look at the word after them",
    "itself": "look at themselves", "same": "look at the same word elsewhere",
}  # fmt: skip
RULES = {
    "previous": "attend to the previous word", "next": "attend to the next word",
    "itself": "attend to the word itself", "same": "attend to the same word elsewhere",
    "first": "rest on the first word", "special": "rest on special tokens",
}  # fmt: skip


def is_special(label):
    return (label.startswith("[") and label.endswith("]")) or label == "</s>"


def specials(facts, side="columns"):
    """Return which labels are special tokens: by the record, or in JSON by their brackets."""
    known = getattr(facts, f"special_{side}", None)
    labels = getattr(facts, side)
    return np.array(known if known else [is_special(one) for one in labels], bool)


def content(facts, side="columns"):
    labels, special = getattr(facts, side), specials(facts, side)
    words = [any(map(str.isalnum, label)) for label in labels]
    found = [
        w and not s and label.casefold() not in FUNCTION_WORDS
        for label, w, s in zip(labels, words, special, strict=True)
    ]
    plain = [w and not s for w, s in zip(words, special, strict=True)]
    return np.array(found if sum(found) > 1 else plain)


def masked(facts, shape):
    cells = getattr(facts, "masked", None)
    return np.zeros(shape, bool) if cells is None else np.asarray(cells, bool)


def even_weights(facts, shape):
    """Return what each key gets if a query attends evenly to all that it may read."""
    readable = ~masked(facts, shape)
    return readable / np.maximum(readable.sum(-1, keepdims=True), 1)


def rules_of(facts, weights):
    """Return of each head which rule it follows, and its mean weight there; None without one."""
    weights = np.asarray(weights, float)
    weights = weights.reshape(-1, *weights.shape[-2:])
    shape, special = weights.shape[1:], specials(facts)
    words, T = ~special, len(special)
    apart = np.arange(T)[:, None] - np.arange(T)
    spelled = np.array([label.lower() for label in facts.columns])
    same = (spelled[:, None] == spelled) & (apart != 0) & words & words[:, None]
    keys = {
        "previous": (apart == 1) & words, "next": (apart == -1) & words, "itself": apart == 0,
        "same": same, "first": np.broadcast_to(np.arange(T) == 0, shape),
        "special": np.broadcast_to(special, shape),
    }  # fmt: skip
    even, found = even_weights(facts, shape), []
    for of_head in weights:
        shares, excess = {}, {}
        for name, cells in keys.items():
            rows = words & cells.any(1)
            if rows.sum() >= (8 if name == "same" else 1):
                shares[name] = (of_head * cells).sum(1)[rows].mean()
                excess[name] = shares[name] - (even * cells).sum(1)[rows].mean()
        rest = max((one for one in excess if one in ("first", "special")), key=excess.get)
        rule = max((one for one in excess if one not in ("first", "special")), key=excess.get)
        name = rest if excess[rest] >= HALF else None
        name = rule if excess[rule] >= QUARTER else name
        name = "special" if name == "first" and special[0] else name
        found.append(name and (name, shares[name]))
    return found


def relations(facts, weights):
    """Return how much the content words of a text relate to each other by head, (H,).

    Of the weight of each pair counts what is above the mean of all other pairs of words at the same
    distance, and above the mean of all other words that attend to the same key.
    """
    weights = np.asarray(weights, float)
    weights = weights.reshape(-1, *weights.shape[-2:])
    words = ~specials(facts)
    readable = ~masked(facts, weights.shape[1:]) & words & words[:, None]
    if starts_with_sink(facts):
        readable[:, 0] = False
    T, related, scores = len(words), content(facts), np.zeros(len(weights))
    for i in range(T):
        for j in range(T):
            if i == j or not (related[i] and related[j] and readable[i, j]):
                continue
            others = [(a, a + j - i) for a in range(T) if a != i and 0 <= a + j - i < T]
            others = [cell for cell in others if readable[cell]]
            readers = [a for a in range(T) if a not in (i, j) and readable[a, j]]
            at_distance = np.mean([weights[:, a, b] for a, b in others], 0) if others else 0.0
            to_key = np.mean([weights[:, a, j] for a in readers], 0) if readers else 0.0
            scores += np.maximum(weights[:, i, j] - np.maximum(at_distance, to_key), 0.0)
    return scores / related.sum()


def starts_with_sink(facts):
    cells = getattr(facts, "masked", None)
    if cells is None or len(cells) < 2:
        return False
    cells = np.asarray(cells, bool)
    return cells[0, 1:].all() and not cells[:, 0].any() and not specials(facts)[0]


def on_sinks(facts, weights):
    """Return the mean weight of words on special tokens, and on a first word that is a sink."""
    weights = np.asarray(weights, float)
    weights = weights.reshape(-1, *weights.shape[-2:])
    special = specials(facts)
    sinks = special.copy()
    sinks[0] |= starts_with_sink(facts)
    return weights[:, ~special][:, :, sinks].sum(2).mean(1)


def drawn_heads(facts):
    """Return the layer and the head of a map, which are not means of several."""
    (head,) = facts.heads
    return facts.layer, head


# ------------------------------------------------------------------------------------- titles


@MAPS.sentence("<layer:Layer|Cross-attention, layer> <n:i>, head <head:i>[[, from <query:*>]][[.]]")
def map_place(facts, said):
    layer, head = drawn_heads(facts)
    what = "Cross-attention, layer" if facts.stack == "cross" else "Layer"
    query = None
    if said["query"] is not None:
        query = (
            "[CLS]"
            if facts.query is None
            else (f"the patch in row {facts.query[0]}, column {facts.query[1]}")
        )
    return {"layer": what, "n": layer, "head": head, "query": query}


@MAPS.sentence("Layer <n:i>, mean of heads <heads:*>[[.]]")
def map_mean_place(facts, said):
    return {"n": facts.layer, "heads": ", ".join(map(str, facts.heads))}


@MAPS.sentence(
    "Each row is one word and splits <how:100%|less than 100%> among the words along the top"
    "[[ and the special tokens, which are <hidden:hidden>]]."
)
def map_rows(facts, said):
    is_hidden = getattr(facts, "special", "keep") == "hide"
    is_whole = bool((np.asarray(facts.weights, float).sum(1) > 0.99).all())
    how = "100%" if is_whole or is_hidden else "less than 100%"
    return {"how": how, "hidden": "hidden" if is_hidden else None}


MAPS.words(
    "The strongest links between words: a dashed box looks at a solid one.",
    "Where the words of each sentence look",
    "Rows look at columns: % of the weight between words.",
    "The framed cell holds the link in the title.",
)


@MAPS.sentence("<share> between words")
def map_scale(facts, said):
    """The end of the scale: the largest weight of a cell between two words."""
    return {"share": end_of_scale(facts, between_words(facts), said)}


@MAPS.sentence("<share> of the weight")
def map_only_scale(facts, said):
    """Of a map without tokens that say nothing, or with many keys; or of a text's sentences."""
    weights = np.asarray(facts.weights, float)
    ends = end_of_scale(facts, np.ones(weights.shape[-2:], bool), said)
    if "." in facts.rows and weights.ndim == 2:
        words = ~specials(facts)
        number = np.cumsum([0, *(word == "." for word in facts.rows[:-1])])
        of = np.eye(len(words), number[words].max() + 1)[number] * words[:, None]
        sums = of.T @ weights @ of
        ends = OneOf([*ends.choices, (sums / sums.sum(1, keepdims=True)).max()])
    return {"share": ends}


def end_of_scale(facts, cells, said):
    """Return the largest weight of some cells; of an overview it is that of all heads."""
    weights = np.asarray(facts.weights, float)
    ends = [weights[..., cells].max()]
    if weights.ndim == 2 and hasattr(facts, "overview"):
        every = np.asarray(facts.overview, float)  # of all words, where the map has some
        ends.append((every[..., cells] if every.shape[-2:] == cells.shape else every).max())
    return OneOf(ends)


@MAPS.sentence("<share> on <what:special tokens|the first word>")
def map_gray_scale(facts, said):
    what = "the first word" if starts_with_sink(facts) else "special tokens"
    return {"share": end_of_scale(facts, ~between_words(facts), said), "what": what}


def between_words(facts):
    """Return which cells are of two words: of no special token, no sink, and no only key."""
    rows, columns = ~specials(facts, "rows"), ~specials(facts)
    hidden = masked(facts, (len(rows), len(columns)))
    if starts_with_sink(facts):
        columns[0] = False
    return (rows & ((~hidden).sum(1) != 1))[:, None] & columns


@MAPS.sentence("This head among all <count>, on one scale")
def map_overview(facts, said):
    shape = np.asarray(facts.overview).shape
    return {"count": shape[0] * shape[1]}


@MAPS.sentence("<name:previous|next|itself|same word|first word|special> (<count>)")
def map_families(facts, said):
    """The key of the marks above small tiles."""
    weights = np.asarray(facts.overview, float)
    if len(facts.columns) < weights.shape[-1]:  # [CLS] and [SEP] are hidden or removed
        weights = weights[..., 1:-1, 1:-1]
        weights = weights / (weights.sum(-1, keepdims=True) if removed(facts) else 1.0)
    found = [one[0] for one in rules_of(facts, weights) if one is not None]
    return {"name": said["name"], "count": found.count(said["name"].split()[0])}


@MAPS.sentence("<which:Words|Repeated words> <rule:*>: <share>[[, <aside:special tokens aside>]]")
def map_rule(facts, said):
    (found,) = rules_of(facts, facts.weights)
    if found is None:
        return []
    name, share = found
    which = "Repeated words" if name == "same" else "Words"
    rule = LOOKS.get(name, RULES[name])
    return {"which": which, "rule": rule, "share": share, "aside": aside(facts)}


def aside(facts):
    return "special tokens aside" if removed(facts) else None


def removed(facts):
    return getattr(facts, "special", "keep") == "remove"


def cells_of(facts, query, key):
    rows = [n for n, label in enumerate(facts.rows) if label == query]
    columns = [n for n, label in enumerate(facts.columns) if label == key]
    return [(m, n) for m in rows for n in columns]


@MAPS.sentence(
    "“<query:w>” looks <where:back at|ahead to|across at|at> [[<another:another> ]]“<key:w>”"
    "[[: <share>[[, <aside:special tokens aside>]]]]"
)
def map_cell(facts, said):
    """The largest weight between two words; content words lead from two thirds of it on."""
    row, column = claimed_cell(facts)
    query, key, share = facts.rows[row], facts.columns[column], facts.weights[row][column]
    one = {"query": query, "key": key, "another": None, "where": "at"}
    if tuple(facts.rows) == tuple(facts.columns):
        one["another"] = "another" if query == key else None
        one["where"] = "back at" if column < row else "ahead to"
    is_said = said["share"] is not None
    return one | {"share": share if is_said else None, "aside": aside(facts) if is_said else None}


def claimed_cell(facts):
    weights = np.asarray(facts.weights, float)
    words = [[any(map(str.isalnum, one)) for one in side] for side in (facts.rows, facts.columns)]
    linked = between_words(facts) & ~masked(facts, weights.shape) & np.outer(*words)
    if tuple(facts.rows) == tuple(facts.columns):
        np.fill_diagonal(linked, False)
    related = linked & content(facts, "rows")[:, None] & content(facts, "columns")
    largest, leading = (np.where(cells, weights, 0) for cells in (linked, related))
    chosen = leading if leading.max() >= 2 / 3 * largest.max() else largest
    return np.unravel_index(chosen.argmax(), weights.shape)


@MAPS.sentence("[[<who:*>]] attends most to patch (<row>, <column>): <times> × even weight")
def map_patch(facts, said):
    patches = facts.sides[1].patches
    query = 0 if facts.query is None else facts.sides[0].patches.index(facts.query)
    weights = np.asarray(facts.weights, float)[query]
    n = max((n for n, patch in enumerate(patches) if patch), key=lambda n: weights[n])
    who = "[CLS]" if facts.query is None else f"The framed patch {(*facts.query,)}"
    row, column = patches[n]
    return {"who": who, "row": row, "column": column, "times": weights[n] * len(patches)}


@MAPS.sentence("Each cell is one patch; <share:less than 1%|*> of the weight goes to other tokens.")
def map_other_tokens(facts, said):
    query = 0 if facts.query is None else facts.sides[0].patches.index(facts.query)
    others = [n for n, patch in enumerate(facts.sides[1].patches) if not patch]
    share = np.asarray(facts.weights, float)[query, others].sum()
    return {"share": "less than 1%" if share < 0.01 else f"{share:.0%}"}


@MAPS.sentence(
    "Of the <count> heads[[ of layer <layer>]], <parts:*>",
)
def heads_title(facts, said):
    found = rules_of(facts, facts.weights)
    layers = np.asarray(facts.weights).shape[0]
    parts, before = [], ""
    for name, number in Counter(one[0] for one in found if one).most_common(2):
        verb, _, rest = RULES[name].partition(" ")
        verb = f"{verb}s" if number == 1 else verb
        parts.append(f"{number} {'' if verb.rstrip('s') == before else verb + ' '}{rest}")
        before = verb.rstrip("s")
    one = {"count": len(found), "parts": " and ".join(parts)}
    return one | {"layer": facts.layers[0] if layers == 1 else None}


@MAPS.sentence("<count> heads")
def heads_count(facts, said):
    return {"count": np.prod(np.asarray(facts.weights).shape[:2])}


@MAPS.sentence("<rule:previous|next|itself|same|first|special>[[ <share>]]")
def heads_tile(facts, said):
    found = [one for one in rules_of(facts, facts.weights) if one]
    return [{"rule": name, "share": share if said["share"] else None} for name, share in found]


# ----------------------------------------------------------------------------------- captions

CHOSEN = (
    "[[<what:O|o>]]f <among:all heads|those asked for>[[ <half:with under half of their weight "
    "on sinks>]] this one has the largest "
)


def ranked(facts):
    """Return the scores of all heads by name, and of those that were asked for."""
    asked = facts.asked if hasattr(facts, "asked") else None
    names = [
        (layer, head)
        for layer in facts.ranked_layers
        for head in range(np.asarray(facts.overview).shape[1])
    ]
    return names, asked


def chosen(facts, said, scores, on_sink=None):
    """Return what a note on the choice of a head should say."""
    names, asked = ranked(facts)
    among = [n for n, (layer, head) in enumerate(names) if asked in (None, layer)]
    fits = [n for n in among if on_sink is None or on_sink[n] < 0.5] or among
    best = max(fits, key=lambda n: scores[n])
    assert names[best] == drawn_heads(facts), f"the largest is {names[best]}"
    beyond = any(scores[n] > scores[best] for n in among)
    return {
        "what": OneOf([None, *"Oo"]), "among": "all heads" if asked is None else "those asked for",
        "half": "with under half of their weight on sinks" if beyond else None,
    }  # fmt: skip


@MAPS.sentence(f"{CHOSEN}weight between content words beyond what distance and key explain[[.]]")
def map_chosen(facts, said):
    scores = relations(facts.of_ranking, facts.overview)
    return chosen(facts, said, scores, on_sinks(facts.of_ranking, facts.overview))


@MAPS.sentence(f"{CHOSEN}weight between patches beyond what distance and key explain[[.]]")
def map_chosen_patches(facts, said):
    return chosen(facts, said, relations_of_patches(facts.of_ranking, facts.overview))


def relations_of_patches(facts, weights):
    """Return the same of patches, whose distance is in rows and columns."""
    weights = np.asarray(weights, float)
    weights = weights.reshape(-1, *weights.shape[-2:])
    places = [n for n, patch in enumerate(facts.sides[0].patches) if patch]
    patches, scores = facts.sides[0].patches, np.zeros(len(weights))
    steps = {}
    for i in places:
        for j in places:
            step = tuple(np.subtract(patches[j], patches[i]))
            steps.setdefault(step, []).append((i, j))
    for cells in steps.values():
        for i, j in cells:
            if i == j:
                continue
            same = [weights[:, a, b] for a, b in cells if (a, b) != (i, j)]
            readers = [weights[:, a, j] for a in places if a not in (i, j)]
            most = np.maximum(np.mean(same, 0) if same else 0.0, np.mean(readers, 0))
            scores += np.maximum(weights[:, i, j] - most, 0.0)
    return scores / len(places)


@MAPS.sentence(
    f"{CHOSEN}mean weight from <a:content words|frames> to <b:other content words|other frames|"
    "content words>[[, <piece:piece by piece>]][[.]]"
)
def map_chosen_mean(facts, said):
    whole, weights = facts.of_ranking, np.asarray(facts.overview, float)
    weights = weights.reshape(-1, *weights.shape[-2:])
    rows, columns = content(whole, "rows"), content(whole, "columns")
    related = rows[:, None] & columns
    if whole.stack != "cross":
        np.fill_diagonal(related, False)
    scores = (weights * related).sum((1, 2)) / rows.sum()
    kind = "frames" if getattr(whole, "seconds_of_rows", None) is not None else "content words"
    one = chosen(facts, said, scores) | {"a": kind, "b": f"other {kind}"}
    return one | {"piece": "piece by piece" if facts.streamed else None}


@MAPS.sentence("of all heads this one has the largest weight from “<query:w>” to “<key:w>”")
def map_chosen_words(facts, said):
    ((row, column),) = cells_of(facts, said["query"], said["key"])
    weights = np.asarray(facts.overview, float)[..., row, column]
    layer, head = np.unravel_index(weights.argmax(), weights.shape)
    assert (layer, head) == drawn_heads(facts)
    (query, key) = facts.asked_words
    return {"query": query, "key": key}


@MAPS.sentence(
    "<names:*> <how:removed|hidden> (<share> of the weight), rows <rows:renormalized to 1|"
    "renormalised to 1|not renormalized>[[.]]"
)
def map_removed(facts, said):
    """How much of the weight of words is on what was removed: in the heads that are drawn."""
    whole = np.asarray(facts.whole, float)
    labels = facts.of_ranking.columns
    special = specials(facts.of_ranking)
    lost = whole[..., ~special, :][..., special].sum(-1).mean()
    kept = np.asarray(facts.weights, float).sum(-1)
    is_removed = bool(np.allclose(kept, 1, atol=1e-4))
    return {
        "names": ", ".join(dict.fromkeys(np.array(labels)[special])), "share": lost,
        "how": "removed" if is_removed else "hidden",
        "rows": OneOf(["renormalized to 1", "renormalised to 1"]) if is_removed else
                "not renormalized",
    }  # fmt: skip


@MAPS.sentence("<what:E|e>xact weights of tokens <a> to <b> for tokens <c> to <d>, of <all>[[.]]")
def map_part(facts, said):
    m, n = np.asarray(facts.weights).shape
    if hasattr(facts, "tokens_of_rows"):
        a, c = facts.tokens_of_rows["first"], facts.tokens_of_columns["first"]
    else:
        a, c = (side.start for side in facts.sides)
    return {
        "what": OneOf("Ee"),
        "a": a,
        "b": a + m - 1,
        "c": c,
        "d": c + n - 1,
        "all": facts.length,
    }


@MAPS.sentence(
    "<what:E|e>ach cell joins <cell> × <same> of the <m> × <n> weights (columns summed, "
    "rows averaged)[[.]]"
)
def map_pooled(facts, said):
    cell = facts.sides[0].cell
    assert -(-facts.length // cell) == len(facts.rows)
    return {"what": OneOf("Ee"), "cell": cell, "same": cell, "m": facts.length, "n": facts.length}


@MAPS.sentence("In each tile the[[ <count>]] queries run down and the keys across.")
def heads_tiles(facts, said):
    pooled = facts.sides[1].cell > 1
    return {"count": None if pooled else np.asarray(facts.weights).shape[-2]}


@MAPS.sentence("Colors on a logarithmic scale.")
def map_logarithmic(facts, said):
    assert np.asarray(facts.weights).shape[-1] >= 48 or facts.sides[1].cell > 1
    return {}


@MAPS.sentence("[[weight of ]]special tokens")
def map_scales(facts, said):
    assert specials(facts).any()
    return {}


MAPS.words(
    "key (attended to), position", "query (attending), position", "key (attended to), s",
    "query (attending), s",
)  # fmt: skip


@MAPS.sentence("head <head>")
def map_tile(facts, said):
    return {"head": OneOf(range(np.asarray(facts.overview).shape[1]))}


# -------------------------------------------------------------------------------------- steps

STEPS = Patterns()
TITLES = {
    "X": "Input X", "Q": "Queries Q", "K": "Keys K", "V": "Values V", "scores": "Scores",
    "scaled scores": "Scaled scores", "full scores": "Full scores", "weights": "Weights",
    "A": "Attention vectors A", "heads": "All heads, side by side", "output": "Output",
}  # fmt: skip
HIDDEN = -1e30  # scores of keys that may not be read


class Taken:
    """The stages of a head: the arrays, and what the word's vector is made of."""

    def __init__(self, facts):
        self.facts = facts
        if isinstance(facts.stages[0], dict):
            fields = vars(facts)
            self.values = {
                one["name"].replace("_", " "): np.asarray(fields[one["name"]], float)
                for one in facts.stages
            }
        else:
            self.values = {one.name: np.asarray(one.values, float) for one in facts.stages}
        self.weights = self.values["weights"][facts.row]
        self.parts = self.weights[:, None] * self.values["V"]
        vector = self.parts.sum(0)
        self.shares = self.parts @ vector / (vector @ vector)

    def ends(self):
        """Return the ends of the ranges that colors show."""
        for name, values in self.values.items():
            every = np.sort(np.abs(values[values > HIDDEN]).ravel())
            share = 1.0 if "scores" in name or name == "weights" else 0.99
            yield name, every[int(share * (len(every) - 1))]


def taken_from(facts):
    """Return the stages of a head, computed once."""
    if not hasattr(facts, "taken"):
        facts.taken = Taken(facts)
    return facts.taken


@STEPS.sentence(
    "“<key:w>” contributes <share> of the attention vector of “<word:w>”, with a weight of <weight>"
)
def steps_title(facts, said):
    taken = taken_from(facts)
    n = int(taken.shares.argmax())
    one = {"key": facts.keys[n], "word": facts.word, "share": taken.shares[n]}
    assert facts.word == facts.queries[facts.row]
    return one | {"weight": taken.weights[n]}


@STEPS.sentence("Layer <layer>, head <head>[[ of <model:*>, following “<word:w>”]]")
def steps_place(facts, said):
    one = {"layer": facts.layer, "head": facts.head}
    follows = {"model": facts.provenance.model, "word": facts.word}
    return one | {name: follows[name] if said[name] else None for name in follows}


@STEPS.sentence("<title:*>")
def steps_names(facts, said):
    names = [TITLES[name] for name in taken_from(facts).values] + ["Attention vector a"]
    words = said["title"]
    return {"title": words} if words in (*names, " ".join(names)) else []


@STEPS.sentence("<rows> × <columns>, range ± <end>")
def steps_input(facts, said):
    """Of the input alone, which has no formula."""
    taken = taken_from(facts)
    rows, columns = taken.values["X"].shape
    return {"rows": rows, "columns": columns, "end": dict(taken.ends())["X"]}


@STEPS.sentence(
    "$<formula:f>$ <rows> × <columns>[[, range ± <end>]] "
    "[[agrees to <difference>]][[<none:not compared>]]"
)
def steps_stage(facts, said):
    """Of each stage: its formula, its size, the range of its colors, and how far it agrees."""
    taken, choices = taken_from(facts), []
    width = taken.values["Q"].shape[1]
    heads = taken.values["heads"].shape[1] // taken.values["A"].shape[1]
    assert "sqrt" not in said["formula"] or f"{{{width}}}" in said["formula"]
    assert "ldots" not in said["formula"] or f"A_{{{heads - 1}}}" in said["formula"]
    for (name, end), stage in zip(taken.ends(), facts.stages, strict=True):
        rows, columns = taken.values[name].shape
        one = {"formula": said["formula"], "rows": rows, "columns": columns}
        one |= {"end": None if name == "weights" else end}
        off = None if stage.difference is None else of_machine(facts.agreement, stage.difference)
        choices.append(one | {"difference": off, "none": "not compared" if off is None else None})
    return choices


@STEPS.sentence("$<what:v_{j}|\\alpha _{j} v_{j}>$,[[ range]] ± <end>")
def steps_vector_range(facts, said):
    taken = taken_from(facts)
    largest = max(np.abs(taken.parts).max(), np.abs(taken.parts.sum(0)).max())
    end = dict(taken.ends())["V"] if said["what"] == "v_{j}" else largest
    return {"what": said["what"], "end": end}


STEPS.words("$a = \\Sigma _{j} \\alpha _{j} v_{j}$", "weight $\\alpha _{j}$")


@STEPS.sentence("of “<word:w>”: every value times its weight, added up")
def steps_follow(facts, said):
    return {"word": facts.word}


@STEPS.sentence(
    "Rows are tokens; framed is the row of “<word:w>”[[, and among the heads side by side "
    "what head <head> adds]]."
)
def steps_framed(facts, said):
    several = taken_from(facts).values["heads"].shape[1] > taken_from(facts).values["A"].shape[1]
    return {"word": facts.word, "head": facts.head if several else None}


STEPS.words(
    "The range of features is that of 99% of them, the range of scores that of all.",
    "“agrees to” is the largest difference from the model's own.",
    "The share of a key is what it adds along the attention vector (α v · a / a · a).",
    "The share of a key is what it adds along the sum (α v · a / a · a).",
    "Every key adds its value, times its weight; columns are features.",
    "The range of the values is that of 99% of them.",
    "share",
)
