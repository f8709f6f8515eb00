"""Titles and captions of the gallery about models of scripts/fetch_models.py.

The weights are those that transformers returns under eager attention. Nothing of attnviz computes
here.
"""

import ast
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from fetched import load

from figures.sentences import gallery
from figures.sentences.maps import HALF
from figures.sentences.reading import read_number

CAPTIONS = {}
caption = partial(gallery.caption, among=CAPTIONS)


def eager(name):
    """Return a copy of a model whose code returns its weights, and its tokenizer."""
    model = load(name, torch.float32)
    return gallery.eager(model), model.tokenizer


@gallery.kept
def read(name, ids):
    """Return the weights (layers, heads, T, T), states and most probable next ids of some ids."""
    with torch.no_grad():
        output = eager(name)[0](
            torch.tensor([ids]), output_attentions=True, output_hidden_states=True
        )
    logits = getattr(output, "logits", None)
    return SimpleNamespace(
        weights=torch.cat([*output.attentions]).double().numpy(),
        states=torch.cat([*output.hidden_states]).double().numpy(),
        likely=None if logits is None else logits[0].argmax(-1).numpy(),
    )


def encode(name, text):
    return tuple(eager(name)[1](text)["input_ids"])


def texts_of(stem, name="TEXTS"):
    """Return the texts of a script, separated there by lines and by bars."""
    source = (gallery.GALLERY / f"{stem}.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and name in ast.unparse(node.targets[0]).split(", "):
            text = next(one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)
                        and isinstance(one.value, str) and len(one.value) > 9)  # fmt: skip
            return text.replace("\n", "|").split("|")
    raise LookupError(name)


# ------------------------------------------------------------------------------------- induction

COPY = caption(
    "fig22_induction",
    "Such an induction head knows what came next.",
    "That the head causes the copying is likely, but not shown here.",
)
PERIOD, COPIES = 9, 12


@gallery.kept
def copies():
    """Return the weights on what followed (layers, heads), and which next words are right."""
    (words,) = texts_of("fig22_induction", "WORDS")
    ids = torch.tensor([encode("smollm2", f" {word}") for word in words.split()]).flatten()
    torch.manual_seed(0)
    texts = [ids[torch.randperm(len(ids))[:PERIOD]].repeat(2).tolist() for _ in range(COPIES)]
    behind, right = [], []
    for one in texts:
        run = read("smollm2", tuple(one))
        behind.append(np.mean([run.weights[..., t, t - PERIOD + 1] for t in range(9, 18)], axis=0))
        right.append([run.likely[t] == one[t + 1] for t in range(2 * PERIOD - 1)])
    return np.mean(behind, axis=0), np.array(right)


@COPY.sentence("Head <head:h> looks at what followed the same word before")
def copy_title(facts, said):
    behind, _ = copies()
    layer, head = np.unravel_index(behind.argmax(), behind.shape)
    return {"head": f"{layer}.{head}"}


@COPY.sentence("Each text has <period> random words twice.")
def copy_texts(facts, said):
    return {"period": PERIOD}


@COPY.sentence(
    "In the second half, head <name:h> of SmolLM2 (layer <layer>, head <head>, counted from 0) "
    "gives <share> of its weight to the word behind the first occurrence (left: one text; mean of "
    "<texts> texts; uniform weights would give <even>)."
)
def copy_head(facts, said):
    behind, _ = copies()
    layer, head = np.unravel_index(behind.argmax(), behind.shape)
    even = np.mean([1 / (t + 1) for t in range(PERIOD, 2 * PERIOD)])
    one = {"name": f"{layer}.{head}", "layer": layer, "head": head, "share": behind.max()}
    return one | {"texts": COPIES, "even": even}


@COPY.sentence(
    "The model copies: in the second half its most probable next token is the right one in "
    "<second> of the places, in the first half in <first> (right; bands are intervals of <level> "
    "from resampled texts)."
)
def copy_right(facts, said):
    right = copies()[1]
    # A text tells nothing of its first repeated word before it is read.
    return {"second": right[:, PERIOD:].mean(), "first": right[:, : PERIOD - 1].mean(),
            "level": 0.95}  # fmt: skip


@COPY.sentence(
    "Other heads do the same: <others> of <heads> give more than half of their weight to that word."
)
def copy_others(facts, said):
    behind, _ = copies()
    return {"others": (behind > HALF).sum() - 1, "heads": behind.size}


# ------------------------------------------------------------------------------------------ sinks

SINK = caption("fig23_sink")


@gallery.kept
def sinks():
    """Return what the first word, a start token and the word behind it get, (layers, heads)."""
    _, tokenizer = eager("smollm2")
    start = tokenizer.convert_tokens_to_ids("<|endoftext|>")  # it separates texts, not messages

    def received(name_ids, key):
        rows = [read("smollm2", ids).weights[..., key + 1 :, key] for ids in name_ids]
        return np.concatenate(rows, axis=-1).mean(-1)

    plain = [encode("smollm2", text) for text in texts_of("fig23_sink")]
    started = [(start, *ids) for ids in plain]
    even = np.mean([1 / (t + 1) for ids in plain for t in range(1, len(ids))])
    first = received(plain, 0)
    by_layer = first.mean(1)
    onset = max(np.flatnonzero(by_layer <= 2 * even)) + 1
    return first, received(started, 0), received(started, 1), even, onset


@SINK.sentence("The first token takes <share> of the attention from layer <onset> on")
def sink_title(facts, said):
    first, _, _, _, onset = sinks()
    return {"share": first[onset:].mean(), "onset": onset}


@SINK.sentence(
    "<texts> texts, read by SmolLM2: the share of all attention that goes to the first token, by "
    "layer (the mean over heads and words)."
)
def sink_texts(facts, said):
    return {"texts": len(texts_of("fig23_sink"))}


@SINK.sentence("Uniform weights would give <even> (dashed).")
def sink_even(facts, said):
    return {"even": sinks()[3]}


@SINK.sentence("Until layer <before> it is <early> on average.")
def sink_early(facts, said):
    first, onset = sinks()[0], sinks()[4]
    return {"before": onset - 1, "early": first[:onset].mean()}


@SINK.sentence("<resting> of <heads> heads give it more than half.")
def sink_heads(facts, said):
    first = sinks()[0]
    return {"resting": (first > HALF).sum(), "heads": first.size}


@SINK.sentence(
    "It is the place that counts and not the word: with a start token in front, that one receives "
    "<special> from layer <onset> on, and the first word, now after it, <left>."
)
def sink_start(facts, said):
    _, special, behind, _, onset = sinks()
    assert special[onset:].mean() > 10 * behind[onset:].mean()
    return {"special": special[onset:].mean(), "onset": onset, "left": behind[onset:].mean()}


SINK.words(
    "Such an attention sink is what heads read that find nothing to read (Xiao et al., “Efficient "
    "streaming language models with attention sinks”)."
)

# -------------------------------------------------------------------------------- grouped queries

GROUPED = caption(
    "fig25_grouped_queries",
    "The overlap of two heads is the sum of the smaller weight of each word, from nothing in "
    "common to the same weights.",
    "Weights on the first word, on which most heads rest, are left out.",
)


@gallery.kept
def overlaps():
    """Return the overlap of heads with the same keys, and with others, (texts, layers)."""
    same, other = [], []
    for text in texts_of("fig25_grouped_queries"):
        weights = read("smollm2", encode("smollm2", text)).weights[..., 2:, 1:]
        weights = weights / weights.sum(-1, keepdims=True)
        pairs = {True: [], False: []}
        for a in range(weights.shape[1]):
            for b in range(a):
                each = np.minimum(weights[:, a], weights[:, b]).sum(-1).mean(-1)
                pairs[a // 3 == b // 3].append(each)
        same.append(np.mean(pairs[True], axis=0))
        other.append(np.mean(pairs[False], axis=0))
    return np.array(same), np.array(other)


@GROUPED.sentence("Heads that share their keys attend little more alike than other heads")
def grouped_title(facts, said):
    same, other = overlaps()
    assert 0 < (same - other).mean() < 0.1
    return {}


@GROUPED.sentence(
    "In each layer of SmolLM2 <heads> query heads read <groups> sets of keys and values, <size> "
    "heads each."
)
def grouped_sizes(facts, said):
    config = eager("smollm2")[0].config
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    return {"heads": heads, "groups": groups, "size": heads // groups}


@GROUPED.sentence(
    "Heads with the same keys have an overlap of <same>, heads of the same layer with other keys "
    "<other> (left: mean of <layers> layers and <texts> texts)."
)
def grouped_overlap(facts, said):
    same, other = overlaps()
    texts, layers = same.shape
    return {"same": same.mean(), "other": other.mean(), "layers": layers, "texts": texts}


@GROUPED.sentence(
    "The difference is <gain> (<low> to <high>, an interval of <level> from resampled texts)."
)
def grouped_interval(facts, said):
    """The interval is a bootstrap: another seed gives nearly the same one."""
    gains = np.subtract(*overlaps()).mean(1)
    random = np.random.default_rng(1)
    means = random.choice(gains, (20_000, len(gains))).mean(1)
    one = {"gain": gains.mean(), "level": 0.95}
    for name, share in (("low", 0.025), ("high", 0.975)):
        shown, end = read_number(said[name])[0], np.quantile(means, share)
        assert abs(shown - end) < 0.002, (name, end)
        one[name] = shown
    return one


@GROUPED.sentence(
    "It is positive in <more> of <layers> layers, and <most> where it is largest (right; bands are "
    "such intervals)."
)
def grouped_layers(facts, said):
    gains = np.subtract(*overlaps()).mean(0)
    return {"more": (gains > 0).sum(), "layers": len(gains), "most": gains.max()}


@GROUPED.sentence("So most of what two heads have in common does not come from shared keys.")
def grouped_conclusion(facts, said):
    same, other = overlaps()
    assert other.mean() > (same - other).mean()
    return {}


# ------------------------------------------------------------------------------------- two senses

LAST = caption("fig26_decoder_senses", "The sentences were written for this figure and are few.")
NAMES = "minilm", "smollm2"


def accuracy(vectors, labels):
    """Return how many vectors (n, d) are nearest to the centroid of the others of their sense.

    Nearness is the cosine of both, from the mean of all other vectors.
    """
    right = 0
    for n, vector in enumerate(vectors):
        others = [m for m in range(len(vectors)) if m != n]
        mean, nearness = vectors[others].mean(0), {}
        for label in set(labels):
            centroid = vectors[[m for m in others if labels[m] == label]].mean(0) - mean
            nearness[label] = centroid @ (vector - mean) / max(np.linalg.norm(centroid), 1e-12)
        right += max(nearness, key=nearness.get) == labels[n]
    return right


@gallery.kept
def last_words(name):
    """Return how many of the last words are right in each state, by their context, and of all."""
    model, tokenizer = eager(name)
    table = model.get_input_embeddings().weight.detach().double().numpy()
    senses = [texts_of("fig26_decoder_senses", sense) for sense in ("RIVER", "MONEY")]
    labels = [n for n, starts in enumerate(senses) for _ in starts]
    states, context = [], []
    for start in (start for starts in senses for start in starts):
        ids = encode(name, f"{start} the bank")
        (place,) = (n for n, one in enumerate(ids) if "bank" in tokenizer.decode([one]))
        states.append(read(name, ids).states[:, place])
        others = [
            one for n, one in enumerate(ids)
            if n != place and one not in tokenizer.all_special_ids
        ]  # fmt: skip
        context.append(table[others].mean(0))
    states = np.stack(states, axis=1)
    right = [accuracy(state, labels) for state in states]
    return right, accuracy(np.stack(context), labels), len(labels)


def is_interval(right, count, low, high):
    """Whether an interval is Wilson's (1927), or wider, but not than that of half as many."""

    def ends(n):
        share, z = right / count, 1.96
        wide = z * math.sqrt(share * (1 - share) / n + (z / n / 2) ** 2)
        return np.array([-1, 1]) * wide + share + z**2 / (2 * n), 1 + z**2 / n

    (narrow, by), (broad, by_half) = ends(count), ends(count / 2)
    narrow, broad = narrow / by, broad / by_half
    return (
        broad[0] - 0.006 < low < narrow[0] + 0.006 and narrow[1] - 0.006 < high < broad[1] + 0.006
    )


def numbers_of(said, *names):
    return [read_number(said[name])[0] for name in names]


@LAST.sentence("A decoder, too, separates the senses of “bank” when it comes last")
def last_title(facts, said):
    right, _, count = last_words("smollm2")
    assert right[-1] / count > 0.9
    return {}


@LAST.sentence(
    "A decoder reads only the words before “bank”, so here it ends all <count> sentences, half of "
    "them about rivers and half about money.",
    "Each is classified by the nearest centroid of the others.",
)
def last_sentences(facts, said):
    return {name: last_words("minilm")[2] for name in said}


@LAST.sentence(
    "At the output <one> are correct in all-MiniLM-L6-v2 (<low> to <high>, an interval of <level>, "
    "as the bands) and <two> in SmolLM2 (<from> to <to>); guessing is correct for <chance>."
)
def last_output(facts, said):
    (one, _, count), (two, _, _) = map(last_words, NAMES)
    assert is_interval(one[-1], count, *numbers_of(said, "low", "high"))
    assert is_interval(two[-1], count, *numbers_of(said, "from", "to"))
    ends = {name: numbers_of(said, name)[0] for name in ("low", "high", "from", "to")}
    return ends | {"one": one[-1], "two": two[-1], "level": 0.95, "chance": 0.5}


@LAST.sentence(
    "The senses are separated from layer <one> of <layers> on, and from layer <two> of <others>."
)
def last_since(facts, said):
    """At a layer that is named the classes are right, and before it guessing explains them."""
    layers = [len(last_words(name)[0]) - 1 for name in NAMES]
    for name, since in zip(NAMES, (int(said["one"]), int(said["two"])), strict=True):
        right, _, count = last_words(name)
        assert min(right[since:]) > 0.75 * count
        assert right[since - 1] < min(right[since:])
    return {"one": int(said["one"]), "two": int(said["two"]), "layers": layers[0],
            "others": layers[1]}  # fmt: skip


@LAST.sentence(
    "The mean static embedding of the other words needs no attention and is correct for <one> and "
    "<two>."
)
def last_context(facts, said):
    (_, one, count), (_, two, _) = map(last_words, NAMES)
    return {"one": one / count, "two": two / count}


@LAST.sentence(
    "It is below the band in <one> of <states> states (inputs of layers, output) of MiniLM and in "
    "<two> of <others> states of SmolLM2."
)
def last_band(facts, said):
    """Below the band is below Wilson's interval, which is not wider."""
    (right, one, _), (rights, two, _) = map(last_words, NAMES)
    below = [sum(a > b for a in all_) for all_, b in ((right, one), (rights, two))]
    assert int(said["one"]) <= below[0]
    assert int(said["two"]) <= below[1]
    return {"one": int(said["one"]), "two": int(said["two"]), "states": len(right),
            "others": len(rights)}  # fmt: skip
