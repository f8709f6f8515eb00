"""The captions of the gallery about many texts that the default model reads."""

import json
import re
from importlib.resources import files

import numpy as np
import torch
from scipy.stats import binomtest

import attnviz
from figures.sentences.cases import measured_again
from figures.sentences.corpus import SURVEY
from figures.sentences.facts import facts_of, spearman
from figures.sentences.gallery import (
    FILES,
    FRUITS,
    NOISE,
    TECH,
    TEXT_OF,
    apples,
    caption,
    eager,
    kept,
    read,
)  # fmt: skip
from figures.sentences.reading import Pattern, read_number
from figures.sentences.words import BEYOND, SENSES, SHIFT, Moved


@kept
def bundled():
    """Return the bundled sentences by word and sense."""
    path = files("attnviz").joinpath("analyses", "senses", "sentences.json")
    return json.loads(path.read_text("utf-8"))


def of_result(patterns, stem, facts):
    """Let the file of a figure have the sentences of a result."""

    def moved(one):
        def expect(file, said):
            assert file.stem == stem
            return one.expect(facts(file.model), said)

        return Pattern(one.template, one.regex, expect, one.pieces)

    FILES.extend(map(moved, patterns))


# ---------------------------------------------------------------------------------------- senses

CHECK = caption(
    "fig06_senses",
    "Nor does it show that the most attended words, underlined, determine the sense.",
    "The sentences were written with clear cues and are few: this is an illustration, not a "
    "benchmark.",
)
CLOSE = 0.008  # between the ends of an interval with other random numbers


def hits(vectors, labels, weights):
    """Return whether each vector (n, d) is nearest to its sense (n,), by the others; ties count.

    Nearness is the cosine from the weighted mean of all others, weights (n,).
    """
    right = np.zeros(len(vectors))
    for n, vector in enumerate(vectors):
        counts = np.where(np.arange(len(vectors)) == n, 0, weights)
        mean = counts @ vectors / counts.sum()
        near = []
        for label in range(labels.max() + 1):
            member = counts * (labels == label)
            centroid = member @ vectors / member.sum() - mean
            lengths = np.linalg.norm(centroid) * np.linalg.norm(vector - mean)
            near.append(centroid @ (vector - mean) / lengths if lengths > 1e-9 else 0.0)
        tied = np.array(near) >= max(near) - 1e-6
        right[n] = tied[labels[n]] / tied.sum()
    return right


@kept
def senses_of(model, word):
    """Return which are right by state and by the other words, the vectors and the senses."""
    table = eager(model).embeddings.word_embeddings.weight.detach().double().numpy()
    vectors, others, labels = [], [], []
    for label, texts in enumerate(bundled()[word].values()):
        for text in texts:
            start = re.search(rf"\b{word}\b", text, re.IGNORECASE).start()
            at = model.tokenizer(text).char_to_token(start)
            ids = model.tokenizer(text).input_ids
            vectors.append([state[at].numpy() for state in read(model, text).states])
            others.append(table[[id_ for n, id_ in enumerate(ids[1:-1], 1) if n != at]].mean(0))
            labels.append(label)
    vectors, labels, even = np.swapaxes(vectors, 0, 1), np.array(labels), np.ones(len(labels))
    right = np.array([hits(state, labels, even) for state in vectors])
    return right, hits(np.array(others), labels, even), vectors, labels


def wilson(share, n):
    """Return Wilson's interval of 95% of a share of n."""
    square = 1.96**2 / n
    half = np.sqrt(share * (1 - share) * square + square**2 / 4)
    return (share + square / 2 + np.array([-half, half])) / (1 + square)


@kept
def output_interval(model):
    """Return Wilson's interval of “check” at the output, wider by refits of the centroids."""
    right, _, vectors, labels = senses_of(model, "check")
    n, share, random = len(labels), right[-1].mean(), np.random.default_rng(6)
    weights = random.exponential(size=(600, n))
    refits = [hits(vectors[-1], labels, one) @ one / one.sum() for one in weights]
    rounded = (n * share + 1) / (n + 2)
    centroids = np.var(refits) / (rounded * (1 - rounded) / (n + 1)) - 1
    return wilson(share, n / np.clip(1 + centroids / 2, 1, 2))


def best_guess(labels):
    return np.bincount(labels).max() / len(labels)


def against_others(right, others):
    """Return how often the output is right and the other words are not, and the reverse."""
    return (right[-1] > others).sum(), (right[-1] < others).sum()


@CHECK.sentence(
    "“<word:w>” tells its senses apart, but not clearly better than the words around it"
)
def check_title(model, said):
    right, others, _, labels = senses_of(model, "check")
    more, less = against_others(right, others)
    assert wilson(right[-1].mean(), len(labels))[0] > best_guess(labels)
    assert more > less
    assert binomtest(more, more + less).pvalue > BEYOND
    return {"word": "check"}


@CHECK.sentence("Each line is “<word:w>” in one of <n> sentences.")
def check_count(model, said):
    return {"word": "check", "n": len(senses_of(model, "check")[3])}


@CHECK.sentence(
    "Without context, the nearest centroid of a sense, computed without that sentence, is correct "
    "for <static> (chance <chance>); in each layer from <since> on for <least> or more, and at the "
    "output for <last> (<low> to <high>)."
)
def check_states(model, said):
    """Before the layer that is named, guessing explains what is right."""
    right, _, _, labels = senses_of(model, "check")
    shares, since = right.mean(1), int(said["since"])
    guess, n = best_guess(labels), len(labels)
    assert wilson(shares[since - 1], n)[0] <= guess < wilson(shares[since:].min(), n)[0]
    one = {"static": shares[0], "chance": guess, "since": since, "least": shares[since:].min()}
    for name, end in zip(("low", "high"), output_interval(model), strict=True):
        one[name] = read_number(said[name])[0]
        assert abs(one[name] - end) < CLOSE, (name, end)
    return one | {"last": shares[-1]}


@CHECK.sentence(
    "This need not be attention: the mean static embedding of the other words is correct for "
    "<others>, and no difference can be shown (p = <p>)."
)
def check_others(model, said):
    right, others, _, _ = senses_of(model, "check")
    more, less = against_others(right, others)
    return {"others": others.mean(), "p": binomtest(more, more + less).pvalue}


@CHECK.sentence(
    "Over all <words> bundled words, accuracy is <start> without context, <others> by the other "
    "words, and <end> at the output (chance <chance>): there the word is right and the other words "
    "are not in <more> sentences, the reverse in <less> (p = <p>)."
)
def check_all(model, said):
    found = [senses_of(model, word) for word in bundled()]
    more, less = np.sum([against_others(right, others) for right, others, *_ in found], axis=0)
    means = {
        "start": [right[0].mean() for right, *_ in found],
        "others": [others.mean() for _, others, *_ in found],
        "end": [right[-1].mean() for right, *_ in found],
        "chance": [best_guess(labels) for *_, labels in found],
    }
    one = {name: np.mean(values) for name, values in means.items()}
    one |= {"more": more, "less": less, "p": binomtest(more, more + less).pvalue}
    return one | {"words": len(found)}


@kept
def senses_result(model):
    return measured_again(facts_of(attnviz.senses("check", model=model)))


of_result(SENSES, "fig06_senses", senses_result)


# ------------------------------------------------------------------------- a shift of two texts

RANKINGS = caption(
    "fig18_four_rankings",
    "Attention cannot say in which direction a word pulls",
    "Three words prove little about a ranking; scripts/bench.py compares the methods on hundreds "
    "of sentences.",
)
NEIGHBORS = "phones", "pie"


@kept
def pulls(model):
    """Return by neighbor and method what each word beside “apple” did, shares of the way.

    The credit, and what is lost in a run without a word, are those of the result; all else is
    computed from the model's own weights and states.
    """
    _, states, fruit, tech = apples(model)
    way = np.linalg.norm(tech - fruit)
    regions = {name: [f"I love {word}" for word in words]
               for name, words in (("tech", TECH), ("fruit", FRUITS))}  # fmt: skip
    found = []
    for n, neighbor in enumerate(NEIGHBORS):
        text = f"I love apple {neighbor}"
        moved = Moved(facts_of(attnviz.shift("apple", text, toward=regions, model=model)))
        words = [1, 2, 4]
        assert moved.sources == words
        assert len(moved.causal) == 4
        without = (states[17 + n] - states[16]) @ (tech - fruit) / way
        assert np.isclose(moved.causal["delete"][4], without, atol=1e-3)
        weights = read(model, text).weights.mean(1)
        rollout = np.eye(len(weights[0]))
        for layer in weights:
            rollout = (layer + np.eye(len(layer))) / 2 @ rollout
        rows = moved.credit / way, moved.effect / way, weights[-1, 3], rollout[3]
        found.append([row[words] for row in rows])
    return np.array(found)


@RANKINGS.sentence(
    "What each word did to “<word:w>”, from fruit toward tech: by the exact decomposition; by the "
    "effect of masking, replacing, knocking out or deleting the word (mean of the four); by raw "
    "attention (layer <layer>, the last, counted from 0; mean of heads <first:h> to <last:h>); and "
    "by rollout (all heads of all layers)."
)
def rankings_methods(model, said):
    layers, heads = read(model, "I love apple pie").weights.shape[:2]
    one = {"word": "apple", "layer": layers - 1, "first": f"{layers - 1}.0"}
    return one | {"last": f"{layers - 1}.{heads - 1}"}


@RANKINGS.sentence(
    "The first two are shares of the way from the mean of eight fruits, each read in a text such "
    "as “<text:w>”, to that of eight technical words."
)
def rankings_way(model, said):
    assert len(FRUITS) == len(TECH) == 8
    return {"text": f"I love {FRUITS[0]}"}


@RANKINGS.sentence(
    "For “<a:w>” the decomposition gives <a_credit> and the interventions <a_effect>; for “<b:w>” "
    "<b_credit> and <b_effect>."
)
def rankings_pulls(model, said):
    (a_credit, a_effect), (b_credit, b_effect) = pulls(model)[:, :2, -1]
    one = dict(zip("ab", NEIGHBORS, strict=True))
    return one | {
        "a_credit": a_credit, "a_effect": a_effect, "b_credit": b_credit, "b_effect": b_effect
    }  # fmt: skip


@RANKINGS.sentence("Attention has no sign: it gives “<a:w>” <a_weight> and “<b:w>” <b_weight>.")
def rankings_attention(model, said):
    """The pulls have opposite signs, and both weights are positive."""
    credits, _, attention, _ = pulls(model)[:, :, -1].T
    assert credits[0] > 0 > credits[1]
    assert attention.min() > 0.1
    return dict(zip("ab", NEIGHBORS, strict=True)) | dict(
        zip(("a_weight", "b_weight"), attention, strict=True)
    )


@RANKINGS.sentence("Rollout is between <least> and <most> for all of them.")
def rankings_rollout(model, said):
    rollout = pulls(model)[:, 3]
    return {"least": rollout.min(), "most": rollout.max()}


@FILES.sentence("Decomposition and effect have the same direction for <same> of <words> words.")
def file_directions(file, said):
    assert file.stem == "fig18_four_rankings"
    credit, effect, *_ = np.swapaxes(pulls(file.model), 0, 1)
    return {"same": (np.sign(credit) == np.sign(effect)).sum(), "words": credit.size}


@FILES.sentence("How far each word moves “<word:w>” on the way from fruit to tech; <model:*>.")
def file_pulls(file, said):
    assert file.stem == "fig18_four_rankings"
    return {"word": "apple", "model": file.model.name}


# ------------------------------------------------------------------------- a shift of one text

GAP = caption("fig30_shift")
BANK = "bank"


@kept
def shift_result(model):
    return measured_again(facts_of(attnviz.shift(BANK, TEXT_OF["fig30_shift"], model=model)))


@kept
def gap(model):
    """Return the gap between “bank” here and alone, the length of its vector, and the result.

    The result only adds what the split gives; what masking takes is checked against its numbers.
    """
    run = read(model, TEXT_OF["fig30_shift"])
    T, at = len(run.columns), run.columns.index(BANK)
    ids = torch.tensor(model.tokenizer.convert_tokens_to_ids(run.columns))
    masked = ids.repeat(T, 1).fill_diagonal_(model.tokenizer.mask_token_id)
    itself = torch.eye(T, dtype=bool) | torch.tensor(run.special_columns)
    hidden = torch.zeros(1, 1, T, T).masked_fill(~itself, torch.finfo(torch.float32).min)
    with torch.no_grad():
        alone = eager(model)(ids[None], attention_mask=hidden).last_hidden_state[0, at]
        without = eager(model)(masked).last_hidden_state[:, at]
    here = run.states[-1][at]
    shift = here - alone.double()
    takes = ((here - without.double()) @ shift / shift.norm()).numpy()
    moved = Moved(shift_result(model))
    assert moved.sources == [n for n in range(1, T - 1) if n != at]
    np.testing.assert_allclose(np.array(moved.causal["mask"])[moved.sources],
                               takes[moved.sources], atol=1e-3)  # fmt: skip
    assert np.isclose(moved.total, shift.norm(), atol=1e-3)
    return shift.norm().item(), here.norm().item(), takes, moved


def first_two(model):
    """Return the two words with most credit."""
    moved = gap(model)[3]
    return sorted(moved.sources, key=lambda n: -moved.credit[n])[:2]


@GAP.sentence("“<word:w>” moves “<other:w>” <how:most|least>")
def gap_title(model, said):
    """It is the headline of the result: masking the word takes a quarter of its credit or more."""
    whole, _, takes, moved = gap(model)
    first, _ = first_two(model)
    assert takes[first] > max(moved.credit[first] / 4, whole / 10)
    assert takes[first] == max(takes[moved.sources])
    return {"word": moved.names[first], "other": BANK, "how": "most"}


@GAP.sentence("“<word:w>” enters the model as one vector in every sentence.")
def gap_static(model, said):
    """It is one token, whose vector is a row of the model's table."""
    assert len(model.tokenizer(BANK, add_special_tokens=False).input_ids) == 1
    return {"word": BANK}


@GAP.sentence(
    "The black path is that of “<word:w>” in “<text:w>”, the gray one that of “<again:w>” alone, "
    "where every token reads only itself and special tokens."
)
def gap_paths(model, said):
    return {"word": BANK, "text": TEXT_OF["fig30_shift"], "again": BANK}


@GAP.sentence("Where they end, the gap between them is <far> of the length of the vector.")
def gap_length(model, said):
    whole, length, _, _ = gap(model)
    return {"far": whole / length}


@GAP.sentence(
    "The bricks split this gap over all words, layers and heads: “<word:w>” adds <credit>, the "
    "next word, “<second:w>”, <less>, and all parts sum to the gap up to <error>."
)
def gap_bricks(model, said):
    whole, _, _, moved = gap(model)
    first, second = first_two(model)
    assert float(said["error"]) < NOISE
    assert abs(np.nansum(moved.credit) - whole) < NOISE * whole
    return {
        "word": moved.names[first], "credit": moved.credit[first] / whole,
        "second": moved.names[second], "less": moved.credit[second] / whole,
        "error": float(said["error"]),
    }  # fmt: skip


@GAP.sentence(
    "A split changes no word, so each other word was also masked in a separate run (the thin "
    "bars): masking “<word:w>” takes <lost> of the gap away, masking “<second:w>” <less>."
)
def gap_masked(model, said):
    whole, _, takes, moved = gap(model)
    first, second = first_two(model)
    one = {"word": moved.names[first], "second": moved.names[second]}
    return one | {"lost": takes[first] / whole, "less": takes[second] / whole}


@GAP.sentence("Split and effects need not agree: here their rank correlation is <rho>.")
def gap_rho(model, said):
    _, _, takes, moved = gap(model)
    return {"rho": spearman(moved.credit[moved.sources], takes[moved.sources])}


of_result(SHIFT, "fig30_shift", shift_result)


@FILES.sentence(
    "Bricks: contributions over all paths, shares of the way, which is <way> units of the hidden "
    "state (completeness error <error>)."
)
def file_bricks(file, said):
    """The error is that of the machine that drew it, so it only must be rounding."""
    assert file.stem == "fig30_shift"
    error = read_number(said["error"])[0]
    assert error < NOISE
    return {"way": gap(file.model)[0], "error": error}


# ---------------------------------------------------------------------------------------- survey

MANY = caption(
    "fig20_survey",
    "One sentence gives a picture; many show what a head does.",
)


@kept
def statistics(model):
    """Return the mean weight on the previous, the next and special tokens of each text.

    They are (texts, layers, heads), of all tokens that have such a word beside them; and what
    uniform weights would give to the previous token.
    """
    previous, after, special, even = [], [], [], []
    for word in bundled().values():
        for text in (text for some in word.values() for text in some):
            weights = read(model, text).weights
            T = weights.shape[-1]
            rows = np.arange(1, T - 1)
            previous.append(weights[..., rows[1:], rows[:-1]].mean(-1))
            after.append(weights[..., rows[:-1], rows[1:]].mean(-1))
            special.append(weights[..., rows, :][..., [0, -1]].sum(-1).mean(-1))
            even.append(1 / T)
    return *map(np.array, (previous, after, special)), np.mean(even)


@kept
def survey_result(model):
    texts = [text for word in bundled().values() for some in word.values() for text in some]
    return measured_again(facts_of(attnviz.survey(texts, model=model)))


def best(values):
    """Return the head with the largest mean over texts, and its values."""
    layer, head = np.unravel_index(values.mean(0).argmax(), values.shape[1:])
    return f"{layer}.{head}", values[:, layer, head]


@MANY.sentence("<texts> sentences, compared with shuffled keys.")
def many_texts(model, said):
    return {"texts": len(statistics(model)[0])}


@MANY.sentence(
    "Head <head:h> gives <share> of its weight to the previous token (interval over sentences: "
    "<low> to <high>; uniform weights <even>), and head <other:h> gives <after> to the next."
)
def many_previous(model, said):
    """The interval is that of other resamples of the sentences."""
    previous, after, _, even = statistics(model)
    head, shares = best(previous)
    other, to_next = best(after)
    one = {"head": head, "share": shares.mean(), "even": even}
    means = np.random.default_rng(20).choice(shares, (4000, len(shares))).mean(1)
    for name, end in (("low", 0.025), ("high", 0.975)):
        one[name] = read_number(said[name])[0]
        assert abs(one[name] - np.quantile(means, end)) < 1e-4, name
    assert one["low"] > even
    return one | {"other": other, "after": to_next.mean()}


@MANY.sentence(
    "<named> of <heads> heads have a name, found on half of the sentences and confirmed on the "
    "other half, corrected for all heads and statistics."
)
def many_named(model, said):
    roles = survey_result(model).roles
    return {"named": sum(map(bool, roles)), "heads": len(roles)}


@MANY.sentence("Of the heads that have a role over many sentences, most rest on the first token")
def many_title(model, said):
    roles = [role for role in survey_result(model).roles if role]
    assert sum(role.startswith("rests") for role in roles) > len(roles) / 2
    return {}


@MANY.sentence(
    "Between the first and the last layer the mean head gives <rest> of its weight to special "
    "tokens."
)
def many_rest(model, said):
    return {"rest": statistics(model)[2].mean(0)[1:-1].mean()}


of_result(SURVEY, "fig20_survey", survey_result)
