"""Find the heads that do the work, in transformers whose weights are set by hand.

Each case is a model of `compiled.py` that computes a function of `programs.py` through known heads,
and is right in all of its texts. Ablations by code of this file first show that no known head can
be spared and that all others together can. Then attnviz is asked: for the heads by `ablate`,
`explain`, `survey` and raw weights, and for the words by `explain`. Backup heads are cases of their
own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from pathlib import Path
from random import Random
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import attnviz
from attnviz.attribution.methods import METHODS
from faithfulness.compiled import Compiled, Head, compile_model
from faithfulness.programs import CASES, Case, Text
from faithfulness.reactions import auc, interval

CHECKED = 48  # texts of a case that the model has to get right
ABLATED, EXPLAINED, _ALONE = 6, 4, 3  # texts that attnviz is asked about
_BROKEN, _LEAST = 0.75, 0.1  # accuracy without a known head, logits that others may move


def build(case: Case) -> tuple[Compiled, Callable[[int], list[Text]]]:
    """Return the model of a case, and what writes texts."""
    function = case.make(case.family)
    compiled = compile_model(function.program, case.family, **case.options)
    random = Random(f"{case.name} {case.family} {case.options['seed']}")
    return compiled, lambda count: [function.write(random) for _ in range(count)]


# --- the truth, by code that shares nothing with attnviz


def _outputs(module: Any) -> list[torch.nn.Module]:
    """Return the projections that the outputs of all heads of a layer go into."""
    if hasattr(module, "transformer"):
        return [block.attn.c_proj for block in module.transformer.h]
    if hasattr(module, "model"):
        return [block.self_attn.o_proj for block in module.model.layers]
    return [block.attention.output.dense for block in module.bert.encoder.layer]


@dataclass(frozen=True, eq=False)
class Truth:
    """Runs a model on texts without some heads, by hooks of torch."""

    compiled: Compiled
    texts: Sequence[Text]

    def logits(self, change: Callable[[int, Tensor], Tensor] = lambda _, output: output) -> Tensor:
        """Return the logits of each text, (N, V), where `change` replaces the output of heads.

        change : from a layer and the outputs of its heads (1, T, H, d_v) to others.
        """
        module, tokenizer = self.compiled.model.module, self.compiled.model.tokenizer
        heads = self.compiled.size[1]

        def hook(layer: int) -> Callable[..., Any]:
            def replace(_: Any, given: tuple[Tensor]) -> tuple[Tensor]:
                return (change(layer, given[0].unflatten(-1, (heads, -1)).clone()).flatten(-2),)

            return replace

        projections = enumerate(_outputs(module))
        handles = [one.register_forward_pre_hook(hook(layer)) for layer, one in projections]
        found = []
        try:
            for text in self.texts:
                ids = tokenizer(str(text), return_tensors="pt").input_ids
                with torch.no_grad():
                    logits = module(input_ids=ids).logits[0]
                if logits.dim() > 1:  # not of classes
                    mask = tokenizer.mask_token_id
                    logits = logits[-1 if mask is None else int((ids[0] == mask).nonzero())]
                found.append(logits)
        finally:
            for handle in handles:
                handle.remove()
        return torch.stack(found)

    def accuracy(self, logits: Tensor) -> float:
        """Return the share of right answers."""
        best, answers = logits.argmax(1).tolist(), self.compiled.program.answers
        if logits.shape[1] > len(answers):
            names = [self.compiled.model.tokenizer.decode([token]) for token in best]
        else:
            names = [answers[n] for n in best]
        right = [name == text.answer for name, text in zip(names, self.texts, strict=True)]
        return sum(right) / len(right)

    def without(self, heads: Sequence[Head], means: Mapping[int, Tensor] | None) -> Tensor:
        """Return the logits of each text; heads have their means, by layer, or zeros."""

        def change(layer: int, output: Tensor) -> Tensor:
            for head in (head for of_layer, head in heads if of_layer == layer):
                output[:, :, head] = 0.0 if means is None else means[layer][head]
            return output

        return self.logits(change)

    def measure(self) -> dict[str, Any]:
        """Return the accuracy with all heads, and without known ones and without all others."""
        seen: dict[int, list[Tensor]] = {}

        def keep(layer: int, output: Tensor) -> Tensor:
            seen.setdefault(layer, []).append(output[0])
            return output

        whole, known = self.logits(keep), self.compiled.known
        means = {layer: torch.cat(outputs).mean(0) for layer, outputs in seen.items()}  # (H, d_v)
        others = [head for head in self.compiled.every_head if head not in known]
        rest = [self.without(others, one) for one in (means, None)]
        return {
            "accuracy": self.accuracy(whole),
            "without each": [self.accuracy(self.without([head], means)) for head in known],
            "without known": self.accuracy(self.without(known, means)),
            "without others": min(map(self.accuracy, rest)),
            "moved by others": float((torch.stack(rest) - whole).abs().max()),
        }


def expect_circuit(truth: Mapping[str, Any], case: Case) -> None:
    """Raise AssertionError unless the known heads, and no others, do the work of a case."""
    needed = [] if case.backup else truth["without each"]
    if (
        truth["accuracy"] < 1
        or truth["without others"] < 1
        or truth["moved by others"] > _LEAST
        or max([*needed, truth["without known"]]) > _BROKEN
    ):
        raise AssertionError(f"{case.name} in {case.family} is not what it should be: {truth}")


# --- what attnviz says


def name_heads(
    compiled: Compiled, texts: Sequence[Text], explained: Sequence[attnviz.ExplainResult]
) -> dict[str, list[float]]:
    """Return a number of each head by method: (L × H), by layer."""
    model, spelled = compiled.model, [str(text) for text in texts]
    lost = {
        "ablate": attnviz.ablate(spelled, model=model),
        "ablate, zeros": attnviz.ablate(spelled, how="zero", model=model),
        "ablate, another text": attnviz.ablate(spelled, how="resample", model=model),
        "ablate, direct effect": attnviz.ablate(spelled, effect="direct", model=model),
    }
    numbers = {name: result.mean.abs() for name, result in lost.items()}
    alone = [attnviz.ablate(text, model=model).mean.abs() for text in spelled[:_ALONE]]
    numbers["ablate, one text at a time"] = torch.stack(alone).mean(0)
    numbers["ablate, estimate of the gradient"] = lost["ablate"].estimate.mean(0).abs()
    splits = [why.decomposition for why in explained]
    if all(splits):
        sizes = torch.stack([split.table.sum(-1).abs() for split in splits])
        numbers["explain, direct parts of heads"] = sizes.mean(0).flatten()
    ranked, read = [], []
    for text, words in zip(spelled, texts, strict=True):
        result = attnviz.attend(text, model=model)
        table = torch.zeros(compiled.size)
        for one in attnviz.rank_heads(result):
            table[one.layer, one.head] = one.score
        ranked.append(table)
        if words.sources:
            weights = torch.stack([one.weights() for one in result.stack().records])
            tokens = [*result.stack().records[0].key_axis.labels]
            start = int(tokens[0] != words.words[0])
            row = len(tokens) - 1 if model.tokenizer.cls_token is None else 0
            row = tokens.index("[MASK]") if "[MASK]" in tokens else row
            read.append(weights[:, :, row, [start + n for n in words.sources]].amax(-1))
    numbers["rank_heads"] = torch.stack(ranked).mean(0).flatten()
    if read:
        numbers["weight on the source"] = torch.stack(read).mean(0).flatten()
    return {name: of.double().tolist() for name, of in numbers.items()}


def name_words(
    texts: Sequence[Text], explained: Sequence[attnviz.ExplainResult]
) -> list[dict[str, Any]]:
    """Return for each text with known sources what `explain` gives to each word, by method."""
    found = []
    for text, why in zip(texts, explained, strict=True):
        if not text.sources:
            continue
        offset = [*why.words].index(text.words[0])
        words = [n - offset for n in why.sources]  # in the text
        scores = {"measured": why.effect, **why.attributions}
        named = None if why.strongest is None else why.strongest - offset
        found.append({
            "words": words, "sources": [*text.sources], "named": named, "headline": why.headline,
            "scores": {name: of[why.sources].tolist() for name, of in scores.items()},
        })  # fmt: skip
    return found


def name_roles(case: Case, compiled: Compiled) -> dict[str, Any]:
    """Return the heads that a survey gives the roles of the known heads, and what it confirms."""
    result = attnviz.survey(probe=case.probes, model=compiled.model)
    expected = {one.role: place for place, one in zip(
        compiled.known, compiled.program.heads, strict=True
    ) if one.role}  # fmt: skip
    measured = {one.role for one in result.confirmations if not one.reason}
    return {
        role: {
            "known": place, "confirmed": role in measured and result.name_of(role) == role,
            "measured": role in measured,
            "named": [
                (head.layer, head.head)
                for head, other in zip(result.heads, result.roles, strict=True)
                if other == role
            ],
        }
        for role, place in expected.items()
    }  # fmt: skip


def judge(case: Case) -> dict[str, Any]:
    """Build a case, check that it is what it should be, and return what attnviz says of it."""
    compiled, write = build(case)
    truth = Truth(compiled, write(CHECKED)).measure()
    expect_circuit(truth, case)
    texts, model = write(ABLATED), compiled.model
    shown = [one for one in texts if one.sources][:EXPLAINED] or texts[:EXPLAINED]
    explained = [attnviz.explain(str(one), methods=[*METHODS], model=model) for one in shown]
    judged: dict[str, Any] = {
        "case": case.name, "family": case.family, "seed": case.options["seed"],
        "size": compiled.size, "known": compiled.known, "decoy": compiled.decoy,
        "backup": case.backup, "truth": truth, "heads": name_heads(compiled, texts, explained),
        "words": name_words(shown, explained),
    }  # fmt: skip
    if case.probes:
        judged["roles"] = name_roles(case, compiled)
    if case.backup:
        pairs = [*combinations(compiled.every_head, 2)]
        spelled = [str(text) for text in texts]
        lost = attnviz.ablate(spelled, heads=pairs, model=model)
        judged["pair"] = lost.sets[lost.strongest[0]]
    return json.loads(json.dumps(judged))


def evaluate(
    cases: Sequence[Case] = CASES, *, step: int = 1, store: Path | None = None
) -> list[dict[str, Any]]:
    """Judge every `step`-th case; store : JSON lines, from which an interrupted run goes on."""
    lines = store.read_text("utf-8").splitlines() if store is not None and store.exists() else []
    done = {(one["case"], one["family"], one["seed"]): one for one in map(json.loads, lines)}
    chosen = [(one.name, one.family, one.options["seed"], one) for one in cases[::step]]
    for *key, case in track(chosen, "circuits", console=Console(stderr=True)):
        if tuple(key) not in done:
            done[tuple(key)] = judged = judge(case)
            if store is not None:
                with store.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(judged) + "\n")
    return [done[tuple(key)] for *key, _ in chosen]


# --- scores


def of_heads(judged: Mapping[str, Any], method: str) -> tuple[float, bool] | None:
    """Return the AUC of the known heads, and whether they rank first."""
    if method not in judged["heads"]:
        return None
    numbers, (_, heads) = torch.tensor(judged["heads"][method]), judged["size"]
    known = {layer * heads + head for layer, head in judged["known"]}
    first = numbers.argsort(descending=True, stable=True)[: len(known)].tolist()
    return auc(numbers, [n in known for n in range(len(numbers))]), {*first} == known


def of_words(judged: Mapping[str, Any], method: str) -> float | None:
    """Return the share of texts in which the first word of a method is a known source."""
    right = [
        text["words"][max(range(len(scores)), key=scores.__getitem__)] in text["sources"]
        for text in judged["words"]
        if len(scores := text["scores"].get(method, ()))
    ]
    return sum(right) / len(right) if right else None


def chance_of_words(judged: Mapping[str, Any]) -> float | None:
    """Return the share of texts in which a random word is a known source."""
    shares = [
        len({*text["words"]} & {*text["sources"]}) / len(text["words"]) for text in judged["words"]
    ]
    return sum(shares) / len(shares) if shares else None


def written(numbers: Sequence[float | None]) -> str:
    """Return a mean over cases and its 95 % interval."""
    known = [float(one) for one in numbers if one is not None]
    return "{:.2f} ({:.2f} – {:.2f})".format(*interval(known)) if known else "–"


def show(judged: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print how attnviz names the known heads, their roles and the known words."""
    single = [one for one in judged if not one["backup"]]
    backups = [one for one in judged if one["backup"]]
    table = Table(title=f"heads: {len(single)} circuits")
    for column in ("", "AUC of the known heads", "they rank first", "circuits"):
        table.add_column(column)
    for method in dict.fromkeys(name for one in single for name in one["heads"]):
        scores = [found for one in single if (found := of_heads(one, method)) is not None]
        aucs, firsts = zip(*scores, strict=True)
        table.add_row(method, written(aucs), written(firsts), str(len(scores)))
    chances = [1 / comb(one["size"][0] * one["size"][1], len(one["known"])) for one in single]
    table.add_row("chance", "0.50", f"{sum(chances) / len(chances):.2f}", str(len(single)))
    for one in backups:
        area, first = of_heads(one, "ablate") or (0.0, False)
        pair = sorted(one["pair"]) == sorted(one["known"])
        table.add_row(
            f"ablate, backup in {one['family']}", f"{area:.2f}", f"{first}; as a pair: {pair}", "1"
        )
    console.print(table)
    roles = [found for one in judged for found in one.get("roles", {}).values()]
    if roles:
        named = [one["known"] in one["named"] for one in roles]
        alone = [one["named"] == [one["known"]] for one in roles]
        confirmed = [one["confirmed"] for one in roles if one["measured"]]
        console.print(
            f"survey names the known head by its role: {sum(named)} of {len(named)}, and no other "
            f"head: {sum(alone)}; confirmed, where ablation was possible: {sum(confirmed)} of "
            f"{len(confirmed)}"
        )
    table = Table(title="words: the first one is a known source")
    for column in ("", "share of texts", "circuits"):
        table.add_column(column)
    names = dict.fromkeys(
        name for one in judged for text in one["words"] for name in text["scores"]
    )
    shares = {name: [of_words(one, name) for one in judged] for name in names}
    means = {name: interval([x for x in of if x is not None])[0] for name, of in shares.items()}
    for name in sorted(names, key=lambda name: -means[name]):
        table.add_row(name, written(shares[name]), str(sum(x is not None for x in shares[name])))
    chances = [chance_of_words(one) for one in judged]
    table.add_row("chance", written(chances), str(sum(x is not None for x in chances)))
    console.print(table)
    console.print(
        f"{len(judged)} circuits of {len({one['case'] for one in judged})} kinds; intervals: "
        "95 %, from a bootstrap over circuits.",
        style="dim",
    )
