"""Choose pairs of WordNet's example sentences that use one word, in one sense or in two.

Reads the files of WordNet 3.0 (Debian: apt-get install wordnet-base) and writes
`gallery/data/wordnet_pairs.json` with WordNet's license beside it. `scripts/bench.py senses`
measures a model on the pairs.

An example is taken if it names no author, has at least four words, and exactly one of them is a
form of a noun or verb of its synset. Forms are those of WordNet's own morphology ("morphy"): its
lists of exceptions, and for all other words its rules of detachment. The word follows a blank, so
it is never the first. Both sentences of a pair have the same written form of the word, so that only
the other words can tell the senses apart. Two senses are different if they are in different
lexicographer files (noun.artifact, verb.motion, …), as in Word-in-Context (Pilehvar and
Camacho-Collados 2019, arXiv:1808.09121): WordNet divides many senses finely. Each word has as many
pairs of one kind as of the other. A sentence is in one pair, and of the other words of any two
sentences less than half are the same.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated

import typer

DATA = Path(__file__).parents[1] / "gallery" / "data"
PAIRS, LICENSE = DATA / "wordnet_pairs.json", DATA / "wordnet_license.txt"
SOURCE = "Example sentences of WordNet 3.0 (offsets: Debian wordnet-base 1:3.0-37)"
MOST_SIMILAR = 0.5  # Jaccard index of the other words of two sentences
_FEWEST = 4  # words of a sentence
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_EXAMPLE = re.compile(r';\s*"([^"]+)"(?!\s*-)')  # not followed by the name of an author
_ENDINGS = {  # and what replaces them, after the colon
    "noun": "s: ses:s xes:x zes:z ches:ch shes:sh men:man ies:y",
    "verb": "s: ies:y es:e es: ed:e ed: ing:e ing:",
}


@dataclass(frozen=True)
class Example:
    """A sentence, the span of the word in it, and its sense.

    synset : offset and part of speech. field : the number of the lexicographer file.
    """

    text: str
    start: int
    end: int
    synset: str
    field: str

    @property
    def form(self) -> str:
        """The word as it is written."""
        return self.text[self.start : self.end]

    @property
    def others(self) -> frozenset[str]:
        """The other words."""
        return other_words(self.text, self.start, self.end)


Pair = tuple[Example, Example]


def other_words(text: str, start: int, end: int) -> frozenset[str]:
    """Return the words of a sentence beside the one at a span, in lower case.

    >>> sorted(other_words("The bank's river bank", 17, 21))
    ["bank's", 'river', 'the']
    """
    found = _WORD.finditer(text)
    return frozenset(match.group().lower() for match in found if not start <= match.start() < end)


def similarity(first: frozenset[str], second: frozenset[str]) -> float:
    """Return the Jaccard index of two sets of words."""
    return len(first & second) / max(1, len(first | second))


def main(
    folder: Annotated[Path, typer.Argument(help="Where WordNet's files are.")] = Path(
        "/usr/share/wordnet"
    ),
    pairs: Annotated[int, typer.Option(help="The most pairs to choose.")] = 1000,
    per_word: Annotated[int, typer.Option(help="The most pairs of a word and a kind.")] = 3,
    seed: int = 0,
) -> None:
    """Choose the pairs and write them, with the license."""
    if not (folder / "data.noun").is_file():
        hint = "Install Debian's wordnet-base, or name another folder."
        typer.echo(f"{folder} has no data.noun. {hint}", err=True)
        raise typer.Exit(2)
    chosen = choose(read_examples(folder), pairs // 2, per_word, random.Random(seed))
    DATA.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(pair, ensure_ascii=False) for pair in chosen)
    head = json.dumps({"source": SOURCE, "license": LICENSE.name})[1:-1]
    PAIRS.write_text(f'{{{head}, "pairs": [\n{lines}\n]}}\n', encoding="utf-8")
    LICENSE.write_text(read_license(folder), encoding="utf-8")
    words = {pair["lemma"] for pair in chosen}
    typer.echo(f"{len(chosen):,} pairs of {len(words)} words: {PAIRS}", err=True)


def read_license(folder: Path) -> str:
    """Return the license at the head of each file, without its line numbers."""
    lines = (folder / "data.noun").read_text("latin-1").splitlines()
    head = [re.sub(r"^ +\d+ ?", "", line).rstrip() for line in lines if line.startswith("  ")]
    return "\n".join(head).strip() + "\n"


def read_examples(folder: Path) -> dict[tuple[str, str], list[Example]]:
    """Return the examples by word and part of speech, each with exactly one form of the word."""
    examples = defaultdict(list)
    for part, endings in _ENDINGS.items():
        morphology = Morphology.read(folder / f"{part}.exc", endings)
        for line in (folder / f"data.{part}").read_text("latin-1").splitlines():
            if line.startswith("  "):  # the license
                continue
            numbers, _, gloss = line.partition(" | ")
            offset, field, _, count, *rest = numbers.split()
            lemmas = {rest[2 * n] for n in range(int(count, 16))}
            for quoted in _EXAMPLE.findall(gloss) if gloss.count('"') % 2 == 0 else ():
                text = " ".join(quoted.split())
                for lemma, span in morphology.find(lemmas, text):
                    found = Example(text, *span, f"{offset}-{part[0]}", field)
                    examples[lemma, part].append(found)
    return dict(sorted(examples.items()))


@dataclass(frozen=True)
class Morphology:
    """Which words a written form may be of, for one part of speech.

    exceptions : the words of irregular forms. rules : an ending and what replaces it.
    """

    exceptions: dict[str, set[str]]
    rules: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, path: Path, endings: str) -> Morphology:
        """Return the exceptions of a file, beside the rules."""
        exceptions = defaultdict(set)
        for line in path.read_text("latin-1").splitlines():
            form, *words = line.split()
            exceptions[form] |= set(words)
        pairs = (rule.split(":") for rule in endings.split())
        return cls(exceptions, tuple((ending, base) for ending, base in pairs))

    def words(self, form: str) -> set[str]:
        """Return the words that a form may be of, itself included."""
        if form in self.exceptions:
            return {form} | self.exceptions[form]
        ends = (rule for rule in self.rules if form.endswith(rule[0]))
        return {form} | {form.removesuffix(ending) + base for ending, base in ends}

    def find(self, lemmas: Iterable[str], text: str) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield each of some words of which a sentence has exactly one form, with its span."""
        spans = [match.span() for match in _WORD.finditer(text)]
        spans = [(a, b - 2 * text[a:b].endswith(("'s", "’s"))) for a, b in spans]
        words = [self.words(text[a:b].lower()) for a, b in spans]
        for lemma in filter(str.isalpha, lemmas) if len(spans) >= _FEWEST else ():
            found = [span for span, some in zip(spans, words, strict=True) if lemma in some]
            if len(found) == 1 and text[: found[0][0]].endswith(" "):
                yield lemma, found[0]


def choose(
    examples: dict[tuple[str, str], list[Example]], most: int, per_word: int, rng: random.Random
) -> list[dict[str, object]]:
    """Return at most `most` pairs of each kind, and as many of one as of the other for each word.

    The words are split at random: half are to choose layers and heads, half are held out.
    """
    chosen: list[tuple[tuple[str, str], bool, Pair]] = []
    used: list[frozenset[str]] = []
    candidates = {}
    for key, listed in examples.items():
        pairs = [pair for pair in combinations(listed, 2) if _fit(*pair)]
        kinds = ([p for p in pairs if _same(p)], [p for p in pairs if not _same(p)])
        if all(kinds):
            candidates[key] = kinds
    keys = list(candidates)
    for _ in range(per_word):
        rng.shuffle(keys)
        for key in keys:
            if len(chosen) >= 2 * most:
                break
            if both := _two(*candidates[key], used, rng):
                chosen += [(key, _same(pair), pair) for pair in both]
                used += [example.others for pair in both for example in pair]
    words = sorted({lemma for (lemma, _), _, _ in chosen})
    to_choose = set(rng.sample(words, len(words) // 2))
    return [
        {
            "lemma": lemma,
            "part_of_speech": part,
            "part": "choosing" if lemma in to_choose else "held-out",
            "same": same,
            "sentences": [_stored(example) for example in pair],
        }
        for (lemma, part), same, pair in sorted(chosen, key=lambda row: (row[0], not row[1]))
    ]


def _stored(example: Example) -> dict[str, object]:
    return {name: value for name, value in asdict(example).items() if name != "field"}


def _same(pair: Pair) -> bool:
    return pair[0].synset == pair[1].synset


def _fit(a: Example, b: Example) -> bool:
    """Whether two examples make a pair."""
    is_clear = a.synset == b.synset or a.field != b.field
    return is_clear and a.form == b.form and similarity(a.others, b.others) < MOST_SIMILAR


def _two(
    same: list[Pair], different: list[Pair], used: list[frozenset[str]], rng: random.Random
) -> tuple[Pair, Pair] | None:
    """Return a pair of each kind whose four sentences are new and differ, if there is one."""

    def new(pairs: list[Pair], used: list[frozenset[str]]) -> Iterator[Pair]:
        for pair in rng.sample(pairs, len(pairs)):
            others = [example.others for example in pair]
            if all(similarity(a, b) < MOST_SIMILAR for a in others for b in used):
                yield pair

    for first in new(same, used):
        with_first = [*used, *(example.others for example in first)]
        for second in new(different, with_first):
            return first, second
    return None


if __name__ == "__main__":
    typer.run(main)
