"""Read sentences: patterns with named slots, and what each slot should say.

A pattern is a sentence with slots: <lost> is a number, <word:w> what stands in quotation marks,
<head:h> a head such as 3.11, <list:l> a list of numbers, <formula:f> a formula,
<verb:falls|rises> one of some words, and <rest:*> anything. What
stands in [[double brackets]] may be missing; its slots are then None. A function of the facts of a
result returns what every slot should say. A slot of which it says nothing fails, as does a
sentence that no pattern has.
"""

import math
import re
from dataclasses import dataclass

NUMBER = (
    r"[−+-]?(?:\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+)\s?%?|nan\s?%?|–|[−-]?∞"
    r"|(?:\d·)?10[⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+"
)
TYPES = {
    "n": NUMBER,
    "w": r"[^“”]+?",
    "h": r"(?:[a-z]+ )?\d+\.\d+",
    "i": r"\d+",
    "words": r"[^\s“”]+(?: [^\s“”]+){0,3}",
    "l": rf"(?:{NUMBER})(?: (?:{NUMBER})){{3,}}",
    "one": r"[^\s“”█]+",
    "f": r"[^$]+",
    "*": r".+?",
}
SLOT = re.compile(r"<(\w+)(?::([^<>]+))?>|\[\[|\]\]")
DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−", "0123456789--")
SLACK = 1e-5  # between machines, as in the goldens


@dataclass(frozen=True)
class OneOf:
    """What a slot may say: one of several numbers or words, as of two heads that tie."""

    choices: object


@dataclass(frozen=True)
class Near:
    """A number that is drawn at random or measured by machine: right up to a slack."""

    value: float
    slack: float


@dataclass(frozen=True)
class Noise:
    """A rounding error, which differs by machine: ten times as much or as little is as good."""

    value: float


@dataclass(frozen=True)
class Pattern:
    """A sentence with slots, and the function that says what they should hold."""

    template: str
    regex: re.Pattern
    expect: object
    pieces: tuple[str, ...]  # what any such sentence has

    def match(self, text, start, end):
        if all(text.find(piece, start, end) >= 0 for piece in self.pieces):
            return self.regex.fullmatch(text, start, end)
        return None


@dataclass(frozen=True)
class Read:
    """A recognized sentence: its pattern, where it ends, and what is wrong."""

    pattern: Pattern
    end: int
    wrong: tuple[str, ...]


class Patterns(list):
    """The patterns of one kind of results."""

    def sentence(self, *templates):
        """Register sentences that name the same slots; the function takes the facts, and slots."""

        def register(expect):
            self.extend(Pattern(one, compiled(one), expect, pieces_of(one)) for one in templates)
            return expect

        return register

    def words(self, *templates):
        """Register sentences without slots, which explain what is drawn and name no number."""
        self.sentence(*templates)(lambda facts, said: {})


def pieces_of(template):
    """Return the words of a pattern that may not be missing."""
    pieces, depth, start = [], 0, 0
    for slot in SLOT.finditer(template):
        if not depth:
            pieces.append(template[start : slot.start()])
        depth += {"[[": 1, "]]": -1}.get(slot[0], 0)
        start = slot.end()
    return tuple(piece for piece in [*pieces, template[start:]] if piece)


def compiled(template):
    parts, start, seen = [], 0, set()
    for slot in SLOT.finditer(template):
        parts.append(re.escape(template[start : slot.start()]))
        start = slot.end()
        name, kind = slot.groups()
        if name is None:
            parts.append("(?:" if slot[0] == "[[" else ")?")
        elif name in seen:
            parts.append(f"(?P={name})")
        else:
            seen.add(name)
            known = TYPES.get(kind or "n") or "|".join(map(re.escape, kind.split("|")))
            parts.append(f"(?P<{name}>{known})")
    parts.append(re.escape(template[start:]))
    return re.compile("".join(parts))


def read_one(text, facts, patterns, start=0):
    """Return the best reading of a sentence that starts here; None if no pattern has it.

    It ends with a period, or with the text: the longest without mistakes counts.
    """
    ends = [match.end() for match in re.finditer(r"[.:](?=\s)", text) if match.end() > start]
    found = []
    for end in sorted({*ends, len(text)}):
        for pattern in patterns:
            if match := pattern.match(text, start, end):
                wrong = tuple(mistakes(pattern, facts, match.groupdict()))
                found.append(Read(pattern, end, wrong))
    right = [one for one in found if not one.wrong]
    if right:
        return max(right, key=lambda one: one.end)
    return max(found, key=lambda one: len(one.pattern.template), default=None)


def mistakes(pattern, facts, said):
    """Return a description of each slot that does not say what it should.

    Where several readings are possible, as of two heads that tie, the best counts.
    """
    try:
        expected = pattern.expect(facts, said)
    except (AssertionError, AttributeError, LookupError, ValueError) as broken:
        return [f"what “{pattern.template}” supposes is not so: {broken}"]
    choices = expected if isinstance(expected, list) else [expected]
    found = [[*differences(pattern, said, one)] for one in choices]
    return min(found, key=len, default=[f"nothing like “{pattern.template}” is so"])


def differences(pattern, said, expected):
    for name in said.keys() | expected.keys():
        if name not in expected:
            yield f"nothing checks <{name}> of “{pattern.template}”"
        elif not agrees(said.get(name), expected[name]):
            yield f"<{name}> says {said.get(name)!r}, not {expected[name]!r}"


def read_all(text, facts, patterns):
    """Return what is wrong in a text of several sentences, one after the other."""
    wrong, place = [], 0
    while place < len(text):
        one = read_one(text, facts, patterns, place)
        if one is None:
            return [*wrong, f"no pattern has “{text[place : place + 160]}”"]
        wrong += [f"“{text[place : one.end]}”: {what}" for what in one.wrong]
        place = one.end + len(text[one.end :]) - len(text[one.end :].lstrip())
    return wrong


MOST_LINES = 10  # of one paragraph


def read_lines(lines, facts, patterns, is_label):
    """Return what is wrong in lines of paragraphs and labels, such as those of a figure.

    A paragraph is the most lines of which every sentence is read, and right. is_label : whether a
    line is only a label, if it is in no paragraph.
    """
    wrong, start = [], 0
    while start < len(lines):
        for end in range(min(len(lines), start + MOST_LINES), start, -1):
            found = read_all(" ".join(" ".join(lines[start:end]).split()), facts, patterns)
            if not found:
                break
        else:
            end = start + 1
            if not is_label(lines[start], facts):
                wrong += found
        start = end
    return wrong


def agrees(said, expected):
    """Whether a slot says what it should: a number as precisely as it is written."""
    if isinstance(expected, OneOf):
        return any(agrees(said, choice) for choice in expected.choices)
    if said is None or expected is None:
        return said is expected
    if isinstance(expected, str):
        return said == expected
    if not re.fullmatch(NUMBER, said):
        return False
    if isinstance(expected, Near):
        return abs(read_number(said)[0] - expected.value) <= expected.slack
    if isinstance(expected, Noise):
        value, _ = read_number(said)
        return 0.1 <= (value / expected.value if expected.value else 1.0) <= 10
    return agrees_number(said, float(expected))


def agrees_number(said, expected):
    if expected != expected or said in ("–", "nan"):
        return expected != expected and said in ("–", "nan")
    value, unit = read_number(said)
    if value in (math.inf, -math.inf):
        return value == expected
    return abs(value - expected) <= (0.5 + 1e-3) * unit + SLACK * abs(expected)


def read_number(said):
    """Return a number, and the unit of its last digit."""
    text = said.translate(DIGITS).replace(",", "").replace("\N{NO-BREAK SPACE}", "").strip()
    if text.endswith("∞"):
        return float(text.replace("∞", "inf")), 0.0
    scale = 0.01 if text.endswith("%") else 1.0
    text = text.rstrip("% ")
    if re.search("10⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]", said):
        text = text.replace("·10", "e") if "·" in text else f"1e{text[2:]}"
    mantissa, _, exponent = text.partition("e")
    digits = len(mantissa.partition(".")[2])
    return scale * float(text), scale * 10.0 ** (int(exponent or 0) - digits)


def clipped(text, said, longest=None):
    """Return what a sentence should say of a text that it may shorten with an ellipsis."""
    text = " ".join(text.split())
    if said is not None and said.endswith("…") and text.startswith(said[:-1]):
        return said if longest is None or len(said) == longest else text
    return text
