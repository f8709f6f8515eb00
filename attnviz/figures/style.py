"""How figures look: sizes, colors, fonts and formulas, applied only while attnviz draws."""

from __future__ import annotations

import contextlib
import inspect
import math
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import matplotlib as mpl
import matplotlib.font_manager as fm
import matplotlib.pyplot as plt
from cmcrameri import cm
from cycler import cycler
from matplotlib.colors import Colormap, LinearSegmentedColormap

from attnviz.errors import AttnvizWarning, InputError, did_you_mean

# The sizes that all figures share, in inches unless stated otherwise.
MM = 1 / 25.4
COLUMN_WIDTH, FULL_WIDTH = 89.0, 183.0  # mm: one and two columns of a journal
WIDTHS = 40, 2000  # mm: the narrowest and the widest figure
WIDE = 5.0  # figures from this width on have panels side by side
MARGIN = 0.06  # around a figure
GAP = 0.12  # between panels
CAPTION_GAP = 0.1  # above a caption
LABEL_PAD = 0.06  # between a label and its axis
AXIS_ROOM = 0.34  # the numbers and the name of an axis
BAR_ROOM = 0.6  # a color bar with its numbers and its label
BAR_GAP, BAR_WIDTH = 0.1, 0.08  # a color bar: distance from its panel, and width
TEXT_SIZE, SMALL_SIZE, TITLE_SIZE = 7.0, 6.0, 9.0  # points
NUMBER_SIZE = 5.5  # points: a number in a cell
SMALLEST_SIZE = 5.0  # points: smaller labels are left out
LEADING = 1.35  # line height over font size

# Lines and bars. Distinct with every kind of color vision.
CYCLE = ("#34508f", "#d1495b", "#e3a02f", "#2f8f7a", "#8c8c8c", "#8a6fb0")
INK, MUTED, FAINT, ACCENT, ALARM = "#1a1a1a", "#5c5c5c", "#d5d5dd", "#d1495b", "#b00020"
MASKED = "#eeeef2"  # cells of keys that a query may not attend to
SANS = "DejaVu Sans"  # ships with matplotlib
_CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "IDEOGRAPHIC", "FULLWIDTH")
_DEEPEST = 50  # frames
_FONT: ContextVar[str] = ContextVar("font", default=SANS)
_LAST_RESORT = "Last Resort"  # has a box for every character
_SIGNS = {"ᵀ": r"^{\mathsf{T}}", "·": r"\cdot ", "…": r"\ldots ", "α": r"\alpha ", "Σ": r"\Sigma "}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_FORMULA_PARTS = re.compile(
    r"""(?P<index>[\^_]\w+)
    |(?P<word>[A-Za-z]{2,}(?:[ ][a-z]{2,})*)(?P<apart>[ ](?=[A-Z]))?
    |√(?P<root>\d+)
    |(?P<sign>[ᵀ·…αΣ])""",
    re.VERBOSE,
)
_RC_PARAMS: dict[Any, Any] = {
    "font.sans-serif": [SANS],
    "font.size": TEXT_SIZE,
    "text.color": INK,
    "text.parse_math": False,  # a token such as $x$ is literal text
    "axes.labelsize": TEXT_SIZE,
    "axes.titlesize": TITLE_SIZE,
    "axes.titlelocation": "left",
    "axes.prop_cycle": cycler(color=CYCLE),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "xtick.labelsize": TEXT_SIZE,
    "ytick.labelsize": TEXT_SIZE,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.0,
    "ytick.major.size": 2.0,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
    "legend.fontsize": SMALL_SIZE,
    "legend.title_fontsize": SMALL_SIZE,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.0,
    "figure.dpi": 150.0,
    "savefig.dpi": 300.0,
    "svg.hashsalt": "attnviz",  # the same figure gives the same file
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
}


def weight_colors() -> Colormap:
    """Return the colormap of weights, white at 0 (devon; Crameri 2018, doi:10.5281/zenodo.1243862).

    It is perceptually uniform, also in gray and with every kind of color vision.
    """
    colors: Colormap = cm.devon_r
    return colors


@cache
def neutral_colors() -> Colormap:
    """Return the colormap of weights that say little about the text: white at 0, gray."""
    return LinearSegmentedColormap.from_list("neutral", ["#ffffff", "#9a9a9a"])


def value_colors() -> Colormap:
    """Return the colormap of signed numbers, white at 0 (vik; Crameri 2018)."""
    colors: Colormap = cm.vik
    return colors


@contextmanager
def style(texts: Iterable[str] = (), *, font: str | None = None) -> Iterator[None]:
    """Set the rcParams of attnviz within a `with` block, for your figures.

    Settings from outside, such as a matplotlibrc, have no effect inside, and nothing changes
    outside. Text is literal, also between dollar signs, because tokens may contain them. Label a
    logarithmic axis without mathtext: `ax.xaxis.set_major_formatter(lambda x, _: power(x))`, with
    `attnviz.figures.style.power`.

    Parameters
    ----------
    texts : iterable of str, optional
        The texts that will be drawn. Installed fonts are added for characters that the default font
        lacks.
    font : str, optional
        An installed font, such as "Arial", for all figures that attnviz draws within the block.

    Raises
    ------
    InputError
        The font is not installed.
    """
    if font is not None:
        _expect_installed(font)
    chosen = _FONT.get() if font is None else font
    # The backend of a notebook changes settings when it is loaded: they must outlast this block.
    plt.draw_if_interactive()  # type: ignore[no-untyped-call]
    # In an SVG the generic name stands for a font of the reader, if the default font is missing.
    others = [SANS] if chosen != SANS else []
    family = [chosen, *others, *fallback_fonts(frozenset("".join(texts))), "sans-serif"]
    with mpl.rc_context(), _using(chosen):
        mpl.rcdefaults()
        mpl.rcParams.update({**_RC_PARAMS, "font.family": family})
        yield


def main_font() -> str:
    """Return the font of the figures that are drawn."""
    return _FONT.get()


@contextmanager
def _using(font: str) -> Iterator[None]:
    token = _FONT.set(font)
    try:
        yield
    finally:
        _FONT.reset(token)


def _expect_installed(font: str) -> None:
    names = {entry.name for entry in fm.fontManager.ttflist}
    if font not in names and _add_new_fonts():
        names = {entry.name for entry in fm.fontManager.ttflist}
    if font not in names:
        hint = did_you_mean(font, names) or "Install it, or name one of matplotlib's fonts."
        raise InputError(f"The font {font!r:.60} is not installed. {hint}")


def fallback_fonts(characters: frozenset[str]) -> tuple[str, ...]:
    """Return installed font families with the characters that the default font lacks.

    Warns
    -----
    AttnvizWarning
        No installed font has a character.
    """
    families, missing = _fallback(characters)
    if missing:
        warnings.warn(
            f"No installed font has {missing[:8]}, drawn as boxes in png and pdf. Install one that "
            f"has them, for example {_font_for(missing[0])}, or write svg.",
            AttnvizWarning,
            stacklevel=_outside(),
        )
    return families


def _font_for(character: str) -> str:
    """Return the name of a free font for the script of a character.

    >>> _font_for("火"), _font_for("ع"), _font_for("🍕")
    ('Noto Sans CJK', 'Noto Sans Arabic', 'Noto Emoji')
    """
    if unicodedata.category(character) in ("So", "Sk", "Mn"):
        return "Noto Emoji"
    script = unicodedata.name(character, "SYMBOLS").split()[0]
    return f"Noto Sans {'CJK' if script in _CJK else script.title()}"


def _outside() -> int:
    """Return the stack level of the code that called attnviz, for a warning of the caller."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and level < _DEEPEST:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in ("attnviz", "contextlib"):
            return level
        frame, level = frame.f_back, level + 1
    return 1


@cache
def _fallback(characters: frozenset[str]) -> tuple[tuple[str, ...], str]:
    missing = {ord(c) for c in characters if c.isprintable()} - _characters(fm.findfont(SANS))
    families = _covering(missing)
    if missing and _add_new_fonts():
        families += _covering(missing)
    if missing:
        fonts = fm.fontManager.ttflist
        families += [font.name for font in fonts if _LAST_RESORT in font.name]
    return tuple(dict.fromkeys(families)), "".join(map(chr, sorted(missing)))


def _covering(missing: set[int]) -> list[str]:
    """Return fonts that have some of the characters, and take those out of `missing`."""
    families = []
    fonts = sorted(fm.fontManager.ttflist, key=lambda font: (font.style != "normal", font.name))
    for font in fonts if missing else ():
        if _LAST_RESORT not in font.name and (covered := missing & _characters(font.fname)):
            missing -= covered
            families.append(font.name)
    return families


@cache
def _add_new_fonts() -> bool:
    """Add the fonts that were installed after matplotlib listed them; return whether any was."""
    known = {font.fname for font in fm.fontManager.ttflist}
    new = [path for path in fm.findSystemFonts() if path not in known]
    for path in new:
        with contextlib.suppress(OSError, RuntimeError):  # a damaged font
            fm.fontManager.addfont(path)
    return bool(new)


@cache
def _characters(path: str) -> frozenset[int]:
    try:
        return frozenset(fm.get_font(path).get_charmap())
    except (OSError, RuntimeError):  # a damaged font, or one without outlines
        return frozenset()


def as_math(formula: str) -> str:
    r"""Return a formula as mathtext: words are upright, indices after ^ and _ raised or lowered.

    >>> as_math("softmax(Q Kᵀ / √32)")
    '$\\mathrm{softmax}(Q K^{\\mathsf{T}} / \\sqrt{32})$'
    >>> as_math("X W^Q + b^Q")
    '$X W^{Q} + b^{Q}$'
    """
    return f"${_FORMULA_PARTS.sub(_as_math_part, formula)}$"


def _as_math_part(match: re.Match[str]) -> str:
    if index := match["index"]:
        return f"{index[0]}{{{index[1:]}}}"
    if word := match["word"]:
        upright = word + " " * bool(match["apart"])
        return rf"\mathrm{{{upright}}}".replace(" ", r"\ ")
    if root := match["root"]:
        return rf"\sqrt{{{root}}}"
    return _SIGNS[match["sign"]]


def power(number: float) -> str:
    """Return a number in powers of ten, for captions and the labels of logarithmic axes.

    >>> power(1.6e-6), power(1000.0), power(float("nan"))
    ('2·10⁻⁶', '10³', 'nan')
    """
    if not math.isfinite(number) or not number:
        return f"{number:g}"
    digits, exponent = f"{number:.0e}".split("e")
    power_of_ten = f"10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    return power_of_ten if digits == "1" else f"{digits}·{power_of_ten}"
