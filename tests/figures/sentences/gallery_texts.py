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
    FRUITS,
    NOISE,
    ROUNDING,
    TECH,
    apples,
    eager,
    figure,
    kept,
    of_result,
    read,
)  # fmt: skip
from figures.sentences.proof import COMMON
from figures.sentences.reading import Near
from figures.sentences.words import BEYOND, SENSES, SHIFT, Moved


@kept
def bundled():
    """Return the bundled sentences by word and sense."""
    path = files("attnviz").joinpath("analyses", "senses", "sentences.json")
    return json.loads(path.read_text("utf-8"))


# ---------------------------------------------------------------------------------------- senses

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


@figure("fig06_senses", "nearest, more, most")
def senses(model, said):
    """Before the layer that is named, guessing explains what is right."""
    right, others, _, labels = senses_of(model, "check")
    more, less = against_others(right, others)
    p = binomtest(more, more + less).pvalue
    shares, guess, n = right.mean(1), best_guess(labels), len(labels)
    since, (low, high) = int(said["check.since"]), output_interval(model)
    least = shares[since:].min()
    assert more > less
    assert p > BEYOND
    assert wilson(shares[since - 1], n)[0] <= guess < wilson(least, n)[0]
    one = {
        "n": n, "static": shares[0], "check.chance": guess, "check.since": since, "least": least,
        "last": shares[-1], "low": Near(low, CLOSE), "high": Near(high, CLOSE),
        "context": others.mean(), "p": p,
    }  # fmt: skip
    found = [senses_of(model, word) for word in bundled()]
    more, less = np.sum([against_others(right, others) for right, others, *_ in found], axis=0)
    return one | {
        "words": len(found), "more": more, "less": less,
        "p_all": binomtest(more, more + less).pvalue,
        "start": np.mean([right[0].mean() for right, *_ in found]),
        "others": np.mean([others.mean() for _, others, *_ in found]),
        "end": np.mean([right[-1].mean() for right, *_ in found]),
        "chance": np.mean([best_guess(labels) for *_, labels in found]),
    }  # fmt: skip


@kept
def senses_result(model):
    return measured_again(facts_of(attnviz.senses("check", model=model)))


of_result([*SENSES, *COMMON], "fig06_senses", senses_result)


# ------------------------------------------------------------------------- a shift of two texts

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


@figure("fig18_four_rankings")
def four_rankings(model):
    """The pulls have opposite signs, and both weights are positive."""
    found = pulls(model)
    credit, effect, attention, rollout = np.swapaxes(found, 0, 1)
    layers, heads = read(model, "I love apple pie").weights.shape[:2]
    assert credit[0, -1] > 0 > credit[1, -1]
    assert attention[:, -1].min() > 0.1
    same = np.sign(credit) == np.sign(effect)
    one = {"layer": layers - 1, "head": heads - 1, "least": rollout.min(), "most": rollout.max()}
    one |= {"sum(same)": same.sum(), "len(same)": same.size}
    for n, name in enumerate(NEIGHBORS):
        values = credit[n, -1], effect[n, -1], attention[n, -1]
        one |= zip((name, f"{name}_effect", f"{name}_attention"), values, strict=True)
    return one


# ------------------------------------------------------------------------- a shift of one text

BANK, RIVER = "bank", "We sat on the bank of the river."


@kept
def shift_result(model):
    return measured_again(facts_of(attnviz.shift(BANK, RIVER, model=model)))


@kept
def gap(model):
    """Return the gap between “bank” here and alone, the length of its vector, and the result.

    The result only adds what the split gives; what masking takes is checked against its numbers.
    """
    run = read(model, RIVER)
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


@figure("fig30_shift", "most, adds, takes")
def shift(model):
    """It is the headline of the result: masking the word takes a quarter of its credit or more."""
    whole, length, takes, moved = gap(model)
    first, second = sorted(moved.sources, key=lambda n: -moved.credit[n])[:2]
    assert takes[first] > max(moved.credit[first] / 4, whole / 10)
    assert takes[first] == max(takes[moved.sources])
    assert len(model.tokenizer(BANK, add_special_tokens=False).input_ids) == 1
    assert abs(np.nansum(moved.credit) - whole) < NOISE * whole
    return {
        "cause": moved.names[first], "second": moved.names[second], "text": RIVER,
        "far": whole / length, "credit": moved.credit[first] / whole,
        "less": moved.credit[second] / whole, "error": ROUNDING, "lost": takes[first] / whole,
        "lost_too": takes[second] / whole,
        "rho": spearman(moved.credit[moved.sources], takes[moved.sources]),
    }  # fmt: skip


of_result([*SHIFT, *COMMON], "fig30_shift", shift_result)


# ---------------------------------------------------------------------------------------- survey


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


@figure("fig20_survey", "most")
def survey(model):
    """The interval is that of other resamples of the sentences."""
    previous, after, special, even = statistics(model)
    (head, shares), (other, to_next) = best(previous), best(after)
    means = np.random.default_rng(20).choice(shares, (4000, len(shares))).mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    assert low > even
    roles = survey_result(model).roles
    named = [role for role in roles if role]
    assert sum(role == "rests on the first token" for role in named) > len(named) / 2
    return {
        "texts": len(previous), "previous": head, "previous_share": shares.mean(),
        "previous_low": Near(low, 1e-4), "previous_high": Near(high, 1e-4), "previous_even": even,
        "next": other, "next_share": to_next.mean(), "named": len(named), "heads": len(roles),
        "rest": special.mean(0)[1:-1].mean(),
    }  # fmt: skip


of_result([*SURVEY, *COMMON], "fig20_survey", survey_result)
