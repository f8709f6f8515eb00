"""The captions of the gallery about many texts that the default model reads."""

import json
import re
from importlib.resources import files

import numpy as np
from scipy.stats import binomtest

import attnviz
from figures.sentences.facts import facts_of
from figures.sentences.gallery import FILES, caption, eager, kept, read
from figures.sentences.reading import Pattern, read_number
from figures.sentences.words import BEYOND, SENSES


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
    "Nor does it show that the most attended words, in color, determine the sense.",
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


@CHECK.sentence("Each dot is “<word:w>” in one of <n> sentences.")
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
    return facts_of(attnviz.senses("check", model=model))


of_result(SENSES, "fig06_senses", senses_result)
