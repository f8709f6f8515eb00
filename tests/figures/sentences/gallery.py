"""The captions of the gallery, and what the default model gives for each number in them.

The numbers come from the model itself: its eager attention, its hidden states and its weights.
"""

import copy
import html
import json
import math
import random
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

import attnviz
from figures.sentences.facts import facts_of
from figures.sentences.maps import FUNCTION_WORDS, HALF, MAPS, STEPS, relations, rules_of
from figures.sentences.reading import OneOf, Patterns, clipped, read_all, read_number
from figures.sentences.worked import EXAMPLE, Worked

GALLERY = Path(__file__).parents[3] / "gallery"


KEPT = []


def kept(function):
    """Keep what a function returns until all captions are read."""
    KEPT.append(cache(function))
    return KEPT[-1]


def forget():
    """Forget what the captions share."""
    for shared in KEPT:
        shared.cache_clear()


def built():
    """Return the title and the caption of each figure of the page."""
    return json.loads((GALLERY / "built.json").read_text(encoding="utf-8"))


def texts(stem):
    """Return the title and the caption of a figure."""
    figure = built()[stem]
    return figure["title"], " ".join(figure["caption"].split())


def description(stem):
    """Return the caption that the drawn file of a figure holds."""
    file = (GALLERY / "images" / f"{stem}.svg").read_text(encoding="utf-8")
    return html.unescape(re.search(r"<dc:description>(.*?)</dc:description>", file, re.S)[1])


@kept
def eager(model):
    """Return a copy of the model whose code returns its weights."""
    shared = {id(one): one for one in model.module.parameters()}
    module = copy.deepcopy(model.module, shared).eval()
    module.set_attn_implementation("eager")
    return module


@kept
def read(model, text):
    """Return the weights (layers, heads, T, T), the hidden states and the tokens of a text."""
    inputs = model.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        output = eager(model)(**inputs, output_attentions=True, output_hidden_states=True)
    tokens = model.tokenizer.convert_ids_to_tokens(inputs.input_ids[0])
    weights = torch.cat([*output.attentions]).double().numpy()
    states = [state[0].double() for state in output.hidden_states]
    special = [token in ("[CLS]", "[SEP]") for token in tokens]
    return SimpleNamespace(
        weights=weights, states=states, columns=tokens, rows=tokens, special_columns=special,
        masked=None,
    )  # fmt: skip


def without_special(run):
    """Return the weights between words, their rows renormalized, and the words."""
    weights = run.weights[:, :, 1:-1, 1:-1]
    return weights / weights.sum(-1, keepdims=True), run.columns[1:-1]


def best_head(run):
    scores = relations(run, run.weights)
    layer, head = divmod(int(scores.argmax()), run.weights.shape[1])
    return layer, head, scores.max()


def content_of(words):
    return [any(map(str.isalnum, word)) and word.lower() not in FUNCTION_WORDS for word in words]


CAPTIONS = {}


def caption(stem, *words, among=CAPTIONS):
    """Return the patterns of a caption; their facts are the model. words : without numbers."""
    patterns = among.setdefault(stem, Patterns())
    patterns.words(*words)
    return patterns


NOISE = 1e-5  # the most that rounding explains, of weights and of scores

# ------------------------------------------------------------------------------- figures 0 to 2

FIRST = caption(
    "fig00_first_heatmap",
    "Rows are queries and columns are keys.",
    "The color is the attention weight, and every row sums to 1; special tokens are gray.",
)


@FIRST.sentence("On the right are all <heads> heads of the model.")
def first_heads(model, said):
    shape = read(model, "the train left the station").weights.shape
    return {"heads": shape[0] * shape[1]}


@FIRST.sentence(
    "Head <head:h> (framed, and drawn large) relates content words <how:most|least>: they give "
    "each other <score> more of their weight than other words at the same distance do."
)
def first_best(model, said):
    layer, head, score = best_head(read(model, "the train left the station"))
    return {"head": f"{layer}.{head}", "how": "most", "score": score}


@FIRST.sentence(
    "attnviz recomputed the weights of all heads; they differ from the model's own by at "
    "most <largest>."
)
def first_largest(model, said):
    assert float(said["largest"]) < NOISE
    return {"largest": float(said["largest"])}


MATRIX = caption(
    "fig01_attention_matrix",
    "Word pieces are merged into words, [CLS] and [SEP] are removed, and every row is renormalized "
    "to sum to 1.",
)
ON_TIME = "the train left the station on time"


@MATRIX.sentence("<words> words give a matrix of <words> × <again>.")
def matrix_size(model, said):
    words = len(ON_TIME.split())
    return {"words": words, "again": words}


@MATRIX.sentence(
    "Does “train” attend to “station”? It gives “station” <how:more|less> weight than “on” and "
    "both “the” in <above> of <all> heads, and <than:more|less> than any other word except itself "
    "in <first> of them."
)
def matrix_counts(model, said):
    run = read(model, ON_TIME)
    row = run.weights[:, :, 2, 1:-1].reshape(72, -1)
    station, others = row[:, 4], row[:, [0, 3, 5]]
    others_but_itself = row[:, [0, 2, 3, 5, 6]]
    return {
        "how": "more", "above": (station[:, None] > others).all(1).sum(), "all": len(row),
        "than": "more", "first": (station[:, None] > others_but_itself).all(1).sum(),
    }  # fmt: skip


@MATRIX.sentence(
    "In head <head:h> (shown) “station” receives <share> of the row, <times> times as much as “on”."
)
def matrix_best(model, said):
    run = read(model, ON_TIME)
    layer, head = np.unravel_index(run.weights[:, :, 2, 5].argmax(), run.weights.shape[:2])
    row = without_special(run)[0][layer, head, 1]
    return {"head": f"{layer}.{head}", "share": row[4], "times": row[4] / row[5]}


@MATRIX.sentence(
    "In the median head it receives <median> times as much as “on”: this is what some "
    "heads do, not what attention does."
)
def matrix_median(model, said):
    row = read(model, ON_TIME).weights[:, :, 2]
    return {"median": np.median(row[..., 5] / row[..., 6])}


VECTOR = caption("fig02_attention_vector", "A large weight is not a large effect.")


@kept
def vectors(model, word="train"):
    """Return the weights, the values' lengths and the shares of a word in each head."""
    run = read(model, "the train left the station")
    found = []
    for layer, block in enumerate(eager(model).encoder.layer):
        values = run.states[layer] @ block.attention.self.value.weight.double().T
        values = (values + block.attention.self.value.bias.double()).detach()
        values = values.view(len(values), 12, -1).transpose(0, 1).numpy()
        for head in range(12):
            weights = run.weights[layer, head, run.columns.index(word)]
            parts = weights[:, None] * values[head]
            vector = parts.sum(0)
            lengths = np.linalg.norm(values[head], axis=1)
            found.append((weights, lengths, parts @ vector / (vector @ vector)))
    return found, run.columns


@VECTOR.sentence(
    "The attention vector of “<word:w>” is a sum: the value vector of every token, times "
    "the weight that “<again:w>” gives it."
)
def vector_word(model, said):
    return {"word": "train", "again": "train"}


@VECTOR.sentence("In head <head:h> the <how:largest|smallest> weight, <weight>, goes to <token:*>.")
def vector_largest(model, said):
    (weights, _, _), tokens = vectors(model)[0][5 * 12 + 3], vectors(model)[1]
    n = int(weights.argmax())
    return {"head": "5.3", "how": "largest", "weight": weights[n], "token": tokens[n]}


@VECTOR.sentence(
    "The value of <token:*> is <how:short|long> (<length>, against <other> for "
    "“<word:w>”), so it contributes only <share> of the sum."
)
def vector_length(model, said):
    (weights, lengths, shares), tokens = vectors(model)[0][5 * 12 + 3], vectors(model)[1]
    n, most = int(weights.argmax()), int(shares.argmax())
    assert lengths[n] < lengths[most]
    one = {"token": tokens[n], "how": "short", "length": lengths[n], "other": lengths[most]}
    return one | {"word": tokens[most], "share": shares[n]}


@VECTOR.sentence("“<word:w>” contributes <share> with <weight> of the weight.")
def vector_most(model, said):
    (weights, _, shares), tokens = vectors(model)[0][5 * 12 + 3], vectors(model)[1]
    most = int(shares.argmax())
    return {"word": tokens[most], "share": shares[most], "weight": weights[most]}


@VECTOR.sentence(
    "On average over all <heads> heads, <token:*> receives <weight> of the weight of "
    "“<word:w>” and contributes <share> of its vector."
)
def vector_mean(model, said):
    found, tokens = vectors(model)
    means = [np.mean([one[k][0] for one in found]) for k in (0, 2)]
    one = {"heads": len(found), "token": tokens[0], "word": "train"}
    return one | dict(zip(("weight", "share"), means, strict=True))


# ------------------------------------------------------------------------------- figures 4 and 5

STAGES = caption(
    "fig04_steps",
    "One head of a real model, from its input to its output, with the shape of every stage.",
    "The weighted sums of the values are the attention vectors of this head.",
)


@STAGES.sentence(
    "Each of the <tokens> tokens enters as a vector of <size> numbers (X).",
    "Three matrices map it to a query, a key and a value of <width> numbers each.",
    "The product of every query with every key gives <tokens> × <again> scores.",
    "Divided by √<width> and passed through a softmax, they become weights, and every row sums to "
    "1.",
    "Those of all <heads> heads are concatenated and mixed by one more matrix.",
    "The frame follows “<word:w>”, which gives “<read:w>” <weight> of its weight; “<again_read:w>” "
    "contributes <share> of its attention vector.",
    "attnviz computed every number from the formula; none differs from the model's by more than "
    "<largest>.",
)
def stages_sizes(model, said):
    config = model.module.config
    tokens = len(read(model, "the train left the station").columns)
    width = config.hidden_size // config.num_attention_heads
    one = {"tokens": tokens, "again": tokens, "size": config.hidden_size, "width": width}
    (weights, _, shares), words = vectors(model, "station")[0][4], vectors(model, "station")[1]
    most = int(shares.argmax())
    one |= {"heads": config.num_attention_heads, "word": "station", "read": words[most]}
    one |= {"again_read": words[most], "weight": weights[most], "share": shares[most]}
    if "largest" in said:
        assert float(said["largest"]) < NOISE
        one["largest"] = float(said["largest"])
    return {name: one[name] for name in said}


CARDS = caption(
    "fig05_retrieval",
    "A query is compared with the key of every word.",
    "The result is all words ranked by weight, one card for each query.",
    "A database returns one record; attention returns a mixture.",
    "[CLS] and [SEP] are removed and the rows renormalized to sum to 1.",
)
SHARE = 0.8


@kept
def cards(model):
    run = read(model, "the train left this station on time")
    weights, words = without_special(run)
    sums = np.sort(weights, -1)[..., ::-1].cumsum(-1)
    layer, head, _ = best_head(run)
    return (sums < SHARE).sum(-1) + 1, words, (layer, head)


@CARDS.sentence("Blue words are the first that together have <share> of the weight.")
def cards_blue(model, said):
    return {"share": SHARE}


@CARDS.sentence(
    "Head <head:h>, which of all <heads> heads relates the content words <how:most|least> beyond "
    "what their distance and the key explain, needs <mean> of <n> words on average for <share>, "
    "and <few:fewest|most> for “<word:w>” (<fewest>)."
)
def cards_best(model, said):
    needed, words, best = cards(model)
    counts = needed[best]
    return {
        "head": f"{best[0]}.{best[1]}", "heads": needed.shape[0] * needed.shape[1], "how": "most",
        "mean": counts.mean(), "n": len(words), "share": SHARE, "few": "fewest",
        "word": words[int(counts.argmin())], "fewest": counts.min(),
    }  # fmt: skip


@CARDS.sentence(
    "Some heads are closer to a database: of all <cards> cards <one> need one word, and "
    "<some> need <few> or fewer."
)
def cards_all(model, said):
    needed, _, _ = cards(model)
    few = int(said["few"])
    return {
        "cards": needed.size,
        "one": (needed == 1).mean(),
        "few": few,
        "some": (needed <= few).mean(),
    }


@CARDS.sentence("Uniform weights would need <uniform>.")
def cards_uniform(model, said):
    return {"uniform": math.ceil(SHARE * len(cards(model)[1]))}


# ------------------------------------------------------------------------------ figures 7 and 17

WORKED = caption(
    "fig07_worked_example",
    "Every stage is recomputed, once from the inputs and once from the stages that the lesson "
    "prints before it.",
    "A red frame marks a printed cell in which an error begins, a gray one a cell that inherits an "
    "error.",
)


@kept
def worked(name):
    return Worked(facts_of(attnviz.example(name)))


@WORKED.sentence("A lesson computes one head for “<words:w>”.")
def worked_words(model, said):
    return {"words": " ".join(worked("phones").facts.tokens)}


@WORKED.sentence("The queries are correct.")
def worked_queries(model, said):
    assert worked("phones").stages[0].follows.all()
    return {}


@WORKED.sentence(
    "The keys are not, in <keys> of <rows> rows, nor are the values in <values>, and every later "
    "stage inherits the error: <some> of <all> printed cells follow from the inputs."
)
def worked_rows(model, said):
    _, keys, values, *later = worked("phones").stages
    assert all(one.follows is None or not one.follows.all() for one in later)
    return {
        "keys": (~keys.follows).any(1).sum(), "values": (~values.follows).any(1).sum(),
        "rows": len(keys.follows), "some": worked("phones").count("follows"),
        "all": worked("phones").cells("follows"),
    }  # fmt: skip


@WORKED.sentence(
    "From the printed stages before them <some> of <all> follow, <rounded> of these only within "
    "rounding: each softmax and each sum is correct for its inputs, and the score (<a:*>, <b:*>) "
    "and the score (<c:*>, <d:*>) are additional slips."
)
def worked_linked(model, said):
    one = worked("phones")
    some = one.count("linked_follows")
    scores = next(stage for stage in one.stages if stage.name == "scores")
    cells = np.argwhere(~scores.linked_follows)
    words = [one.facts.tokens[n] for n in cells.ravel()]
    later = [stage for stage in one.stages if stage.name in ("weights", "head output")]
    assert all(stage.linked_follows.all() for stage in later)
    found = {"some": some, "all": one.cells("linked_follows")}
    return found | dict(zip("abcd", words, strict=True)) | {"rounded": some - one.count("exactly")}


@WORKED.sentence("A smaller example, “<title:w>”, is correct: <some> of its <all> cells follow.")
def worked_smaller(model, said):
    one = worked("cat")
    return {"title": one.facts.title, "some": one.count("follows"), "all": one.cells("follows")}


SLIP = caption(
    "fig17_not_a_softmax",
    "A lesson prints these weights for these scores.",
    "A forgotten scale does not explain it.",
)


@SLIP.sentence(
    "Each row sums to <sum>, as weights do, but <wrong> of <all> cells are not the softmax "
    "of the scores."
)
def slip_rows(model, said):
    (stage,) = worked("likes").stages
    sums = stage.printed.sum(1)
    assert np.ptp(sums) < 1e-9
    return {"sum": sums[0], "wrong": (~stage.follows).sum(), "all": stage.follows.size}


@SLIP.sentence(
    "The <how:largest|smallest> difference is at (“<row:w>”, “<column:w>”): printed "
    "<printed>, computed <ours>."
)
def slip_largest(model, said):
    (stage,), tokens = worked("likes").stages, worked("likes").facts.tokens
    i, j = np.unravel_index(np.abs(stage.ours - stage.printed).argmax(), stage.ours.shape)
    one = {"how": "largest", "row": tokens[i], "column": tokens[j]}
    return one | {"printed": stage.printed[i, j], "ours": stage.ours[i, j]}


@SLIP.sentence("<proof:No scale of the scores gives these weights>: <rest:*>.")
def slip_scale(model, said):
    wrong = read_all(f"{said['proof']}: {said['rest']}", worked("likes").facts, EXAMPLE)
    return {"proof": said["proof"], "rest": OneOf(wrong) if wrong else said["rest"]}


# --------------------------------------------------------------------------- figures 8, 10 and 12

SCALE = caption(
    "fig08_why_scale",
    "The norm of the softmax Jacobian in the median row says how much the weights still react.",
)


def entropies(weights):
    """Return the entropy of each row, as a share of the most."""
    logs = np.log(np.where(weights > 0, weights, 1))
    return -(weights * logs).sum(-1) / math.log(weights.shape[-1])


def jacobians(weights):
    """Return the norm of diag(w) − w wᵀ of each row."""
    squares, cubes = (weights**2).sum(-1), (weights**3).sum(-1)
    return np.sqrt(np.maximum(squares - 2 * cubes + squares**2, 0))


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@kept
def random_scores():
    """Return the widths, and the variances and weights of scores of random vectors."""
    widths = 2 ** np.arange(11)
    torch.manual_seed(8)
    drawn = []
    for width in widths:
        Q, K = torch.randn(2, 99, 64, int(width)).double()
        drawn.append((Q @ K.mT).numpy().reshape(-1, 64))
    variance = np.array([one.var(ddof=1) for one in drawn])
    free = [softmax(one) for one in drawn]
    kept = [softmax(one / math.sqrt(width)) for one, width in zip(drawn, widths, strict=True)]
    return widths, variance, free, kept


@SCALE.sentence(
    "(a) The dot product of two vectors of dₖ standard normal numbers has variance dₖ "
    "(line), as measured (dots, at most <off> off)."
)
def scale_variance(model, said):
    widths, variance, _, _ = random_scores()
    return {"off": np.abs(variance / widths - 1).max()}


@SCALE.sentence(
    "(b) Without the scale, a query weighs <keys> keys less and less evenly: the entropy of its "
    "weights falls to <end> (zero: one key has all).",
    "Divided by √dₖ it stays at <low> or more.",
)
def scale_entropy(model, said):
    _, _, free, kept = random_scores()
    one = {"keys": free[0].shape[-1], "end": entropies(free[-1]).mean()}
    one |= {"low": min(entropies(weights).mean() for weights in kept)}
    return {name: one[name] for name in said}


@SCALE.sentence(
    "(c) The norm of the softmax Jacobian in the median row says how much the weights still react.",
    "Without the scale it is larger up to dₖ = <larger>, then falls to <flat> (divided: <steep>): "
    "a saturated row hardly changes.",
)
def scale_jacobian(model, said):
    widths, _, free, kept = random_scores()
    a, b = ([np.median(jacobians(one)) for one in of] for of in (free, kept))
    larger = max(w for w, x, y in zip(widths, a, b, strict=True) if x > y)
    one = {"larger": larger, "flat": a[-1], "steep": b[-1]}
    return {name: one[name] for name in said}


@SCALE.sentence(
    "(d) In <model:*> without its scale, entropy <verb:falls|rises> in <lower> of <all> heads, to "
    "<left> of what it was or <how:less|more>, and the median norm of the Jacobian falls by a "
    "factor of <factor>."
)
def scale_model(model, said):
    text = "the train left the station on time because somebody had wound the clock"
    scaled = read(model, text).weights.reshape(72, *[len(model.tokenizer(text).input_ids)] * 2)
    bare = softmax(np.log(scaled) * math.sqrt(32))
    first, second = (entropies(weights).mean(1) for weights in (scaled, bare))
    return {
        "model": model.name, "verb": "falls", "lower": (second < first).sum(), "all": len(first),
        "left": (second / first).max(), "how": "less",
        "factor": np.median(jacobians(scaled)) / np.median(jacobians(bare)),
    }  # fmt: skip


ORDER = caption(
    "fig10_order_blindness",
    "A model reads a sentence and the same words shuffled (a).",
    "BERT adds a position vector to every word.",
    "This model knows the order only from its position vectors.",
)


@kept
def orders(model):
    """Return how far vectors move if words are shuffled, without positions and with them."""
    ids = model.tokenizer(ON_TIME, return_tensors="pt").input_ids
    inner = torch.randperm(7, generator=torch.Generator().manual_seed(10)) + 1
    order = [0, *inner.tolist(), 8]
    blind = copy.deepcopy(model.module)
    torch.nn.init.zeros_(blind.embeddings.position_embeddings.weight)
    moved = []
    for module in (blind, model.module):
        with torch.no_grad():
            first, second = module(torch.cat([ids, ids[:, order]])).last_hidden_state
        moved.append((second - first[order]).abs().amax(1))
    return *moved, first.abs().median()


@ORDER.sentence(
    "(b) How far is the vector of a token in one order from its vector in the other? The "
    "figure shows the <how:largest|smallest> difference of any number (their median size "
    "is <typical>)."
)
def order_typical(model, said):
    return {"how": "largest", "typical": orders(model)[2]}


@ORDER.sentence(
    "With these set to zero the difference is at most <blind>, which is rounding: shuffled "
    "words give the same vectors, shuffled."
)
def order_blind(model, said):
    assert orders(model)[0].max() < NOISE
    assert float(said["blind"]) < NOISE
    return {"blind": float(said["blind"])}


@ORDER.sentence("With positions it is <least> to <most>.")
def order_sighted(model, said):
    return {"least": orders(model)[1].min(), "most": orders(model)[1].max()}


APPLE = caption("fig12_apple")
FRUITS = ["banana", "pear", "cherry", "grape", "peach", "plum", "mango", "lemon"]
TECH = ["computer", "laptop", "phone", "internet", "robot", "camera", "tablet", "software"]


@kept
def apples(model):
    """Return the places between fruits and technical words, by layer, and the last states."""
    words = [*FRUITS, *TECH, "apple", "apple phones", "apple pie", *(f"{f} phones" for f in FRUITS)]
    states = [read(model, f"I love {word}").states for word in words]
    X = np.stack([[one[layer][3].numpy() for one in states] for layer in range(7)])
    fruit, tech = X[:, :8].mean(1, keepdims=True), X[:, 8:16].mean(1, keepdims=True)
    line = tech - fruit
    return ((X - fruit) * line).sum(-1) / (line**2).sum(-1), X[-1], fruit[-1, 0], tech[-1, 0]


@APPLE.sentence(
    "0 is the center of <fruits> fruits and 1 that of <tech> technical words, each read in “I love "
    "…”.",
    "Bands reach from the lowest to the highest of them.",
    "In “I love apple”, the sentence with which the others are compared, “apple” enters at <start> "
    "and ends at <alone>.",
    "The effect of a neighbor is the difference from that (red): “phones” <add:adds|takes> <adds>, "
    "up to <phones>, and “pie” <take:takes|adds> <takes>, down to <pie>.",
    "Each pulls “apple” its way, but “apple” stays short of the technical words, which begin at "
    "<border>.",
    "“phones” moves the fruits (dotted line: mean) by <mean> on average and <most> at most.",
    "In all <size> dimensions “apple” beside “phones” ends <far> from the center of the fruits and "
    "<near> from that of the technical words.",
)
def apple_places(model, said):
    places, last, fruit, tech = apples(model)
    alone, phones, pie = places[-1, 16:19]
    moved = places[-1, 19:] - places[-1, :8]
    assert pie < alone < phones < places[-1, 8:16].min()
    one = {
        "fruits": len(FRUITS), "tech": len(TECH), "start": places[0, 16], "alone": alone,
        "add": "adds", "adds": phones - alone, "phones": phones, "take": "takes",
        "takes": alone - pie, "pie": pie, "border": places[-1, 8:16].min(), "mean": moved.mean(),
        "most": moved.max(), "size": len(fruit), "far": np.linalg.norm(last[17] - fruit),
        "near": np.linalg.norm(last[17] - tech),
    }  # fmt: skip
    return {name: one[name] for name in said}


# ------------------------------------------------------------------------- figures 13, 14 and 19


def looking(model):
    """Return how many heads of layer 1 attend to the next, the previous and the word itself."""
    weights, words = without_special(read(model, ON_TIME))
    facts = SimpleNamespace(
        columns=words, rows=words, special_columns=[False] * len(words), masked=None
    )
    rules = [found and found[0] for found in rules_of(facts, weights[1])]
    return [rules.count(name) for name in ("next", "previous", "itself")]


RELATIONS = caption(
    "fig13_heads_of_a_layer",
    "[CLS] and [SEP] are removed and the rows renormalized.",
    "Each head has its own matrices for queries, keys and values, so each relates the words in its "
    "own way.",
    "The others mix more widely.",
)


@RELATIONS.sentence(
    "All <heads> heads of layer <layer> on the same words; these <named> are red.",
    "Of the words that have such a neighbor, head <a> gives <before> of its weight to the previous "
    "word and head <b> <after> to the next word; head <c> gives <itself> to the word itself.",
    "Uniform weights would give <even> each.",
    "In <some> heads one of the three receives <how:more|less> than all other words together.",
)
def relations_of_layer(model, said):
    weights, words = without_special(read(model, ON_TIME))
    of_layer, n = weights[1], len(words)
    sums = [(np.trace(of_layer, offset, 1, 2), n - abs(offset)) for offset in (-1, 1, 0)]
    means = [total / rows for total, rows in sums]
    one = {"heads": len(of_layer), "layer": 1, "how": "more", "named": sum(looking(model))}
    one |= {slot: mean.argmax() for slot, mean in zip("abc", means, strict=True)}
    names = ("before", "after", "itself")
    one |= {name: mean.max() for name, mean in zip(names, means, strict=True)}
    one |= {"even": 1 / n, "some": (np.max(means, 0) > 0.5).sum()}
    return {name: one[name] for name in said}


TROPHY = "The trophy does not fit into the suitcase, because it is too big."
IN_TEXT = caption(
    "fig35_text",
    "Each word stands on the color of the weight that “it” (dashed box) gives it.",
    "Special tokens are gray.",
    "“it” looks back at “trophy”, in the text itself",
)


@IN_TEXT.sentence(
    "This is head <head> of layer <layer>: of all <count> heads, the one in which “it” gives "
    "“trophy” the <how:largest|smallest> weight, <to_trophy>, and “suitcase” <to_suitcase>.",
    "“trophy” gets <what:more|less> than “suitcase” in <some> of the <count> heads: this is what "
    "one head does, not what the model concludes.",
)
def one_word_in_the_text(model, said):
    run = read(model, TROPHY)
    it, *keys = (run.columns.index(word) for word in ("it", "trophy", "suitcase"))
    to_trophy, to_suitcase = (run.weights[..., it, key] for key in keys)
    layer, head = np.unravel_index(to_trophy.argmax(), to_trophy.shape)
    one = {"layer": layer, "head": head, "how": "largest", "what": "more"}
    one |= {"count": to_trophy.size, "some": (to_trophy > to_suitcase).sum()}
    one |= {"to_trophy": to_trophy[layer, head], "to_suitcase": to_suitcase[layer, head]}
    return {name: one[name] for name in said}


SINKS = caption("fig14_sinks")
TEXTS = """The train left the station on time.|After dinner, the children washed the dishes.
Why did the engine stop so suddenly?|She plays the violin; her brother plays the drums.
The museum (closed on Mondays) shows old maps.|“Stay here,” he said, “until the storm is over.”
When the bell rang, nobody moved.|Rain fell all night, and the river rose.|Sit down, Tom!"""


@kept
def sinks(model):
    """Return the shares of [CLS], [SEP] and punctuation by head, and even weights."""
    received, even = [], []
    for text in TEXTS.replace("\n", "|").split("|"):
        run = read(model, text)
        tokens = run.columns
        marks = np.array([not any(map(str.isalnum, t)) for t in tokens])
        for row in np.flatnonzero(content_of(tokens)[1:-1]) + 1:
            weights = run.weights[:, :, row]
            received.append([weights[..., 0], weights[..., -1], weights[..., marks].sum(-1)])
            even.append((2 + marks.sum()) / len(tokens))
    return np.array(received), np.mean(even)


@SINKS.sentence(
    "Content words give <share> of their weight to tokens without content: <cls> to [CLS], <sep> "
    "to [SEP], <marks> to punctuation (means over <heads> heads and <words> content words).",
    "Uniform weights would give <even> (dashed).",
    "<half> of <heads> heads give <how:more|less> than half, <less> <below:less|more> than uniform "
    "weights.",
    "The share does not simply grow with depth: it is lowest in layer <low> (<lowest>) and highest "
    "in layer <high> (<highest>).",
)
def sinks_shares(model, said):
    received, even = sinks(model)
    means = received.mean(0)
    by_head = means.sum(0)
    by_layer = by_head.mean(1)
    one = {
        "share": by_head.mean(), "cls": means[0].mean(), "sep": means[1].mean(),
        "marks": means[2].mean(), "heads": by_head.size, "words": len(received), "even": even,
        "half": (by_head > 0.5).sum(), "how": "more", "less": (by_head < even).sum(),
        "below": "less", "low": by_layer.argmin(), "lowest": by_layer.min(),
        "high": by_layer.argmax(), "highest": by_layer.max(),
    }  # fmt: skip
    return {name: one[name] for name in said}


LONG = caption("fig19_long_text")


@kept
def license_text(model):
    text = (GALLERY.parent / "LICENSE").read_text(encoding="utf-8")[:2300]
    run = read(model, text)
    T = run.weights.shape[-1]
    apart = np.abs(np.arange(T)[:, None] - np.arange(T))
    distance = (run.weights * apart).sum(-1).mean(-1)
    layer, head = np.unravel_index(distance.argmin(), distance.shape)
    random.seed(5)  # another order than the figure's
    ids = model.tokenizer(text).input_ids
    ids[1:-1] = random.sample(ids[1:-1], T - 2)
    with torch.no_grad():
        shuffled = eager(model)(torch.tensor([ids]), output_attentions=True).attentions[layer]
    maps = [run.weights[layer, head], shuffled[0, head].double().numpy()]
    cells = np.arange(T) // 4
    summed = [np.add.reduceat(one, range(0, T, 4), axis=1) for one in maps]
    means = [np.add.reduceat(one, range(0, T, 4)) / 4 for one in summed]
    far = 4 * np.abs(np.subtract.outer(cells[::4], cells[::4])) > 60
    far[:, 0] = False
    is_stripe = far & (means[0] > 0.01)
    stripes = [one[is_stripe].sum() / (T / 4) for one in means]
    return T, distance, is_stripe.mean(), stripes


@LONG.sentence(
    "Head <head> of layer <layer> reads the first <tokens> tokens of this project's license (a), "
    "and the same tokens in random order (b).",
    "Of all heads it reads <how:nearest|farthest>: its mean distance is <nearest> tokens, where "
    "the mean of all heads is <usual>.",
    "Red cells are more than <far> tokens from the diagonal and have <least> or more in (a), most "
    "of them on stripes parallel to it.",
    "They are <area> of all cells and have <stripes> of the weight.",
    "If the words are shuffled, the same cells have <shuffled>: the stripes come from the "
    "positions and not from the words.",
    "No map was stored: while the model ran, each was reduced to <cells> × <again> cells of <cell> "
    "× <same> weights (columns summed, rows averaged), and each query to a few numbers.",
    "The same works for <long> tokens, where one map would take <size> GB.",
)
def long_numbers(model, said):
    T, distance, area, (stripes, shuffled) = license_text(model)
    layer, head = np.unravel_index(distance.argmin(), distance.shape)
    cell = next(c for c in (1, 2, 4, 8) if T / c <= 125)
    long = 100_000
    one = {
        "tokens": T, "cells": -(-T // cell), "again": -(-T // cell), "cell": cell, "same": cell,
        "long": long, "size": 4 * long**2 / 1e9, "head": head, "layer": layer, "how": "nearest",
        "nearest": distance.min(), "usual": distance.mean(), "far": 60, "least": 0.01,
        "area": area, "stripes": stripes, "shuffled": shuffled,
    }  # fmt: skip
    if "shuffled" in said:  # another order gives nearly the same
        shown = read_number(said["shuffled"])[0]
        assert abs(shown - shuffled) < 0.02
        one["shuffled"] = shown
    return {name: one[name] for name in said}


# ------------------------------------------------------------------------------------ all titles

TITLES = Patterns()


@TITLES.sentence(
    "In head <head:h>, “<word:w>” looks <way:back|ahead> at “<other:w>” with <share> of its weight"
)
def title_of_first(model, said):
    run = read(model, "the train left the station")
    layer, head, _ = best_head(run)
    between = run.weights[layer, head, 1:-1, 1:-1]
    row, column = np.unravel_index(between.argmax(), between.shape)
    words = run.columns[1:-1]
    one = {"head": f"{layer}.{head}", "word": words[row], "other": words[column]}
    return one | {"way": "back" if column < row else "ahead", "share": between.max()}


@TITLES.sentence(
    "In head <head:h>, “<word:w>” looks ahead to “<other:w>” with <share> of its weight"
)
def title_of_matrix(model, said):
    known = matrix_best(model, said)
    return {"head": known["head"], "word": "train", "other": "station", "share": known["share"]}


@TITLES.sentence(
    "“<word:w>” makes up <much:most|little> of the vector of “<other:w>”, with little of its weight"
)
def title_of_vector(model, said):
    (weights, _, shares), tokens = vectors(model)[0][5 * 12 + 3], vectors(model)[1]
    most = int(shares.argmax())
    assert shares[most] > HALF > 4 * weights[most]
    return {"word": tokens[most], "much": "most", "other": "train"}


@TITLES.sentence(
    "Stage by stage, “<word:w>” becomes nearly all of the attention vector of “<other:w>”"
)
def title_of_stages(model, said):
    (_, _, shares), words = vectors(model, "station")[0][4], vectors(model, "station")[1]
    assert shares.max() > 0.95
    return {"word": words[int(shares.argmax())], "other": "station"}


@TITLES.sentence("Unlike a database, a query retrieves a mixture of words, seldom a single one")
def title_of_cards(model, said):
    needed, _, best = cards(model)
    assert (needed == 1).mean() < 0.1
    assert needed[best].min() > 1
    return {}


@TITLES.sentence("A lesson prints <wrong> wrong numbers, and every later stage inherits the errors")
def title_of_lesson(model, said):
    stages = {stage.name: stage for stage in worked("phones").stages if stage.printed is not None}
    assert all(stages[name].begins for name in "KV")
    assert not stages.pop("Q").begins
    assert all(stage.inherits for name, stage in stages.items() if name not in "KV")
    return {"wrong": sum(stage.begins for stage in stages.values())}


@TITLES.sentence("Without the scale √dₖ, one key gets all the attention and the gradient vanishes")
def title_of_scale(model, said):
    _, _, free, kept = random_scores()
    assert entropies(free[-1]).mean() < 0.05 < HALF < entropies(kept[-1]).mean()
    assert 100 * np.median(jacobians(free[-1])) < np.median(jacobians(kept[-1]))
    return {}


@TITLES.sentence("A head's stripes come from positions: they stay when the words are shuffled")
def title_of_stripes(model, said):
    _, _, area, (stripes, shuffled) = license_text(model)
    assert abs(stripes - shuffled) < stripes / 5
    assert shuffled > 5 * area  # of what even weights would give them
    return {}


@TITLES.sentence("Attention without positions ignores word order")
def title_of_order(model, said):
    assert orders(model)[0].max() < NOISE < orders(model)[1].min()
    return {}


@TITLES.sentence(
    "“<word:w>” pulls “<other:w>” toward <end:tech|fruit>, “<second:w>” toward <start:tech|fruit>"
)
def title_of_apple(model, said):
    alone, phones, pie = apples(model)[0][-1, 16:19]
    assert phones > alone > pie
    return {"word": "phones", "other": "apple", "end": "tech", "second": "pie", "start": "fruit"}


@TITLES.sentence(
    "Among words, <ahead> heads of layer 1 look one ahead, <behind> one back, <own> at itself"
)
def title_of_relations(model, said):
    return dict(zip(("ahead", "behind", "own"), looking(model), strict=True))


@TITLES.sentence("Content words give <share> of their attention to tokens without content")
def title_of_sinks(model, said):
    return {"share": sinks(model)[0].mean(0).sum(0).mean()}


@TITLES.sentence("None of the <all> weights printed for “<text:w>” follows from its scores")
def title_of_slip(model, said):
    (stage,), tokens = worked("likes").stages, worked("likes").facts.tokens
    assert not stage.follows.any()
    return {"all": stage.follows.size, "text": " ".join(tokens)}


# ------------------------------------------------------------------------------------ all files

FILES = Patterns()  # what the drawn files hold: the caption of the figure, and the verdict
FILES.extend(one for one in [*STEPS, *MAPS, *EXAMPLE] if one.pieces == (one.template,))

# The heads of the model, the texts that were read, and their size.
VERDICTS = {
    "fig00_first_heatmap": (72, 1), "fig01_attention_matrix": (72, 1),
    "fig02_attention_vector": (72, 1), "fig04_steps": (72, 1), "fig05_retrieval": (72, 1),
    "fig06_senses": (72, 30), "fig08_why_scale": (72, 1),
    "fig12_apple": (72, len(FRUITS) * 2 + len(TECH) + 3), "fig13_heads_of_a_layer": (72, 1),
    "fig14_sinks": (72, 9), "fig15_image_patches": (72, 1), "fig16_sound_frames": (72, 1),
    "fig18_four_rankings": (72, 2), "fig19_long_text": (72, 2), "fig20_survey": (72, 8),
    "fig21_atoms": (96, 1), "fig22_induction": (270, 12), "fig23_sink": (270, 12),
    "fig25_grouped_queries": (270, 8), "fig26_decoder_senses": (270, 24),
    "fig27_bert_and_decoder": (270, 6), "fig30_shift": (72, 1), "fig31_explain": (270, 1),
    "fig32_ablate": (270, 1), "fig33_all_heads": (270, 1), "fig34_explorer": (270, 8),
    "fig35_text": (72, 1),
}  # fmt: skip
COMPARED = {"fig22_induction": 25}  # layers in which positions were compared in every text, if few
UNREAD = {"fig28_training", "fig29_linear_attention"}  # of a training


@FILES.sentence(
    "Verified: <heads> heads[[ on <texts> texts]] recomputed in float64 differ from the model's "
    "own float32 weights by at most <largest>[[ in <rows> of <every> rows (<share> of the "
    "weights); the stored summaries differ by at most <summary> of the largest number of their "
    "kind, in these and one row of cells]]; <parts:*> and the output of the model as loaded[[ for "
    "the first <tokens> tokens]] (<output:*>) agree[[; not compared: <missing:*>]]."
)
def file_verdict(facts, said):
    """The differences are those of the machine that drew it, so they only must be rounding."""
    heads, texts = VERDICTS[facts.stem]
    numbers = said["largest"], said["summary"], said["output"].removeprefix("to ")
    assert all(one in (None, "exactly") or 0 < float(one) < 2e-5 for one in numbers)
    layers = COMPARED.get(facts.stem) or {270: 30, 96: 12}.get(heads, 6)
    known = {
        "input", "projections", "hidden states", "sums of the parts", "lengths of the shift",
        "logits", "positions in the first layer", f"positions in {layers} layers",
    }  # fmt: skip
    parts = (re.sub(r"^\d+ of \d+ (?=positions)", "", one) for one in said["parts"].split(", "))
    assert {*parts} <= known
    one = said | {"heads": heads, "texts": texts if texts > 1 else None}
    one["missing"] = said["missing"] and "positions"  # of a map that was summed in cells
    assert said["missing"] is None or said["every"]
    if said["every"]:
        rows = texts * license_text(facts.model)[0]
        one |= {"every": rows, "share": int(said["rows"]) / rows}
    return one


@FILES.sentence("“<text:w>”, read by <model:*>.")
def file_source(facts, said):
    text, named = TEXT_OF[facts.stem], READ_BY.get(facts.stem, facts.model.name)
    return {"text": clipped(text, said["text"], 60), "model": named}


@FILES.sentence("Read by <model:*>.")
def file_reader(facts, said):
    return {"model": READ_BY.get(facts.stem, facts.model.name)}


TEXT_OF = {
    "fig00_first_heatmap": "the train left the station", "fig01_attention_matrix": ON_TIME,
    "fig02_attention_vector": "the train left the station",
    "fig04_steps": "the train left the station",
    "fig05_retrieval": "the train left this station on time",
    "fig08_why_scale": "the train left the station on time because somebody had wound the clock",
    "fig10_order_blindness": ON_TIME, "fig13_heads_of_a_layer": ON_TIME,
    "fig19_long_text": (GALLERY.parent / "LICENSE").read_text(encoding="utf-8")[:2300],
    "fig30_shift": "We sat on the bank of the river.",
}  # fmt: skip
READ_BY = {}  # the models of texts that another one read


@FILES.sentence(
    "Of all heads this one has the <how:largest|smallest> weight between content words "
    "beyond what distance and key explain."
)
def file_best(facts, said):
    """The caption of the page names the head, and is checked."""
    return {"how": "largest"}


@FILES.sentence("[CLS], [SEP] removed (<share> of the weight), rows renormalized to 1.")
def file_removed(facts, said):
    run = read(facts.model, TEXT_OF[facts.stem])
    lost = run.weights[:, :, 1:-1][..., [0, -1]].sum(-1).mean(-1)
    chosen = {"fig01_attention_matrix": (0, 1), "fig13_heads_of_a_layer": (1, slice(None))}
    head = chosen.get(facts.stem) or best_head(run)[:2]
    return {"share": lost[head].mean()}


@FILES.sentence(
    "Rows are tokens; framed is the row of “<word:w>”, and among the heads side by side "
    "what head <head> adds.",
    "“<text:w>”, layer <layer>, head <head>.",
    "In each tile the <count> queries run down and the keys across.",
    "Each cell joins <cell> × <cell> of the <all> × <all> weights (columns summed, rows averaged).",
    "Model: <model:*>.",
    "Red: the difference from “I love apple”, without a neighbor; read by <model:*>.",
    "Last hidden states of <model:*> on “<text:w>”.",
    "“<text:w>”.",
)
def file_numbers(facts, said):
    text = TEXT_OF.get(facts.stem)
    one = {"word": "station", "model": facts.model.name, "text": text, "cell": 4}
    one |= {"count": text and len(text.split())}
    if facts.stem == "fig05_retrieval":
        layer, head, _ = best_head(read(facts.model, text))
        one |= {"layer": layer, "head": head}
    one |= {"head": 4} if facts.stem == "fig04_steps" else {}
    one |= {"all": license_text(facts.model)[0]} if "all" in said else {}
    return {name: one[name] for name in said}


@FILES.sentence("<summary:*>. Slips: <slips:*>.")
def file_worked(facts, said):
    name = "phones" if facts.stem == "fig07_worked_example" else "likes"
    wrong = read_all(f"{said['summary']}. Slips: {said['slips']}.", worked(name).facts, EXAMPLE)
    one = {"slips": said["slips"]}
    return one | {"summary": OneOf(wrong) if wrong else said["summary"]}


@FILES.sentence(
    "Layer <layer>, head <head> of <model:*>, <tokens> tokens of this project's license.",
    "Red: the cells over <far> tokens from the diagonal that have <least> or more in a.",
)
def file_license(facts, said):
    assert facts.stem == "fig19_long_text"
    tokens, distance, _, _ = license_text(facts.model)
    layer, head = np.unravel_index(distance.argmin(), distance.shape)
    one = {"layer": layer, "head": head, "model": facts.model.name, "tokens": tokens}
    one |= {"far": 60, "least": 0.01}
    return {name: one[name] for name in said}


FILES.words("No attention is shown.", "Colors on a logarithmic scale.")
