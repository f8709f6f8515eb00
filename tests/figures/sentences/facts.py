"""The raw numbers of results, without what the package derives from them."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace

import numpy as np
import torch


def facts_of(value):
    """Return the fields of a result, and of all in it: no property, and no sentence."""
    if isinstance(value, torch.Tensor):
        return (value.double() if value.is_floating_point() else value).numpy()
    if is_dataclass(value):
        inner = {field.name: facts_of(getattr(value, field.name)) for field in fields(value)}
        return SimpleNamespace(type=type(value).__name__, **inner)
    if isinstance(value, Mapping):
        return {key: facts_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [facts_of(item) for item in value]
    return value


def facts_of_json(kind, data):
    """Return the same of what a command printed as JSON."""
    facts = SimpleNamespace(type=kind, **{key.replace(" ", "_"): data[key] for key in data})
    facts.provenance = SimpleNamespace(**data.get("provenance", {}))
    facts.provenances = [SimpleNamespace(**one) for one in data.get("provenances", ())]
    if "agreements" in data:
        facts.agreements = [report_of_json(one) for one in data["agreements"]]
    if "agreement" in data:
        facts.agreement = report_of_json(data["agreement"])
    return facts


def report_of_json(data):
    """Return the report of a command; without stages where a golden stores only one."""
    report = SimpleNamespace(**data)
    whole = data["checks"] and isinstance(data["checks"][0], dict)
    report.checks = [SimpleNamespace(**one) for one in data["checks"]] if whole else None
    report.not_compared = [tuple(one.values()) for one in data["not_compared"]]
    for name in ("output", "positions", "input"):
        part = getattr(report, name)
        setattr(report, name, SimpleNamespace(**part) if part else None)
    report.analysis = [SimpleNamespace(**one) for one in report.analysis]
    return report


def numbered(words):
    """Return the names of words: those that occur again have a number."""
    folded = [word.casefold() for word in words]
    return [
        word if folded.count(key) == 1 else f"{word}#{1 + folded[:n].count(key)}"
        for n, (word, key) in enumerate(zip(words, folded, strict=True))
    ]


def by_word(facts, numbers):
    """Return the sums over the pieces of each word of numbers by token, (..., tokens)."""
    numbers = np.asarray(numbers, float)
    pieces = [[int(n) for n in one] for one in facts.positions]
    return np.stack([numbers[..., one].sum(-1) for one in pieces], -1)


def ranks(values):
    """Return the ranks of numbers; those of equal ones are their mean."""
    values = np.asarray(values, float)
    return np.array([(values < x).sum() + ((values == x).sum() - 1) / 2 for x in values])


def spearman(first, second):
    """Return Spearman's ρ."""
    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


LABELED = {
    "words", "tokens", "rows", "columns", "senses", "regions", "checkpoints", "keys", "queries",
    "sentence", "statistics", "target", "against", "stacks", "replaced", "title", "labels",
}  # fmt: skip


def labels_in(facts):
    """Yield the texts of a result that stand beside numbers: words, tokens, senses, names."""
    for name, value in vars(facts).items() if isinstance(facts, SimpleNamespace) else ():
        for one in value if isinstance(value, list) else [value]:
            if name in LABELED and isinstance(one, str):
                yield one
            for inner in one if isinstance(one, list) else [one]:
                yield from labels_in(inner)


LABELS = {
    "head", "layer", "key (attended to)", "query (attending)", "attention weight", "weight",
    "special tokens", "image, as the model reads it", "weight ÷ even (framed: most)",
    "weight ÷ even weight", "of the range", "share", "right", "entering layer", "95% of shuffles",
    "main other direction →", "none", "■", "□", "printed",
    "static", "output", "guess", "own side", "nearer to", "its own ↑", "another ↓", "undecided",
    "from here on", "here", "other words alone",
}  # fmt: skip


def is_label(text, facts):
    """Whether a text of a figure is no sentence: a number, or words of the result."""
    from figures.sentences.reading import NUMBER

    known = set(labels_in(facts))
    words = {word.strip(".,?!;") for one in known for word in one.split()}
    if re.fullmatch(rf"(?:\s*±?(?:{NUMBER}|\d+))+", text) or text in LABELS | known:
        return True
    if any(text.strip("… ") in one for one in known if " " in one):  # a piece of a sentence
        return True
    if text.endswith("…") and any(one.startswith(text[:-1]) for one in known | words):
        return True
    return len(text.split()) < 3 and all(word.strip(".,?!;") in words for word in text.split())
