"""Lay out a page in inches from its top left corner, with a caption below, and save it."""

from __future__ import annotations

import bisect
import io
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, takewhile
from typing import Any, ClassVar, Literal, TypeAlias, cast

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import get_backend, rc_context, rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import Collection, PathCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from matplotlib.ticker import Locator, LogLocator, MaxNLocator
from matplotlib.transforms import Affine2D, Bbox, ScaledTranslation

from attnviz.errors import InputError, refuse_given
from attnviz.figures import style
from attnviz.figures.style import MARGIN, MM, SMALL_SIZE, TEXT_SIZE, drawing, text_scale, theme
from attnviz.io import FIGURE_SUFFIXES, GENERATOR, atomic, check_output
from attnviz.results import AgreementReport

CaptionLength: TypeAlias = Literal["short", "full", "none"]
Place: TypeAlias = tuple[float, float]  # left and top, in inches
Pair: TypeAlias = tuple[float, float]  # across and down, or a left and a right edge

_ASCENT = 0.76  # from the top of a letter to the baseline, over the font size
_BOLD = "“”‘’–—…\N{MINUS SIGN}\u2068\u2069"  # beside letters from Latin to Arabic
_OF_FONTS = "font.", "text.", "mathtext.", "figure.dpi"  # the settings that widths depend on
_METADATA: dict[str, dict[str, str | None]] = {
    ".png": {"Software": GENERATOR},
    ".svg": {"Creator": GENERATOR, "Date": None},
    ".pdf": {"Creator": GENERATOR, "CreationDate": None},
}
# Less effort of compression: a heatmap is 9 % larger than with the default, and written faster.
_OPTIONS: dict[str, dict[str, Any]] = {".png": {"pil_kwargs": {"compress_level": 3}}}
_DESCRIPTION = {".png": "Description", ".svg": "Description", ".pdf": "Subject"}


def line_height(points: float) -> float:
    """Return the height of one line of text in inches."""
    return points * style.LEADING / 72


class Ruler:
    """Measures text in inches without drawing it, each text in the same fonts once.

    dpi : of the figure. Hints change widths with it: the wider counts, at it or at that of `style`.
    """

    _known: ClassVar[dict[str, dict[tuple[str, float, str, bool], float]]] = {}

    def __init__(self, dpi: float | None = None) -> None:
        both = {rcParams["figure.dpi"], dpi or rcParams["figure.dpi"]}
        self._canvases = [FigureCanvasAgg(Figure(dpi=one)) for one in both]
        fonts = {name: rcParams[name] for name in rcParams if name.startswith(_OF_FONTS)}
        self._widths = self._known.setdefault(repr((style.main_font(), fonts, dpi)), {})

    def width(
        self, text: str, points: float, weight: str = "normal", *, math: bool = False
    ) -> float:
        """Return the width of one line of text, or of a formula."""
        key = text, points, weight, math
        if key not in self._widths:
            self._widths[key] = 0.0
            for canvas in self._canvases:
                drawn = Text(0, 0, text, fontsize=points, parse_math=math, **face(weight))
                drawn.set_figure(canvas.figure)
                extent = drawn.get_window_extent(canvas.get_renderer())  # type: ignore[no-untyped-call]
                self._widths[key] = max(self._widths[key], float(extent.width / canvas.figure.dpi))
        return self._widths[key]

    def advance(self, text: str, points: float, weight: str = "normal") -> float:
        """Return the width of a piece of a line with the blanks at its ends, not rounded."""
        family = face(weight).get("fontfamily", rcParams["font.family"])
        font = FontProperties(family=family, size=points, weight=weight)
        width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
        return float(width) / 72

    def widest(self, texts: Sequence[str], points: float) -> float:
        """Return the width of the widest of `texts`."""
        return max((self.width(text, points) for text in texts), default=0.0)

    def wrap(self, text: str, width: float, points: float, weight: str = "normal") -> list[str]:
        """Break text into lines of at most `width`."""
        words, lines = text.split(), []

        def fits(count: int) -> bool:
            return self.width(" ".join(words[:count]), points, weight) <= width

        blank = self.width("n n", points, weight) - 2 * self.width("n", points, weight)
        while words:
            ends = accumulate(self.width(word, points, weight) + blank for word in words)
            count = sum(1 for _ in takewhile((width + blank).__ge__, ends))
            while count < len(words) and fits(count + 1):  # letters beside a blank are kerned
                count += 1
            while count and not fits(count):
                count -= 1
            if not count:  # a very long word, or a script without blanks, breaks anywhere
                count, end = 1, self._fitting(words[0], width, points, weight)
                words[:1] = filter(None, [words[0][:end], words[0][end:]])
            line = " ".join(words[:count])
            if {*map(unicodedata.bidirectional, line)} & {"R", "AL"}:
                line = f"\N{LEFT-TO-RIGHT MARK}{line}"  # keeps the order of the sentence
            lines.append(line)
            words = words[count:]
        return lines

    def clip(self, text: str, width: float, points: float) -> str:
        """Shorten one line of text to at most `width`."""
        if self.width(text, points) <= width:
            return text
        return text[: self._fitting(text, width - self.width("…", points), points)] + "…"

    def squeeze(self, text: str, width: float, points: float) -> str:
        """Shorten one line of text to at most `width` in its middle."""
        kept = range(len(text), 1, -1)
        shorter = (f"{text[: (n + 1) // 2]}…{text[len(text) - n // 2 :]}" for n in kept[1:])
        return self.longest([text, *shorter], width, points)

    def longest(self, texts: Sequence[str], width: float, points: float) -> str:
        """Return the first text that fits, else the last. The longest comes first."""
        return next((text for text in texts if self.width(text, points) <= width), texts[-1])

    def _fitting(self, text: str, width: float, points: float, weight: str = "normal") -> int:
        """Return how many characters of `text` fit, at least one."""
        lengths = range(1, len(text) + 1)
        fit = bisect.bisect(lengths, width, key=lambda n: self.width(text[:n], points, weight))
        return max(1, fit)


class _Piece(Text):
    """Text on its baseline, without hints: pieces of a line are as wide as `Ruler.advance` says."""

    def draw(self, renderer: RendererBase) -> None:
        with rc_context({"text.hinting": "no_hinting"}):
            super().draw(renderer)

    def get_window_extent(
        self, renderer: RendererBase | None = None, dpi: float | None = None
    ) -> Bbox:
        with rc_context({"text.hinting": "no_hinting"}):
            return super().get_window_extent(renderer, dpi)


class Page:
    """A figure that is filled from top to bottom and gets its height at the end.

    All places are inches from the top left corner, before text and sizes are scaled.

    width : in mm. caption : "short" for two lines and the verdict, "full" for all sentences, "none"
    for a figure without it. into : the figure to fill, by default a new one. narrowest : in mm.
    shown : whether a notebook shows it because it is open, since only its axes are returned.
    """

    def __init__(
        self,
        width: float = style.FULL_WIDTH,
        caption: CaptionLength = "short",
        into: Figure | SubFigure | None = None,
        *,
        narrowest: float = 40.0,
        shown: bool = False,
    ) -> None:
        if into is not None:
            refuse_given(
                "figure has its own width. Leave one out.", width=width != style.FULL_WIDTH
            )
            width = float(into.bbox.width) / into.dpi / MM  # of numpy
        if not narrowest <= width <= 2000:
            raise InputError(
                f"The width must be {narrowest:g} to 2000 mm, not {width:g}. "
                "A column of a journal is 89 mm wide, a page 183."
            )
        self.scale = text_scale()
        self.width = width = width * MM / self.scale
        self.smaller = 0.5 * (width <= style.WIDE)  # points, of the text of a narrow page
        self.caption = caption
        self.left, self.right = MARGIN, width - MARGIN  # the edges of the content
        self.room = self.right - self.left
        self._part = into if isinstance(into, SubFigure) else None
        figure = plt.figure(figsize=(width * self.scale, 1.0)) if into is None else into
        self.figure = cast("Figure", figure)
        self.ruler = Ruler(figure.dpi)
        if into is None and not shown and "inline" in get_backend():
            plt.close(self.figure)  # a notebook shows what is returned, and all that is open
        self._from_corner = (
            Affine2D().scale(self.scale, -self.scale)
            + self.figure.dpi_scale_trans
            + ScaledTranslation(0, 1, cast("Any", self.figure.transSubfigure))
        )
        self._axes: list[tuple[Axes, partial[Bbox]]] = []

    def axes(
        self, left: float, top: float, width: float, height: float, *, bare: bool = False
    ) -> Axes:
        """Add axes at a place. bare : without anything but what is drawn into them."""
        # Without different labels, matplotlib would return the first axes again.
        ax = self.figure.add_axes((0.0, 0.0, 1.0, 1.0), label=str(len(self._axes)))
        if bare:
            ax.set_axis_off()
        else:  # also of ticks that are made when the figure is drawn
            ax.tick_params(colors=theme().ink)
        place = partial(_place, (left, top, width, height), self.scale)
        ax.set_axes_locator(place)
        self._axes.append((ax, place))
        return ax

    def canvas(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add bare axes whose units are inches from the top left corner of the page."""
        ax = self.axes(left, top, width, height, bare=True)
        ax.set(xlim=(left, left + width), ylim=(top + height, top))
        return ax

    def label(self, ax: Axes, x: float, y: float, text: str, **look: Any) -> None:
        """Write on a canvas, by default in small letters on the middle of their line."""
        known: dict[str, Any] = {"fontsize": SMALL_SIZE, "va": "center_baseline"}
        ax.text(x, y, text, **(known | face(look.pop("weight", "normal")) | look))

    def write(
        self,
        left: float,
        top: float,
        lines: Sequence[str],
        *,
        points: float = SMALL_SIZE,
        color: str | None = None,
        weight: str = "normal",
        align: Literal["left", "center", "right"] = "left",
        va: Literal["top", "center_baseline"] = "top",
        math: bool = False,
    ) -> float:
        """Write lines, as formulas between dollar signs if `math`; return the lower edge."""
        for line in lines:
            look = {"color": color or theme().ink, "fontsize": points, **face(weight)}
            look |= {"transform": self._from_corner, "ha": align, "va": va}
            self.figure.text(left, top, line, parse_math=math, **look)
            top += line_height(points)
        return top

    def piece(
        self, left: float, top: float, text: str, points: float, color: str, weight: str, **of: Any
    ) -> float:
        """Write a piece of a line; return its right edge, where the next one begins."""
        look: dict[str, Any] = {"color": color, "fontsize": points, **face(weight)}
        look |= {"transform": self._from_corner, "parse_math": False, **of}
        self.figure.add_artist(_Piece(left, top + _ASCENT * points / 72, text, **look))
        return left + self.ruler.advance(text, points, weight)

    def paragraph(
        self, left: float, top: float, text: str, room: float, *, points: float = SMALL_SIZE
    ) -> float:
        """Write muted text in lines at most `room` wide; return its lower edge."""
        lines = self.ruler.wrap(text, room, points)
        return self.write(left, top, lines, points=points, color=theme().muted)

    def legend(
        self, left: float, top: float, right: float, entries: Iterable[tuple[str, str, str]]
    ) -> float:
        """Write marks, each with its color and its name, in lines; return the lower edge."""
        x, below = left, top
        for mark, color, name in entries:
            wide = 0.12 + self.ruler.width(name, SMALL_SIZE)
            if x > left and x + wide > right:
                x, top = left, below
            self.write(x, top, [mark], color=color)
            below = self.write(x + 0.12, top, [name]) + 0.03
            x += wide + 0.14
        return below

    def bar(self, left: float, top: float, room: float) -> Axes:
        """Add the axes of a color bar, at most `room` inches tall."""
        return self.axes(left, top, style.BAR_WIDTH, min(room, 1.5))

    def subheading(self, top: float, text: str) -> float:
        """Write what is below the heading, muted; return the lower edge."""
        return self.paragraph(self.left, top, text, self.room, points=TEXT_SIZE)

    def heading(self, text: str) -> float:
        """Write the title of the page; return its lower edge."""
        return self.subtitle(self.left, MARGIN, text, self.room, points=style.TITLE_SIZE)

    def subtitle(
        self, left: float, top: float, text: str, room: float, *, points: float = TEXT_SIZE
    ) -> float:
        """Write the title of a panel in lines at most `room` wide; return its lower edge."""
        weight = face("bold", text)["fontweight"]
        lines = self.ruler.wrap(text, room, points, weight)
        return self.write(left, top, lines, points=points, weight=weight)

    def line(self, *points: Place, arrow: bool = False) -> None:
        """Draw a line through some places, or an arrow between two."""
        look: dict[str, Any] = {"color": theme().muted, "transform": self._from_corner}
        x, y = zip(*points, strict=True)
        line: Artist = Line2D(x, y, linewidth=0.6, **look)
        if arrow:
            look |= {"arrowstyle": "-|>", "mutation_scale": 5 * self.scale}
            line = FancyArrowPatch(*points, linewidth=0.6, **look)
        self.figure.add_artist(line)

    def finish(
        self,
        top: float,
        parts: Sequence[str],
        agreement: AgreementReport | None,
        *,
        left: float = MARGIN,
        right: float | None = None,
        bottom: float = 0.0,
    ) -> Figure:
        """Write parts, the most important first, and the verdict, beside what ends at `bottom`."""
        self.figure.set_label(_description(parts, agreement))
        room = (right or self.right) - left  # two lines, or as much in a column beside a panel
        most = round(2 * self.room / room) if self.caption == "short" else None
        if self.caption != "none":
            full = most is None
            for lines, font in _paragraphs(parts, agreement, room, self.ruler, most, full=full):
                top = self.write(left, top, lines, **font)
        inches = (max(top, bottom) + MARGIN) * self.scale
        if self._part is None:
            self.figure.set_size_inches(self.width * self.scale, inches)
        elif (whole := self._part.get_figure(root=True)) is not None:
            width, height = whole.get_size_inches()
            lack = inches / (self._part.bbox.height / self._part.dpi)
            whole.set_size_inches(width, height * max(lack, 1.0))
        for ax, place in self._axes:
            ax.set_position(place(ax))
        if self.scale != 1:
            enlarge(self.figure.findobj(), self.scale)
        return self.figure


def _place(box: tuple[float, float, float, float], scale: float, ax: Any, _: object = None) -> Bbox:
    """Return where axes are in parts of their figure. box : left, top, width, height, unscaled."""
    left, top, width, height = box
    figure = ax.get_figure(root=False)
    wide, high = (side / figure.dpi / scale for side in figure.bbox.size)
    return Bbox.from_bounds(left / wide, (high - top - height) / high, width / wide, height / high)


def enlarge(drawn: Iterable[Artist], scale: float) -> None:
    """Enlarge text, lines and marks that were drawn for print."""
    for artist in drawn:
        if isinstance(artist, Text):
            artist.set_fontsize(float(artist.get_fontsize()) * scale)
        elif isinstance(artist, Line2D):
            artist.set(lw=artist.get_linewidth() * scale, ms=artist.get_markersize() * scale)
        elif isinstance(artist, Patch | Collection):
            artist.set_linewidth(np.multiply(artist.get_linewidth(), scale).tolist())
        if isinstance(artist, PathCollection):
            artist.set_sizes(np.multiply(artist.get_sizes(), scale**2))


@contextmanager
def new_page(
    width: float,
    caption: CaptionLength,
    texts: Iterable[str],
    into: Figure | SubFigure | None = None,
    **how: Any,
) -> Iterator[Page]:
    """Set the style and the fonts for texts, and begin a page. how : as in `Page`."""
    colors = None if into is None else style.theme_on(into.get_facecolor())
    with drawing(texts, theme=colors):
        yield Page(width, caption, into, **how)


def spread(wanted: Sequence[float], size: float, low: float, high: float) -> list[float]:
    """Return the middles of labels: as near as possible to what is wanted, without overlap.

    Labels keep their order. Those that would overlap are moved together, by least squares (isotonic
    regression), within low and high as long as all fit. size : of each label.
    """
    from scipy.optimize import isotonic_regression

    if not wanted:
        return []
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    offsets = size * np.arange(len(order))
    places = isotonic_regression(np.take(wanted, order) - offsets).x
    lowest = low + size / 2
    highest = max(lowest, high - offsets[-1] - size / 2)
    placed = np.empty(len(order))
    placed[order] = np.clip(places, lowest, highest) + offsets
    return placed.tolist()


def face(weight: str, text: str = "") -> dict[str, Any]:
    """Return the weight and the font of a text; the bold font has the letters of few scripts."""
    has_bold = all(ord(one) < 0x700 or one in _BOLD for one in text)
    if weight != "bold" or not has_bold:
        return {"fontweight": "normal"}
    # Few fallback fonts are bold, and bold text here needs none.
    family = [*dict.fromkeys((style.main_font(), style.SANS)), "sans-serif"]
    return {"fontweight": weight, "fontfamily": family}


def color_bar(
    drawn: ScalarMappable,
    ax: Axes,
    label: str = "weight",
    *,
    beside: bool = False,
    say: Callable[[float, object], str] | None = None,
    **how: Any,
) -> Axes:
    """Draw a labeled color bar into `ax`, or beside it in a part of its place; return its axes.

    say : what to write at a value. how : for `Figure.colorbar`.
    """
    values, norm = drawn.get_array(), drawn.norm
    above = bool(values is not None and norm.vmax is not None and values.max() > norm.vmax)
    below = bool(values is not None and norm.vmin is not None and values.min() < norm.vmin)
    steps = [1, 2, 2.5, 5, 10] if say is None else [1, 2, 5, 10]
    ticks: Locator = MaxNLocator(4, steps=steps, integer=say is not None)
    place: dict[str, Any] = {"ax": ax, "fraction": 0.05, "pad": 0.04} if beside else {"cax": ax}
    place["extend"] = ("neither", "max", "min", "both")[2 * below + above]
    if isinstance(norm, LogNorm):
        ticks = LogLocator(subs=(1.0, 3.0))
        place["format"] = "%g"
    bar = ax.figure.colorbar(drawn, **({"ticks": ticks} | place | how))
    if say is not None:
        bar.ax.yaxis.set_major_formatter(say)
    bar.minorticks_off()
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=SMALL_SIZE, length=2, width=0.5, pad=2)
    bar.set_label(label, color=theme().muted)
    return bar.ax


def range_bar(ax: Axes) -> None:
    """Draw into `ax` the color bar of panels that each have their own range."""
    color_bar(ScalarMappable(Normalize(-1, 1), theme().values), ax, "of the range")


def add_caption(
    figure: Figure,
    *,
    text: str | Sequence[str],
    agreement: AgreementReport | None = None,
    title: str | None = None,
) -> Figure:
    """Write a caption below any figure, and a title above it. The figure becomes taller.

    Parameters
    ----------
    figure : Figure
        A figure of matplotlib.
    text : str or sequence of str
        The caption. Each part becomes a sentence.
    agreement : AgreementReport, optional
        The agreement of the result that is shown. Its verdict is written below the text, and with
        every difference into the metadata of the file that `save` writes.

    Returns
    -------
    Figure
        The same figure.

    Raises
    ------
    InputError
        `figure` is not a figure of matplotlib.

    Examples
    --------
    >>> import attnviz
    >>> import matplotlib.pyplot as plt
    >>> result = attnviz.attend("the train left the station")
    >>> figure, ax = plt.subplots(figsize=(5, 2.6), layout="constrained")
    >>> bars = ax.bar(range(7), result.weights(layer=5, head=3)[2].tolist())
    >>> labels = ax.set_xticks(range(7), result.tokens)
    >>> text = "What “train” attends to in head 5.3"
    >>> figure = attnviz.plot.add_caption(figure, text=text, agreement=result.agreement)
    """
    parts = [part for part in ([text] if isinstance(text, str) else text) if part.strip()]
    with drawing(parts, theme=style.theme_on(figure.get_facecolor())):
        scale = text_scale()
        width, ruler = float(figure.get_size_inches()[0]) / scale, Ruler(figure.dpi)
        if title is not None:
            lines = ruler.wrap(title, width - 2 * MARGIN, style.TITLE_SIZE, "bold")
            look: dict[str, Any] = {"fontsize": style.TITLE_SIZE * scale, **face("bold")}
            figure.suptitle("\n".join(lines), x=MARGIN / width, ha="left", **look)
        paragraphs = list(_paragraphs(parts, agreement, width - 2 * MARGIN, ruler))
        text_height = sum(len(lines) for lines, _ in paragraphs) * line_height(SMALL_SIZE)
        height = _grow_below(figure, (text_height + 2 * MARGIN) * scale) / scale
        top = text_height + MARGIN
        for lines, font in paragraphs:
            for line in lines:
                place = MARGIN / width, top / height
                figure.text(*place, line, fontsize=SMALL_SIZE * scale, va="top", **font)
                top -= line_height(SMALL_SIZE)
    figure.set_label(_description(parts, agreement))
    return figure


def _grow_below(figure: Figure, inches: float) -> float:
    """Add empty space at the bottom of a figure; return its new height."""
    width, height = figure.get_size_inches()
    taller = float(height + inches)
    figure.set_size_inches(width, taller)
    share = height / taller
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        left, bottom, wide, high = engine.get()["rect"]
        engine.set(rect=(left, 1 - share + bottom * share, wide, high * share))
    else:
        for ax in figure.axes:
            x, y, wide, high = ax.get_position(original=True).bounds
            ax.set_position((x, 1 - share + y * share, wide, high * share))
    for text in figure.texts:
        if text.get_transform() is figure.transSubfigure:  # others keep their place from the top
            text.set_y(1 - share + text.get_position()[1] * share)
    return taller


def _paragraphs(
    parts: Sequence[str],
    agreement: AgreementReport | None,
    width: float,
    ruler: Ruler,
    most: int | None = None,
    *,
    full: bool = False,
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield the sentences that fit in `most` lines, and the verdict, with their colors."""
    lines: list[str] = []
    shown: list[str] = []
    for sentence in map(_sentence, parts):
        longer = ruler.wrap(" ".join([*shown, sentence]), width, SMALL_SIZE)
        if not shown or most is None or len(longer) <= most:
            shown.append(sentence)
            lines = longer
    yield lines, {"color": theme().muted}
    if agreement is not None:
        verified = agreement.verdict == "verified"
        weight = "normal" if verified else "bold"
        font = {"color": theme().ink if verified else theme().alarm, "weight": weight}
        texts = [agreement.summary()] if full else agreement.captions()
        wrapped = [ruler.wrap(_sentence(text), width, SMALL_SIZE, weight) for text in texts]
        yield next((lines for lines in wrapped if len(lines) <= 2), wrapped[-1]), font


def _description(parts: Sequence[str], agreement: AgreementReport | None) -> str:
    """Return all sentences and the whole verdict, which are saved with a figure."""
    verdict = [] if agreement is None else [agreement.summary()]
    return " ".join(map(_sentence, [*parts, *verdict]))


def _sentence(part: str) -> str:
    """Return a part with a capital letter and a period; a file name keeps its first letter."""
    sentence = part.strip().removesuffix(".")
    starts_with_file = "." in sentence.split(maxsplit=1)[0]
    return f"{sentence if starts_with_file else sentence[0].upper() + sentence[1:]}."


def save(
    figure: Figure | SubFigure | Axes, path: str | os.PathLike[str], *, force: bool = False
) -> None:
    """Save a figure; the suffix of `path` chooses the format.

    Text stays text in svg and pdf. The file is written atomically and overwritten if it exists.

    Parameters
    ----------
    figure : Figure, SubFigure or Axes
        The figure, or a part of it.
    path : str or PathLike
        A file name that ends in .png, .svg or .pdf.
    force : bool
        Overwrite also a read-only file.

    Raises
    ------
    InputError, OutputError
        The name has another suffix, or the file cannot be written.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import attnviz
    >>> with TemporaryDirectory() as folder:
    ...     attnviz.plot.save(attnviz.plot.example("cat"), f"{folder}/cat.svg")
    ...     print([path.name for path in Path(folder).iterdir()])
    ['cat.svg']
    """
    path = check_output(path, FIGURE_SUFFIXES, force=force)
    image = render(cast("Figure", figure.get_figure(root=True)), path.suffix.lower())
    with atomic(path) as temporary:
        temporary.write_bytes(image)


def render(figure: Figure, suffix: str) -> bytes:
    """Return the bytes of the file of a figure, in the format of a suffix such as ".png"."""
    buffer = io.BytesIO()  # when writing a file, matplotlib hides the error of a full disk
    # matplotlib reads SOURCE_DATE_EPOCH even if the file has no date, and fails if it is malformed.
    date = os.environ.pop("SOURCE_DATE_EPOCH", None)
    try:
        with drawing(()):
            metadata = _METADATA[suffix]
            if description := figure.get_label():
                metadata = {**metadata, _DESCRIPTION[suffix]: str(description)}
            figure.savefig(buffer, format=suffix[1:], metadata=metadata, **_OPTIONS.get(suffix, {}))
    finally:
        if date is not None:
            os.environ["SOURCE_DATE_EPOCH"] = date
    return buffer.getvalue()
