"""Draw a text as it is read, each word on the color of a number: what it gets, or what it adds."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure

from attnviz.analyses.explain.result import ExplainResult
from attnviz.analyses.maps.result import AttentionMap
from attnviz.analyses.shift.result import ShiftResult
from attnviz.errors import InputError, refuse_given
from attnviz.figures import claims, figure, style
from attnviz.figures.arcs import Word, draw_words, find_blanks
from attnviz.figures.cells import Bar, WeightScale, draw_scales, signed_norm
from attnviz.figures.layout import CaptionLength, new_page
from attnviz.figures.style import CAPTION_GAP, GAP, SMALL_SIZE, theme
from attnviz.results.axis import locate
from attnviz.results.text import signed, source_and_notes

_LATER = " come later: they"
_Shown: TypeAlias = tuple[str, str, "list[Word]", list[Bar]]  # title, sentences, words, scales


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
        large, small = style.TITLE_SIZE - 2 * page.smaller, SMALL_SIZE - page.smaller
        top = page.subtitle(page.left, style.MARGIN, title, page.room, points=large) + 0.02
        top = page.paragraph(page.left, top, says, page.room, points=small) + GAP
        place = page.left, page.right
        end = draw_scales(page, bars, place, draw_words(page, words, top) + GAP)
        return page.finish(end + CAPTION_GAP, parts, result.checked_agreement)


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
        Word(
            label.rpartition(" ")[0] if unread[n] else claims.spelled(label),
            None if later[n] else fills[n], bool(gray[n] or later[n]), drawn.is_text and n == row,
            bool(claimed[n]) or n in (finding.cell or ())[1:],
        )
        for n, label in enumerate(drawn.columns)
    ]  # fmt: skip
    find_blanks(words, drawn.provenance)
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
        low, high, unit = "lowers", f"raises {result.question}", f" {result.unit}"
        asked = -1 if result.at is None else result.at
    known = [n for n in result.sources if numbers[n] == numbers[n]]
    if result.sources and not known:
        raise InputError(f"It has no numbers for measured={bool(measured)}. Leave measured out.")
    norm = signed_norm(numbers[n] for n in known)
    bar = ScalarMappable(norm, theme().values)
    words = [
        Word(
            word, bar.cmap(norm(numbers[n])) if n in known else None, n in unread, n == asked,
            n == result.strongest,
        )
        for n, word in enumerate(result.words)
    ]  # fmt: skip
    find_blanks(words, result.provenance)
    if isinstance(result, ExplainResult):
        target = Word(f"{result.target} {result.share}", is_asked=True, is_written=True)
        for n in result.unmeasured if result.kind == "masked token" else ():
            words[n] = replace(target, blank=words[n].blank)
        if result.kind != "masked token":
            words.append(replace(target, text=f"→ {target.text}"))
    rows = [*zip(words, (*result.special, False), strict=False)]
    stacks = () if isinstance(result, ShiftResult) else result.stacks
    for side in sorted({*stacks}, reverse=True):  # of an encoder–decoder
        first = stacks.index(side)
        next((word for word, special in rows[first:] if not special), words[-1]).blank = " "
        rows.insert(first, (Word(f"{side}:", is_gray=True, blank="\n"), False))
    words = [word for word, special in rows if word.is_asked or not special]
    end = signed(float(norm.vmax or 0.0))
    bars = [(f"{low}, \N{MINUS SIGN}{end}", bar, f"{end}{unit}, {high}")] if known else []
    later = f" Gray words{_LATER} are not read." * bool(getattr(result, "unread", ()))
    return result.headline, f"{says} The color of a word is {kind}.{later}", words, bars
