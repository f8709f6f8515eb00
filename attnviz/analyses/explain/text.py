"""Draw a text as it is read, each word on the color of a number: what it gets, or what it adds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle

from attnviz.analyses.explain.result import ExplainResult
from attnviz.analyses.maps.result import AttentionMap
from attnviz.analyses.shift.result import ShiftResult
from attnviz.errors import InputError, refuse_given
from attnviz.figures import claims, figure, style
from attnviz.figures.cells import Bar, WeightScale, draw_scales, frame, signed_norm
from attnviz.figures.layout import CaptionLength, Page, face, new_page
from attnviz.figures.style import CAPTION_GAP, GAP, MM, SMALL_SIZE, WIDE, theme
from attnviz.results import Provenance
from attnviz.results.axis import is_word, locate
from attnviz.results.text import literal, signed, source_and_notes

_SIZE, _LINE = 8.0, 14.5 / 72  # points; inches of a line
_PAD, _APART = 0.3 * MM, 1.0 * MM  # around a word on its color, and beside one in a box
_READABLE = 4.5  # the least contrast of a word and its color (WCAG 2)
_LATER = " come later: they"
_Shown: TypeAlias = tuple[str, str, "list[_Word]", list[Bar]]  # title, sentences, words, scales


@dataclass
class _Word:
    """A word of the text, and how it is drawn."""

    text: str
    fill: Any = None  # the color behind it
    is_gray: bool = False  # a special or unknown token, or a word that was not read
    is_asked: bool = False  # the word in question
    is_claimed: bool = False  # the title names it
    is_written: bool = False  # the model wrote it
    blank: str = " "  # what is before it in the text
    line: int = 0
    left: float = 0.0  # inches from the left edge of its line
    wide: float = 0.0

    @property
    def is_boxed(self) -> bool:
        return self.is_asked or self.is_claimed

    @property
    def weight(self) -> str:
        return str(face("bold" if self.is_boxed else "normal", self.text)["fontweight"])


@figure
def text(
    result: AttentionMap | ShiftResult | ExplainResult,
    *,
    query: int | str | None = None,
    measured: bool | None = None,
    width: float = style.FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw the text itself in its lines, with each word on the color of its number.

    Of a map, the number is the weight that the word in the dashed box gives to each word; of a
    shift or a prediction, what each word adds. What the title names has a red frame. Special and
    unknown tokens are gray, and so are words that come later. What the model wrote is italic.

    Parameters
    ----------
    result : AttentionMap, ShiftResult or ExplainResult
        From `attention_map`, `shift` or `explain`.
    query : int or str, optional
        The word whose weights are shown, or its row, counted from 0; "the#2" is the second "the".
        By default the word that the title names, or that of the largest weight.
    measured : bool, optional
        Whether to show the effects of changing each word, or its contributions. By default the
        effects on a prediction, if they were measured, and the contributions to a shift.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("The cat saw the dog, and the dog saw the cat.")
    >>> drawn = attnviz.attention_map(result, layer=5, head=3)
    >>> figure = attnviz.plot.text(drawn, query="saw#2", width=89)
    """
    labels = result.columns if isinstance(result, AttentionMap) else result.words
    source = replace(result.provenance, text=None, pair=None, target=None)  # the figure has them
    first, *notes = source_and_notes(source, result.notes)
    parts = [first.removeprefix(", "), *notes]
    with new_page(width, caption, [*labels, *parts, "→−"], figure) as page:
        if isinstance(result, AttentionMap):
            refuse_given("a map has no effects. Leave it out.", measured=measured)
            title, says, words, bars = _of_map(result, query)
        else:
            refuse_given("it is a word of a map. Leave it out.", query=query)
            title, says, words, bars = of_words(result, measured)
            parts.insert(1, f"compared with {result.reference}")
        small = 0.5 * (page.width <= WIDE)
        points = style.TITLE_SIZE - 2 * small
        top = page.subtitle(page.left, style.MARGIN, title, page.room, points=points) + 0.02
        top = page.paragraph(page.left, top, says, page.room, points=SMALL_SIZE - small) + GAP
        place = page.left, page.right
        end = draw_scales(page, bars, place, draw_words(page, words, top) + GAP)
        return page.finish(end + CAPTION_GAP, parts, result.checked_agreement)


# --- what is shown


def _of_map(drawn: AttentionMap, query: int | str | None) -> _Shown:
    """Return what one word looks at."""
    if any(side.patches or side.seconds or side.cell > 1 for side in drawn.sides):
        raise InputError("This is no map of single words. Draw it with attnviz.plot.heatmap.")
    row, finding = _find_row(drawn, query)
    weights = drawn.weights.float()
    others = torch.arange(len(weights), device="cpu")[:, None] != row
    scale = WeightScale.of(drawn, weights.masked_fill(others, 0.0), linear=True)
    gray, neutral = scale.uninformative[row], scale.neutral
    if neutral is not None:  # as that of words, unless gray words have larger weights
        top = max(one.vmax or 0.0 for one in (scale.norm, neutral))
        scale = replace(scale, neutral=Normalize(0.0, top) if gray.any() else None)
    fills = replace(scale, uninformative=gray, masked=None).rgba(weights[row]) / 255
    later = gray & False if drawn.masked is None else drawn.masked[row]
    claimed = gray & False if finding.family is None else finding.family[row]
    unread = drawn.sides[1].unknown or ("",) * len(fills)
    words = [
        _Word(
            label.rpartition(" ")[0] if unread[n] else claims.spelled(label),
            None if later[n] else fills[n], bool(gray[n] or later[n]), drawn.is_text and n == row,
            bool(claimed[n]) or n in (finding.cell or ())[1:],
        )
        for n, label in enumerate(drawn.columns)
    ]  # fmt: skip
    _find_blanks(words, drawn.provenance)
    name = claims.quoted(claims.spelled(drawn.rows[row]))
    says = f"{drawn.where}. " * bool(finding.sentence)
    says += f"The color of a word is the weight that {name} gives it."
    says += f" Gray words{_LATER * (not later[:row].any())} are not read." * bool(later.any())
    return finding.sentence or drawn.where, says, words, scale.ends


def _find_row(drawn: AttentionMap, query: int | str | None) -> tuple[int, claims.Finding]:
    """Return the row of a word, by default of the claim, and what the title says."""
    linked, sizes = claims.links_between(drawn), drawn.weights.float().nan_to_num().abs()
    if query is None:
        finding = claims.of_map(drawn) or claims.Finding("")
        if finding.cell is not None:
            return finding.cell[0], finding
        if finding.family is None:
            linked[: drawn.generated_from or 0] = False  # the title is about what was generated
        else:
            linked = finding.family
        largest = sizes.masked_fill(~linked, 0.0).amax(1)
        return int((largest if largest.any() else drawn.is_word[0].int()).argmax()), finding
    if isinstance(query, str):
        query = locate(query, claims.groups(drawn.rows, drawn.is_word[0]))
    elif not 0 <= query < len(sizes):
        raise InputError(f"The query {query} does not exist. The rows are 0 to {len(sizes) - 1}.")
    readable = sizes[0] >= 0 if drawn.masked is None else ~drawn.masked[query]
    several = linked[query], drawn.is_word[1] & readable, readable, ~readable
    keys = next(keys for keys in several if keys.any())
    cell = query, int(sizes[query].masked_fill(~keys, -1.0).argmax())
    return query, claims.of_map(drawn, cell) or claims.Finding("")


def of_words(result: ShiftResult | ExplainResult, measured: bool | None = None) -> _Shown:
    """Return what each word adds, or what changing it takes."""
    if isinstance(result, ShiftResult):
        numbers = result.shares(result.tested if measured else result.parts)
        kind = f"what {result.changing} it takes" if measured else "what it adds"
        says, unread = " ".join(result.details), {*result.unread, result.sink}
        low, high, unit, asked = "against the shift", "along it", "", result.at
        if result.regions:
            high, low = (f"toward {end}" for end in result.ends)
    else:
        measured = bool(result.causal) if measured is None else measured
        numbers = (result.consensus if measured else result.credit).tolist()
        kind = "its measured effect" if measured else "its contribution"
        says, unread = result.finding, {*result.unmeasured}
        low, high, unit, asked = "lowers it", f"raises {result.question}", f" {result.unit}", -1
    known = [n for n in result.sources if numbers[n] == numbers[n]]
    if result.sources and not known:
        raise InputError(f"It has no numbers for measured={bool(measured)}. Leave measured out.")
    norm = signed_norm(numbers[n] for n in known)
    bar = ScalarMappable(norm, theme().values)
    words = [
        _Word(
            word, bar.cmap(norm(numbers[n])) if n in known else None, n in unread, n == asked,
            n == result.strongest,
        )
        for n, word in enumerate(result.words)
    ]  # fmt: skip
    _find_blanks(words, result.provenance)
    if isinstance(result, ExplainResult):
        target = _Word(f"{result.target} {result.share}", is_asked=True, is_written=True)
        for n in result.unmeasured if result.kind == "masked token" else ():
            words[n] = replace(target, blank=words[n].blank)
        if result.kind != "masked token":
            words.append(replace(target, text=f"→ {target.text}"))
    rows = [*zip(words, (*result.special, False), strict=False)]
    stacks = () if isinstance(result, ShiftResult) else result.stacks
    for side in sorted({*stacks}, reverse=True):  # of an encoder–decoder
        first = stacks.index(side)
        next((word for word, special in rows[first:] if not special), words[-1]).blank = " "
        rows.insert(first, (_Word(f"{side}:", is_gray=True, blank="\n"), False))
    words = [word for word, special in rows if word.is_asked or not special]
    end = signed(float(norm.vmax or 0.0))
    bars = [(f"{low}, \N{MINUS SIGN}{end}", bar, f"{end}{unit}, {high}")] if known else []
    later = f" Gray words{_LATER} are not read." * bool(getattr(result, "unread", ()))
    return result.headline, f"{says} The color of a word is {kind}.{later}", words, bars


def _find_blanks(words: Iterable[_Word], source: Provenance) -> None:
    """Find the blanks and line breaks before each word in the text, and what the model wrote."""
    prompt, wrote = source.text or "", source.generated
    texts = f"{prompt} {wrote}" if wrote else prompt, source.pair, source.target
    whole, end, is_lost = "\n".join(filter(None, texts)), 0, True
    for word in words:
        piece = word.text[1:] if word.text[:1] == "·" else word.text
        found = re.compile(re.escape(piece), re.I).search(whole, end)
        between = whole[end : found.start()] if found else ""
        if found and (is_lost or not between.strip()):
            word.blank = between[len(between.rstrip()) :] or " " * is_lost
            word.is_written = bool(wrote) and found.start() >= len(prompt)
            end, is_lost = found.end(), False
        else:  # a special token, or a piece in another spelling
            word.blank, is_lost = " " * (piece == word.text), True


# --- how it is drawn


def _set(page: Page, words: Sequence[_Word]) -> None:
    """Set words in lines, as they are read; scripts from right to left begin at the right."""
    room, blank, advance = page.room, page.ruler.advance(" ", _SIZE), page.ruler.advance
    for word in words:
        word.text = page.ruler.squeeze(literal(word.text, 60), room - 2 * _APART, _SIZE)
        word.wide = advance(word.text, _SIZE, word.weight)
    pairs = [*itertools.pairwise([_Word(""), *words])]
    may_break = [b.blank or (is_word(a.text) and is_word(b.text)) for a, b in pairs]
    line, x, indent = 0, 0.0, 0.0
    for n, (before, word) in enumerate(pairs):
        if n and "\n" in word.blank:
            line += min(word.blank.count("\n"), 2)
            tail = word.blank.rpartition("\n")[2].expandtabs(4)
            x = indent = min(1.5 * blank * len(tail), room / 3)
        elif x > indent:
            x += blank * bool(word.blank) + _APART * (before.is_boxed or word.is_boxed)
        after = next((m for m in range(n + 1, len(words)) if may_break[m]), len(words))
        unit = sum(one.wide for one in words[n : after if may_break[n] else n + 1])
        if x > indent and x + unit > room:
            line, x = line + 1, indent
        word.line, word.left = line, x
        x += word.wide
    from_right = claims.is_right_to_left("".join(word.text for word in words))

    def turned(word: _Word) -> tuple[int, bool]:  # in the other direction than the text
        return word.line, is_word(word.text) and claims.is_right_to_left(word.text) != from_right

    for (_, is_turned), run in itertools.groupby(words, turned):
        group = [*run]
        ends = group[0].left + group[-1].left + group[-1].wide
        for word in group:
            word.left = ends - word.left - word.wide if is_turned else word.left
            word.left = room - word.left - word.wide if from_right else word.left


def draw_words(page: Page, words: Sequence[_Word], top: float) -> float:
    """Write words in lines on their colors; return the lower edge."""
    _set(page, words)
    tall, em = (words[-1].line + 1) * _LINE, _SIZE / 72
    canvas = page.canvas(page.left, top, page.room, tall)
    for word, after in itertools.pairwise([*words, _Word("")]):
        left, base = page.left + word.left, top + word.line * _LINE + 1.2 * em
        pad = 0.5 * MM if word.is_boxed else _PAD * bool(word.blank and after.blank)
        box = (left - pad, base - em), (word.wide + 2 * pad, 1.34 * em)
        if word.fill is not None:
            fill = Rectangle(box[0], *box[1], facecolor=word.fill, linewidth=0, zorder=0)
            canvas.add_patch(fill).set_clip_on(False)
        if word.is_boxed:
            drawn = frame(canvas, *box, theme().claim if word.is_claimed else theme().ink)
            drawn.set_linestyle("solid" if word.is_claimed else (0, (2.2, 1.4)))
        slant = "italic" if word.is_written else "normal"
        look = word.text, _SIZE, _readable(word), word.weight
        page.piece(left, base - 0.76 * em, *look, fontstyle=slant)
    return top + tall


def _readable(word: _Word) -> str:
    """Return the first of some colors that has contrast to that behind a word."""
    colors = [theme().muted] * word.is_gray + [theme().ink, "white", "black"]
    fill = theme().ground if word.fill is None else word.fill
    rgb = np.array([to_rgb(one) for one in (fill, *colors)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    behind, *light = linear @ style.LUMINANCE + 0.05
    known = zip(colors, light, strict=True)
    return next(one for one, on in known if max(on, behind) >= _READABLE * min(on, behind))
