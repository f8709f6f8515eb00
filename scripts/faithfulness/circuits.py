"""Find the heads that do the work, in transformers whose weights are set by hand.

Each case is a model of `compiled.py` that computes a known function through known heads, and does
so in all of its texts. Ablations by code of this file first show that no known head can be spared
and that all others together can. Then attnviz is asked: for the heads by `ablate`, `explain`,
`survey` and raw weights, and for the words by `explain`. Backup heads are cases of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from faithfulness.compiled import (
    Compiled,
    Copy,
    Head,
    KnownHead,
    Match,
    Offset,
    Program,
    compile_model,
)
from faithfulness.reactions import auc, interval

WORDS = (
    "apple", "bread", "cloud", "door", "engine", "forest", "garden", "harbor", "island", "jacket",
    "kettle", "lemon", "mirror", "needle", "orange", "paper", "quarry", "river", "silver", "table",
    "umbrella", "village", "window", "yellow",
)  # fmt: skip
COUNT = len(WORDS)
SURE = 30.0  # nats between the key that is read and all others
TEXTS, CHECKED = 8, 64  # of a case that attnviz is asked about, and that the model has to get right
_BROKEN, _LEAST = 0.75, 0.1  # accuracy without a known head, logits that others may move


@dataclass(frozen=True)
class Text:
    """A text, what the model has to answer, and the indices of the words that the answer needs."""

    words: Sequence[str]
    answer: str
    sources: Sequence[int] = ()

    def __str__(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Function:
    """What models compute, and a text of it; masked : with a mask token at the end."""

    program: Program
    write: Callable[[Random], Text]


@dataclass(frozen=True)
class Case:
    """A function in a family; options : of `compile_model`; probes : of `survey`."""

    name: str
    family: str
    make: Callable[[str], Function]
    options: Mapping[str, Any] = field(default_factory=dict)
    probes: str = ""
    backup: bool = False


def with_words(**more: Mapping[str, int | Tensor]) -> dict[str, dict[str, int | Tensor]]:
    """Return the embeddings of `WORDS`, each with its number, and of further tokens."""
    return {word: {"token": n} for n, word in enumerate(WORDS)} | {
        token: dict(spaces) for token, spaces in more.items()
    }


def at_end(family: str, words: Sequence[str], answer: str, *sources: int) -> Text:
    """Return a text, with a mask token at its end where the model fills one in."""
    return Text([*words, *["[MASK]"] * (family == "bert-mask")], answer, sources)


def offsets(*back: int) -> Callable[[str], Function]:
    """Copy the token that is `back` tokens before; of several numbers, head after head."""

    def make(family: str) -> Function:
        names = ["token", *(f"read {n}" for n in range(1, len(back))), "out"]
        heads = [
            KnownHead(
                [Offset(step, SURE)], [Copy(names[n], names[n + 1])], after=n - 1 if n else None,
                role="previous token" if step == 1 else "",
            )
            for n, step in enumerate(back)
        ]  # fmt: skip
        spaces = dict.fromkeys(names[:-1], COUNT)

        def write(random: Random) -> Text:
            words = random.sample(WORDS, random.randint(8, 12))
            place = len(words) - (family != "bert-mask") - sum(back)
            return at_end(family, words, words[place], place)

        return Function(Program(with_words(), spaces, heads, WORDS), write)

    return make


def induction(family: str) -> Function:
    """Continue a token as it went on before: the head of the previous token, and induction."""
    before = KnownHead([Offset(1, SURE)], [Copy("token", "before")], role="previous token")
    # A mask token asks for what follows the token before it, which the first head reads, too.
    asks = "before" if family == "bert-mask" else "token"
    scores = [Match(asks, "before", SURE), Match("one", "start", SURE / 2)]
    if family == "bert-mask":
        scores.append(Offset(0, -2 * SURE))
    copies = KnownHead(scores, [Copy("token", "out")], after=0, role="induction")

    def write(random: Random) -> Text:
        words = random.sample(WORDS, random.randint(6, 10))
        place = random.randrange(len(words) - 1)
        answer, words = words[place + 1], [*words, words[place]]
        asked = (len(words) - 1,) * (family == "bert-mask")
        return at_end(family, words, answer, place, place + 1, *asked)

    spaces = {"token": COUNT, "before": COUNT}
    return Function(Program(with_words(), spaces, [before, copies], WORDS), write)


def duplicate(family: str) -> Function:
    """Say whether the last token occurred before: one head, which else rests on the start."""
    yes, no = torch.tensor([[1.0], [0.0]]), torch.tensor([[-1.0], [1.0]])
    head = KnownHead(
        [Match("token", "token", SURE), Offset(0, -2 * SURE), Match("one", "start", SURE / 2)],
        [Copy("one", "out", yes), Copy("start", "out", no)],
        role="same token",
    )

    def write(random: Random) -> Text:
        words = random.sample(WORDS, random.randint(6, 10))
        if random.random() < 0.5:
            return Text(words, "no")
        place = random.randrange(len(words) - 1)
        return Text([*words, words[place]], "yes", (place,))

    return Function(
        Program(with_words(yes={}, no={}), {"token": COUNT}, [head], ("yes", "no")), write
    )


def first_word(*, is_sink: bool = False) -> Callable[[str], Function]:
    """Repeat the first word; is_sink : there is no token before it."""

    def make(family: str) -> Function:
        heads = []
        if family == "llama":  # positions are relative: a first head marks what follows the start
            heads.append(KnownHead([Offset(1, SURE)], [Copy("start", "second")]))
            score = Match("one", "second", SURE)
        else:
            score = Match("one", "position", SURE, torch.eye(44)[None, int(not is_sink)])
        after = 0 if heads else None
        role = "rests on the first token" if is_sink else ""
        heads.append(KnownHead([score], [Copy("token", "out")], after=after, role=role))

        def write(random: Random) -> Text:
            words = random.sample(WORDS, random.randint(6, 10))
            return at_end(family, words, words[0], 0)

        spaces = {"token": COUNT, "second": 1}
        return Function(Program(with_words(), spaces, heads, WORDS), write)

    return make


COLORS = ("red", "green", "blue", "white")


def lookup(family: str) -> Function:
    """Name the thing of the color that is asked for; each thing has one color."""
    things = {word: {"token": n, "color": n % len(COLORS)} for n, word in enumerate(WORDS)}
    asked = {color: {"asked": n} for n, color in enumerate(COLORS)}
    head = KnownHead(
        [Match("asked", "color", SURE), Match("one", "start", SURE / 2)], [Copy("token", "out")]
    )
    spaces = {"token": COUNT, "color": len(COLORS), "asked": len(COLORS)}

    def write(random: Random) -> Text:
        numbers = [random.randrange(COUNT // 4) * 4 + color for color in range(len(COLORS))]
        random.shuffle(numbers)
        place = random.randrange(len(numbers))
        words = [WORDS[n] for n in numbers]
        return Text([*words, COLORS[numbers[place] % 4]], words[place], (place,))

    return Function(Program(things | asked, spaces, [head], WORDS), write)


def majority(family: str) -> Function:
    """Say of which half of the words there are more: one head that attends evenly."""
    signs = torch.ones(COUNT)
    signs[COUNT // 2 :] = -1
    table = 12 * torch.stack([signs, -signs])
    head = KnownHead([], [Copy("token", "out", table)])
    classes = ("early", "late")

    def write(random: Random) -> Text:
        count = random.choice((7, 9))
        most = random.randint(count // 2 + 1, count - 1)
        halves = [WORDS[: COUNT // 2], WORDS[COUNT // 2 :]]
        larger = random.randrange(2)
        words = random.sample(halves[larger], most) + random.sample(
            halves[1 - larger], count - most
        )
        random.shuffle(words)
        sources = [n for n, word in enumerate(words) if word in halves[larger]]
        more = ["so"] * (family != "bert-class")
        return Text([*words, *more], classes[larger], sources)

    more = {} if family == "bert-class" else {"so": {}, "early": {}, "late": {}}
    return Function(Program(with_words(**more), {"token": COUNT}, [head], classes), write)


def brackets(family: str) -> Function:
    """Say whether as many brackets close as open: a head that attends evenly, and an MLP."""
    table = torch.tensor([[1.0, -1.0]])
    head = KnownHead([], [Copy("bracket", "balance", table)])
    classes = ("open", "closed")
    tokens = {"(": {"bracket": 0}, ")": {"bracket": 1}}
    more = {} if family == "bert-class" else {"so": {}, "open": {}, "closed": {}}

    def write(random: Random) -> Text:
        half = random.randint(3, 4)
        words = ["("] * half + [")"] * half
        changed = random.random() < 0.5
        if changed:
            words = [("(", ")")[random.randrange(2)]] * random.choice((1, 2)) + words[1:-1]
            changed = words.count("(") != words.count(")")
        random.shuffle(words)
        end = ["so"] * (family != "bert-class")
        return Text([*words, *end], classes[int(not changed)])

    program = Program(
        with_words(**tokens, **more), {"token": COUNT, "bracket": 2, "balance": 1}, [head], classes,
        compares_size="balance",
    )  # fmt: skip
    return Function(program, write)


NAMES = ("Mary", "John", "Tom", "James", "Paul", "Anna", "Robert", "David", "Sarah", "Michael")


def names(family: str) -> Function:
    """Name the other one of two people: same token, inhibition and name mover (Wang et al.)."""
    from attnviz.analyses.survey.probes import TEMPLATES

    spelled = " ".join(TEMPLATES).replace(",", " ,").replace("{}", "").split()
    other = {word: {} for word in dict.fromkeys(spelled)}
    tokens = {name: {"token": n, "name": 0} for n, name in enumerate(NAMES)} | other
    start = Match("one", "start", SURE / 2)
    heads = [
        KnownHead(
            [Match("token", "token", 2 * SURE), Offset(0, -3 * SURE), start],
            [Copy("token", "again")], role="same token",
        ),
        KnownHead(
            [Match("one", "again", SURE, torch.ones(1, len(NAMES))), start],
            [Copy("again", "inhibited")], after=0, role="subject inhibition",
        ),
        KnownHead(
            [Match("one", "name", SURE), Match("inhibited", "token", -SURE), start],
            [Copy("token", "out")], after=1, role="name mover",
        ),
    ]  # fmt: skip
    spaces = dict.fromkeys(("token", "again", "inhibited"), len(NAMES)) | {"name": 1}

    def write(random: Random) -> Text:
        subject, answer = pair = random.sample(NAMES, 2)
        first, second = pair if random.random() < 0.5 else pair[::-1]
        template = random.choice(TEMPLATES).removesuffix(" {}").replace(",", " ,")
        words = template.format(first, second, subject).split()
        return Text(words, answer, (words.index(answer),))

    return Function(Program(tokens, spaces, heads, NAMES), write)


CUES, TRIGGERS = ("then", "later"), WORDS[:8]


def skip_trigram(family: str) -> Function:
    """Answer by a word anywhere before and a cue at the end: one head for each cue."""
    tables = [torch.zeros(COUNT, COUNT) for _ in CUES]
    for n in range(len(TRIGGERS)):
        for number, table in enumerate(tables):
            table[8 + 8 * number + (n + number) % 8, n] = 1
    is_trigger = (torch.arange(COUNT) < len(TRIGGERS)).float()
    heads = [
        KnownHead(
            [
                Match(f"cue {n}", "token", SURE, is_trigger[None]),
                Match("one", "start", SURE / 2),
            ],
            [Copy("token", "out", table)],
        )
        for n, table in enumerate(tables)
    ]
    cues = {cue: {f"cue {n}": 0} for n, cue in enumerate(CUES)}
    spaces = {"token": COUNT, "cue 0": 1, "cue 1": 1}

    def write(random: Random) -> Text:
        words = random.sample(WORDS[8:], random.randint(5, 8))
        place, n, cue = random.randrange(len(words)), random.randrange(8), random.randrange(2)
        words.insert(place, TRIGGERS[n])
        answer = WORDS[8 + 8 * cue + (n + cue) % 8]
        return Text([*words, CUES[cue]], answer, (place,))

    return Function(Program(with_words(**cues), spaces, heads, WORDS), write)


def last_thing(family: str) -> Function:
    """Repeat the last one of the first eight words, of several before other words."""
    things = with_words()
    for word in TRIGGERS:
        things[word] |= {"thing": 0}
    head = KnownHead(
        [Match("one", "thing", 2 * SURE), Match("one", "place", SURE)], [Copy("token", "out")]
    )

    def write(random: Random) -> Text:
        few = random.sample(TRIGGERS, 3)
        words = random.sample(WORDS[8:], 6)
        places = sorted(random.sample(range(7), 3))
        for place, word in zip(places, few, strict=True):
            words.insert(place, word)
        return at_end(family, words, few[-1], words.index(few[-1]))

    return Function(Program(things, {"token": COUNT, "thing": 1}, [head], WORDS), write)


def compare(family: str) -> Function:
    """Say whether two words are the same, by a head that reads one and one that compares it."""
    yes, no = torch.tensor([[1.0], [0.0]]), torch.tensor([[-1.0], [1.0]])
    place = torch.eye(44)
    reads = KnownHead([Match("one", "position", SURE, place[1][None])], [Copy("token", "first")])
    here = Match("one", "position", 2 * SURE, place[2][None])
    if family != "bert-class":
        here = Offset(0, 2 * SURE)
    compares = KnownHead(
        [here, Match("first", "token", SURE), Match("one", "start", 2.5 * SURE)],
        [Copy("one", "out", yes), Copy("start", "out", no)], after=0,
    )  # fmt: skip

    def write(random: Random) -> Text:
        first, second, *others = random.sample(WORDS, random.randint(5, 8))
        is_same = random.random() < 0.5
        second = first if is_same else second
        words = [first, second, *others] if family == "bert-class" else [first, *others, second]
        places = (0, 1) if family == "bert-class" else (0,)  # the last word is read in any case
        return Text(words, ("yes", "no")[int(not is_same)], places)

    more = {} if family == "bert-class" else {"yes": {}, "no": {}}
    spaces = {"token": COUNT, "first": COUNT}
    return Function(Program(with_words(**more), spaces, [reads, compares], ("yes", "no")), write)


def backup(family: str) -> Function:
    """Copy the previous token by a head, and by a later one if the first did not."""
    heads = [
        KnownHead([Offset(1, SURE)], [Copy("token", "out")], role="previous token"),
        KnownHead(
            [Offset(1, SURE), Match("out", "token", -2 * SURE), Match("one", "start", SURE / 2)],
            [Copy("token", "out")], after=0,
        ),
    ]  # fmt: skip
    again = offsets(1)(family)
    return Function(Program(with_words(), {"token": COUNT}, heads, WORDS), again.write)


CASES = (
    Case("previous token", "gpt2", offsets(1), {"seed": 1, "heads": 6}, probes="previous"),
    Case("previous token", "llama", offsets(1), {"seed": 2, "heads": 24}, probes="previous"),
    Case("previous token", "bert-mask", offsets(1), {"seed": 3}, probes="previous"),
    Case("token before that", "gpt2", offsets(2), {"seed": 4}),
    Case("third token before", "llama", offsets(3), {"seed": 5, "heads": 8, "layers": 2}),
    Case("induction", "gpt2", induction, {"seed": 6}, probes="previous,induction"),
    Case("induction", "gpt2", induction, {"seed": 7, "layers": 4, "heads": 6}),
    Case("induction", "llama", induction, {"seed": 8, "heads": 24}, probes="previous,induction"),
    Case("induction", "bert-mask", induction, {"seed": 9}),
    Case("duplicate token", "gpt2", duplicate, {"seed": 10}, probes="duplicate"),
    Case("duplicate token", "gpt2", duplicate, {"seed": 11, "heads": 8, "layers": 2}),
    Case("first word", "gpt2", first_word(), {"seed": 12}),
    Case("first word", "llama", first_word(), {"seed": 13, "heads": 8}),
    Case("first word", "bert-mask", first_word(), {"seed": 14}),
    Case("lookup", "gpt2", lookup, {"seed": 15}),
    Case("lookup", "llama", lookup, {"seed": 16, "heads": 8, "groups": 2}),
    Case("majority", "gpt2", majority, {"seed": 17}),
    Case("majority", "bert-class", majority, {"seed": 18}),
    Case("brackets", "gpt2", brackets, {"seed": 19}),
    Case("brackets", "bert-class", brackets, {"seed": 20}),
    Case("two names", "gpt2", names, {"seed": 21}, probes="ioi,inhibition"),
    Case("two names", "gpt2", names, {"seed": 22, "heads": 22, "size": 60},
         probes="ioi,inhibition"),
    Case("skip trigram", "gpt2", skip_trigram, {"seed": 23}),
    Case("skip trigram", "llama", skip_trigram, {"seed": 24, "heads": 8}),
    Case("last of a kind", "gpt2", last_thing, {"seed": 25}),
    Case("last of a kind", "bert-mask", last_thing, {"seed": 26}),
    Case("comparison", "gpt2", compare, {"seed": 27}),
    Case("comparison", "bert-class", compare, {"seed": 28}),
    Case("chain of two", "gpt2", offsets(2, 1), {"seed": 29}),
    Case("chain of three", "llama", offsets(1, 2, 1), {"seed": 30, "heads": 8, "layers": 4}),
    Case("chain of two", "bert-mask", offsets(1, 2), {"seed": 31}),
    Case("first word, no start", "gpt2", first_word(is_sink=True), {"seed": 32, "begins": False}),
    Case("backup", "gpt2", backup, {"seed": 33}, backup=True),
    Case("backup", "bert-mask", backup, {"seed": 34}, backup=True),
)  # fmt: skip


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


def name_heads(compiled: Compiled, texts: Sequence[Text]) -> dict[str, list[float]]:
    """Return a number of each head by method: (L × H), by layer."""
    model, spelled = compiled.model, [str(text) for text in texts]
    lost = {
        "ablate": attnviz.ablate(spelled, model=model),
        "ablate, zeros": attnviz.ablate(spelled, how="zero", model=model),
        "ablate, another text": attnviz.ablate(spelled, how="resample", model=model),
        "ablate, direct effect": attnviz.ablate(spelled, effect="direct", model=model),
    }
    numbers = {name: result.mean.abs() for name, result in lost.items()}
    numbers["ablate, estimate of the gradient"] = lost["ablate"].estimate.mean(0).abs()
    sizes = torch.stack(
        [attnviz.explain(text, model=model, methods=()).decomposition.table for text in spelled]
    )
    numbers["explain, direct parts of heads"] = sizes.sum(-1).abs().mean(0).flatten()
    ranked, read = [], []
    for text, words in zip(spelled, texts, strict=True):
        result = attnviz.attend(text, model=model)
        table = torch.zeros(compiled.size)
        for one in attnviz.rank_heads(result):
            table[one.layer, one.head] = one.score
        ranked.append(table)
        if words.sources:
            weights = torch.stack([one.weights[0] for one in result.stack().records])
            tokens = [*result.stack().records[0].key_axis.labels]
            start = int(tokens[0] != words.words[0])
            row = len(tokens) - 1 if model.tokenizer.cls_token is None else 0
            row = tokens.index("[MASK]") if "[MASK]" in tokens else row
            read.append(weights[:, :, row, [start + n for n in words.sources]].amax(-1))
    numbers["rank_heads"] = torch.stack(ranked).mean(0).flatten()
    if read:
        numbers["weight on the source"] = torch.stack(read).mean(0).flatten()
    return {name: of.double().tolist() for name, of in numbers.items()}


def name_words(compiled: Compiled, texts: Sequence[Text]) -> list[dict[str, Any]]:
    """Return for each text with known sources what `explain` gives to each word, by method."""
    found = []
    for text in [one for one in texts if one.sources]:
        why = attnviz.explain(str(text), model=compiled.model, methods=list(METHODS))
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
    texts = write(TEXTS)
    judged: dict[str, Any] = {
        "case": case.name, "family": case.family, "seed": case.options["seed"],
        "size": compiled.size, "known": compiled.known, "decoy": compiled.decoy,
        "backup": case.backup, "truth": truth, "heads": name_heads(compiled, texts),
        "words": name_words(compiled, texts),
    }  # fmt: skip
    if case.probes:
        judged["roles"] = name_roles(case, compiled)
    if case.backup:
        pairs = [*combinations(compiled.every_head, 2)]
        spelled = [str(text) for text in texts]
        lost = attnviz.ablate(spelled, heads=pairs, model=compiled.model)
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
        f"{len(judged)} circuits of {len({one['case'] for one in judged})} functions; intervals: "
        "95 %, from a bootstrap over circuits.",
        style="dim",
    )
