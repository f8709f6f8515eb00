"""Draw a prediction as its text, on the colors of what each word adds; and the text of a map."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from attnviz.analyses.explain.result import CHANGES, SPLIT, ExplainResult
from attnviz.analyses.maps.result import AttentionMap
from attnviz.analyses.shift.result import ShiftResult
from attnviz.errors import InputError, joined, refuse_given
from attnviz.figures import cells, claims, figure, style
from attnviz.figures.arcs import Word, draw_words, find_blanks
from attnviz.figures.cells import Bar, WeightScale, signed_norm
from attnviz.figures.layout import CaptionLength, Page, line_height, new_page
from attnviz.figures.style import CAPTION_GAP, GAP, SMALL_SIZE, power, theme
from attnviz.results.axis import locate
from attnviz.results.text import literal, signed, source_and_notes

_MEASURED = "measured effect"
# Inches, and points.
_MOST_PARTS, _IN_ALL = 24, "in all"
_ROW, _NUMBERED = 0.17, 0.24  # a row of the table, and the narrowest cell with a number
_NARROWEST, _FEWEST = 0.2, 3  # a cell, and words of a table
_RHO = 1.08  # the column of rank correlations
_GAP = 0.14
_OUTLINE, _LARGEST_IMAGE = 0.3, 3.5
_Shown: TypeAlias = tuple[str, str, "list[Word]", list[Bar]]  # title, sentences, words, scales


@figure
def explain(
    result: ExplainResult,
    *,
    width: float = style.FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw the text of a prediction, shaded by the measured effect of changing each word.

    Below it stand the effects, the contributions and further methods, with the rank correlation of
    each method and the effects. If no effect was measured, the text is shaded by the contributions.
    Of parts of a text, such as passages, a table has what each adds to each word of the answer; of
    a sound, words have windows of time; of a picture, the effects of tiles lie over it.

    Examples
    --------
    >>> import attnviz
    >>> reaction = "CC(=O)O.OCC>>CC(=O)O[MASK]C"
    >>> why = attnviz.explain(reaction, model="rxnmapper")
    >>> figure = attnviz.plot.explain(why)
    """
    texts = [*result.words, result.target, result.against or "", "→−"]
    with new_page(width, caption, texts, figure) as page:
        top = page.heading(result.headline) + 0.02
        top = page.paragraph(page.left, top, result.finding, page.room) + _GAP
        if result.parts:
            top = _draw_effects(page, result, top)
        else:
            _, _, words, bars = of_words(result)
            top = draw_words(page, words, top) + 0.06
            top = cells.draw_scales(page, bars, (page.left, page.right), top) + _GAP
            top = _draw_table(page, result, top) if result.sources else top
        return page.finish(top + CAPTION_GAP, _caption_parts(result), result.checked_agreement)


def _caption_parts(result: ExplainResult) -> list[str]:
    first, *notes = source_and_notes(result.provenance, result.notes)
    parts = [first]
    colors = "colors: " if not result.causal else ""
    if result.parts:
        lost = "each word of the answer loses" if result.answer else "are lost"
        change = CHANGES[next(iter(result.causal))][1]
        parts.append(f"colors: {result.unit} that {lost} if a {result.parts} is {change}")
        if not result.edges:
            parts.append(f"{result.parts}s with the same fact can replace each other")
        if len(result.sources) > _MOST_PARTS and not result.edges:
            parts.append(f"the {_MOST_PARTS} strongest of {len(result.words)} {result.parts}s")
    elif result.causal:
        changes = ", ".join(result.causal)
        if len(result.causal) > 1:
            changes = f"mean of {changes}, each scaled to their mean deviation"
        what = f"the {result.unit} that are lost in separate runs"
        parts.append(f"colors: {_MEASURED}, {what}, {changes}")
    parts += notes
    if result.decomposition is not None:
        parts += [
            f"{colors}contributions over all paths, in {result.unit}, sum to "
            f"{signed(result.total)} (completeness error {power(result.completeness_error)})",
            f"compared with {result.reference}",
        ]
    if result.rank_correlations:
        parts.append(
            "rank correlation: Spearman's ρ with the measured effect, and its 95 % interval over "
            "words of this text and over the words that replace them"
        )
    shared = [name for name in ("knock-out", "mask") if name in result.causal][:1]
    if "partial-split" in result.rank_correlations and shared:
        parts.append(f"the partial split shares the {shared[0]} with the measured effect")
    if result.unmeasured:
        names = ", ".join(map(result.name, result.unmeasured))
        why = "with the position that is read" if result.parts else "the same in both runs"
        parts.append(f"not measured: {names}, {why}")
    return parts


def _draw_table(page: Page, result: ExplainResult, top: float) -> float:
    """Draw methods × words, each row on its own scale, with ρ at the right; return its end."""
    has_rho = bool(result.rank_correlations)
    rows = {_MEASURED: (result.consensus, "with this row" * has_rho)} if result.causal else {}
    for name, scores in result.attributions.items():
        rho = result.rank_correlations.get(name)
        interval = "" if rho is None else "{} ({} to {})".format(*map(signed, rho))
        rows["contributions" if name == SPLIT else name.replace("-", " ")] = scores, interval
    label = page.ruler.widest([*rows], SMALL_SIZE) + 0.06
    left, right = page.left + label, page.right - _RHO * has_rho
    firsts = [_ranked(result, scores)[0] for scores, _ in rows.values()]
    order = dict.fromkeys([*firsts, *_ranked(result, result.effect)])
    shown = sorted([*order][: int((right - left) / _NARROWEST)])
    if len(shown) < min(_FEWEST, len(result.sources)):
        return top
    cell = (right - left) / len(shown)
    if len(rows) > 1:
        most, group = max(firsts, key=firsts.count), result.group(firsts)
        title = f"Each row has another word first{f', {group}' if group else ''}"
        if firsts.count(most) > 1:
            alike = joined(row for row, first in zip(rows, firsts, strict=True) if first == most)
            title = f"{result.name(most)} is first in {alike}"
        top = page.subtitle(page.left, top, title, right - page.left) + 0.02
    key = "shares of the largest number of each row"
    hidden = "masked" if result.kind == "similarity" else "hidden"
    if "partial split" in rows:
        key += f"; partial split: contributions where some words are {hidden}"
    if len(shown) < len(result.sources):
        key += f", for the {len(shown)} strongest words"
    if has_rho:
        page.write(page.right, top, ["rank correlation"], align="right")
    top = page.paragraph(page.left, top, key, right - page.left) + 0.03
    ax = page.axes(left, top, right - left, _ROW * len(rows))
    table = torch.stack([torch.as_tensor(scores)[shown].double() for scores, _ in rows.values()])
    table /= table.abs().amax(1, keepdim=True).clamp(min=1e-30)
    mesh = cells.draw_cells(ax, table, theme().values, Normalize(-1, 1))
    best = torch.tensor([[n == first for n in shown] for first in firsts], device="cpu")
    for written, weight in ((~best, "normal"), (best, "bold")):
        if cell >= _NUMBERED:
            cells.write_numbers(ax, mesh, table, signed, shown=written, fontweight=weight)
    for line, (name, (_, interval)) in enumerate(rows.items()):
        middle = top + (line + 0.5) * _ROW
        page.write(left - 0.05, middle, [name], align="right", va="center_baseline")
        page.write(page.right, middle, [interval], align="right", va="center_baseline")
    labels = [literal(result.names[index], 40) for index in shown]
    lines = 1 + (page.ruler.widest(labels, SMALL_SIZE) > cell - 0.03)
    bottom, tall = top + _ROW * len(rows) + 0.02, line_height(SMALL_SIZE)
    for n, name in enumerate(labels):
        text = page.ruler.clip(name, lines * cell - 0.03, SMALL_SIZE)
        page.write(left + (n + 0.5) * cell, bottom + n % lines * tall, [text], align="center")
    bottom += lines * tall
    before = 0
    for side, run in itertools.groupby(shown, lambda n: result.stacks[n : n + 1]):
        if before:  # a line between both texts
            ax.axvline(before, color=theme().ink, linewidth=0.9)
        middle, before = before, before + len([*run])
        middle = left + (middle + before) / 2 * cell
        page.write(middle, bottom, side, color=theme().muted, align="center")
    return bottom + tall * bool(result.stacks)


def _draw_effects(page: Page, result: ExplainResult, top: float) -> float:
    """Draw what each part adds, on one scale with its key below; return the lower edge."""
    draw = {"window": _draw_windows, "tile": _draw_tiles}.get(result.parts or "", _draw_parts)
    by_word = None if draw is _draw_tiles else result.by_answer
    table = result.effect[None] if by_word is None else by_word
    norm = signed_norm([4 * result.least, *table.flatten().tolist()])
    top = draw(page, result, table, norm, top)
    end = signed(float(norm.vmax or 0.0))
    of_word = draw is _draw_windows and result.answer
    high = f"{end} {result.unit}, raises {'the word' if of_word else result.question}"
    bar = f"lowers, \N{MINUS SIGN}{end}", ScalarMappable(norm, theme().values), high
    return cells.draw_scales(page, [bar], (page.left, page.right), top)


def _draw_parts(
    page: Page, result: ExplainResult, table: Tensor, norm: Normalize, top: float
) -> float:
    """Draw what each part adds to each word of the answer, and in all; return the lower edge."""
    shown = _ranked(result, result.effect)[:_MOST_PARTS]
    shown = sorted({*shown, *(result.unmeasured if len(shown) < _MOST_PARTS else ())})
    words = [literal(word, 20) for word in result.answer or (result.target,)]
    says = ["–" if n in result.unmeasured else signed(float(result.effect[n])) for n in shown]
    numbers = page.ruler.widest([*says, _IN_ALL], SMALL_SIZE) + 0.08
    wide = np.array([max(page.ruler.width(word, SMALL_SIZE) + 0.07, 0.2) for word in words])
    room = page.room - numbers
    is_flat = wide.sum() <= 0.6 * room
    wide = wide if is_flat else np.full(len(words), min(0.2, 0.6 * room / len(words)))
    left = page.right - numbers - wide.sum()
    begin = page.left + page.ruler.widest([str(n + 1) for n in shown], SMALL_SIZE) + 0.06
    top += line_height(SMALL_SIZE) if is_flat else page.ruler.widest(words, SMALL_SIZE)
    if len(words) > 1:
        page.write(page.right, top - line_height(SMALL_SIZE), [_IN_ALL], align="right")
    ax = page.axes(left, top, wide.sum(), _ROW * len(shown))
    across = np.concatenate([[0.0], wide.cumsum()])
    edges = np.arange(len(shown) + 1.0), across
    cells.draw_cells(ax, table.T[shown], theme().values, norm, edges=edges)
    for middle, word in zip((across[1:] + across[:-1]) / 2, words, strict=True):
        ax.text(
            middle, -0.15, word, rotation=0 if is_flat else 90, ha="center", va="bottom",
            fontsize=SMALL_SIZE,
        )  # fmt: skip
    for row, (n, number) in enumerate(zip(shown, says, strict=True)):
        middle, first = top + (row + 0.5) * _ROW, n == result.strongest
        write = _writer(page, is_claim=first)
        write(begin - 0.06, middle, [f"{n + 1}"], align="right")
        write(begin, middle, [page.ruler.clip(result.words[n], left - begin - 0.1, SMALL_SIZE)])
        write(page.right, middle, [number], align="right")
        if first:
            cells.frame(ax, (0, row), (across[-1], 1))
    return top + _ROW * len(shown) + 0.08


def _draw_windows(
    page: Page, result: ExplainResult, table: Tensor, norm: Normalize, top: float
) -> float:
    """Draw the outline of the sound, and below it words × windows; return the lower edge."""
    (edges,), waveform = map(np.array, result.edges), result.waveform
    assert waveform is not None
    words = [literal(word, 20) for word in result.answer or (result.target,)]
    left = page.left + page.ruler.widest(words, SMALL_SIZE) + 0.06
    outline = page.axes(left, top, page.right - left, _OUTLINE, bare=True)
    seconds = np.linspace(0, waveform.seconds, len(waveform.extremes))
    outline.fill_between(seconds, *waveform.extremes.T.numpy(), color=theme().muted, linewidth=0.3)
    outline.set_xlim(0, edges[-1])
    top += _OUTLINE + 0.04
    ax = page.axes(left, top, page.right - left, _ROW * len(words))
    down = np.arange(len(words) + 1.0)
    cells.draw_cells(ax, table, theme().values, norm, edges=(down, edges))
    ticks = MaxNLocator(10, steps=[1, 2, 5, 10]).tick_values(0, edges[-1])
    ax.set_xticks(ticks, [f"{x:g} s" for x in np.round(ticks, 3)])
    ax.set_xlim(0, edges[-1])
    ax.tick_params(axis="x", length=2, labelsize=SMALL_SIZE)
    row, first = result.peak or (0, None)
    claimed = result.alike if first is None else [first]
    for n, word in enumerate(words):
        write = _writer(page, is_claim=n == row and bool(claimed))
        write(left - 0.05, top + (n + 0.5) * _ROW, [word], align="right")
    for n in claimed:
        outline.axvspan(*edges[n : n + 2], fill=False, edgecolor=theme().claim)
    cells.outline(ax, _marked(table, row, claimed), (down, edges))
    return top + _ROW * len(words) + 0.24


def _draw_tiles(
    page: Page, result: ExplainResult, table: Tensor, norm: Normalize, top: float
) -> float:
    """Draw the picture, and beside it the effect of each tile on it; return the lower edge."""
    rows, columns = edges = np.array(result.edges[0]), np.array(result.edges[1])
    assert result.image is not None
    image, size = result.image.numpy(), (len(rows) - 1, len(columns) - 1)
    label = line_height(SMALL_SIZE)
    side = min(_LARGEST_IMAGE, (page.room - _GAP - label) / 2)
    side *= min(1.0, columns[-1] / rows[-1])
    tall, box = side * rows[-1] / columns[-1], (0, columns[-1], rows[-1], 0)
    claimed = _marked(table, 0, result.alike).reshape(size)
    second = page.axes(page.left + side + _GAP + label, top, side, tall)
    cells.draw_cells(second, table.reshape(size), theme().values, norm, lines=False, edges=edges)
    first = page.axes(page.left, top, side, tall)
    for ax, shown in ((first, image), (second, cells.shadow(result.image))):
        ax.imshow(shown, extent=box, aspect="auto", zorder=2)
        ax.set(xticks=[], yticks=[], xlim=(0, columns[-1]), ylim=(rows[-1], 0))
        ax.spines[:].set_visible(False)
        cells.outline(ax, claimed, edges)
    second.set_xticks((columns[1:] + columns[:-1]) / 2, [*map(str, range(size[1]))])
    second.set_yticks((rows[1:] + rows[:-1]) / 2, [*map(str, range(size[0]))])
    second.tick_params(length=0, pad=2, labelsize=SMALL_SIZE, labelcolor=theme().muted)
    return float(top + tall + label + 0.08)


def _marked(table: Tensor, row: int, columns: list[int]) -> Tensor:
    """Return which cells of a table are claimed: some columns of one row."""
    marked = torch.zeros_like(table, dtype=torch.bool)
    marked[row, columns] = True
    return marked


def _writer(page: Page, *, is_claim: bool) -> partial[Any]:
    """Return what writes a label: that of the claim is bold."""
    color, weight = (theme().ink, "bold") if is_claim else (theme().muted, "normal")
    return partial(page.write, va="center_baseline", color=color, weight=weight)


def _ranked(result: ExplainResult, scores: Tensor) -> list[int]:
    """Return the words or parts that are ranked, those with the largest scores (W,) first."""
    return sorted(result.sources, key=lambda n: -abs(float(scores[n])))


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
        end = cells.draw_scales(page, bars, place, draw_words(page, words, top) + GAP)
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
    when = " come later: they" * (not later[:row].any())
    says += f" Gray words{when} are not read." * bool(later.any())
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
    shown = result.shown(measured=measured)
    known = [n for n in result.sources if shown.numbers[n] == shown.numbers[n]]
    if result.sources and not known:
        raise InputError(f"It has no numbers for measured={bool(measured)}. Leave measured out.")
    norm = signed_norm([shown.least, *(shown.numbers[n] for n in known)])
    bar = ScalarMappable(norm, theme().values)
    words = [
        Word(
            word, bar.cmap(norm(shown.numbers[n])) if n in known else None, n in shown.gray,
            n == result.at, n == result.strongest,
        )
        for n, word in enumerate(result.words)
    ]  # fmt: skip
    find_blanks(words, result.provenance)
    target = Word(shown.predicted, is_asked=True, is_written=True)
    for n in shown.filled:
        words[n] = replace(target, blank=words[n].blank)
    if target.text and not shown.filled:
        words.append(replace(target, text=f"→ {target.text}"))
    rows = [*zip(words, (*result.special, False), strict=False)]
    for side in sorted({*result.stacks}, reverse=True):  # of two texts
        first = result.stacks.index(side)
        next((word for word, special in rows[first:] if not special), words[-1]).blank = " "
        rows.insert(first, (Word(f"{side}:", is_gray=True, blank="\n"), False))
    words = [word for word, special in rows if word.is_asked or not special]
    end = signed(float(norm.vmax or 0.0))
    bars = [(f"{shown.low}, \N{MINUS SIGN}{end}", bar, f"{end}{shown.high}")] if known else []
    return result.headline, shown.says, words, bars
