"""The functions that the compiled circuits compute, and the models that compute them.

Each function is a program of known heads for `compiled.py`, and writes random texts with the right
answer and the words that the answer needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from attnviz.analyses.survey.probes import TEMPLATES
from faithfulness.compiled import PLACES, Copy, KnownHead, Match, Offset, Program

WORDS = (
    "apple", "bread", "cloud", "door", "engine", "forest", "garden", "harbor", "island", "jacket",
    "kettle", "lemon", "mirror", "needle", "orange", "paper", "quarry", "river", "silver", "table",
    "umbrella", "village", "window", "yellow",
)  # fmt: skip
COUNT = len(WORDS)
SURE = 30.0  # nats between the key that is read and all others


@dataclass(frozen=True)
class Text:
    """A text, what the model has to answer, and the indices of the words that the answer needs.

    No sources are given where all words, or none, are needed.
    """

    words: Sequence[str]
    answer: str
    sources: Sequence[int] = ()

    def __str__(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Function:
    """What models compute, and what writes a text of it."""

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


def with_words(**more: Mapping[str, int]) -> dict[str, dict[str, int]]:
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
            score = Match("one", "position", SURE, torch.eye(PLACES)[None, int(not is_sink)])
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
        needed = [n for n, word in enumerate(words) if word in pair]
        return Text(words, answer, needed)

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
    place = torch.eye(PLACES)
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
        if not is_same:  # no single word makes them differ
            return Text(words, "no")
        return Text(words, "yes", (0, 1) if family == "bert-class" else (0,))

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
    Case("previous token", "llama", offsets(1), {"seed": 2, "heads": 8}, probes="previous"),
    Case("previous token", "bert-mask", offsets(1), {"seed": 3}, probes="previous"),
    Case("token before that", "gpt2", offsets(2), {"seed": 4}),
    Case("third token before", "llama", offsets(3), {"seed": 5, "heads": 8, "layers": 2}),
    Case("induction", "gpt2", induction, {"seed": 6}, probes="previous,induction"),
    Case("induction", "gpt2", induction, {"seed": 7, "layers": 4, "heads": 6}),
    Case("induction", "llama", induction, {"seed": 8, "heads": 22, "layers": 2},
         probes="previous,induction"),
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
