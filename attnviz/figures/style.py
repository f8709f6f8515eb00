"""How figures look: sizes, colours and fonts, applied only while one of ours is drawn."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import matplotlib as mpl
import matplotlib.font_manager as fm
from cmcrameri import cm
from cycler import cycler
from matplotlib.colors import Colormap

from attnviz.errors import AttnvizWarning

MM = 1 / 25.4  # inches
COLUMN_WIDTH, FULL_WIDTH = 89.0, 183.0  # mm; what journals print in one and in two columns

# Of lines and bars, told apart with every kind of colour vision: the weights' blue first.
CYCLE = ("#34508f", "#d1495b", "#e3a02f", "#2f8f7a", "#8c8c8c", "#8a6fb0")

TEXT_SIZE, SMALL_SIZE, TITLE_SIZE = 7.0, 6.0, 9.0  # points
INK, MUTED, FAINT, ACCENT, ALARM = "#1a1a1a", "#5c5c5c", "#d5d5dd", "#d1495b", "#b00020"
SANS = "DejaVu Sans"  # ships with matplotlib
_LAST_RESORT = "Last Resort"  # draws a box for every character there is
_OURS: dict[Any, Any] = {
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


def weight_colours() -> Colormap:
    """Return the colours for weights, white at 0 (devon; Crameri 2018, doi:10.5281/zenodo.1243862).

    Perceptually uniform, and read alike with every kind of colour vision and in grey.
    """
    colours: Colormap = cm.devon_r
    return colours


def value_colours() -> Colormap:
    """Return the colours for numbers of both signs, white at 0 (vik; Crameri 2018)."""
    colours: Colormap = cm.vik
    return colours


@contextmanager
def style(texts: Iterable[str] = ()) -> Iterator[None]:
    """Draw in attnviz' rcParams, with fonts that have what `texts` need, while this context lasts.

    For figures of your own beside those of attnviz. Nothing changes outside of the context, and
    nothing that is set outside, as in a matplotlibrc, changes what is drawn inside. Text is
    literal, also between dollars, as tokens need it; so give a logarithmic axis labels without:
    `ax.xaxis.set_major_formatter(lambda x, _: power(x))`, with `attnviz.figures.formulas.power`.
    """
    # In an SVG the generic name stands for the reader's own font where ours is missing.
    family = [SANS, *fallback_fonts(frozenset("".join(texts))), "sans-serif"]
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**_OURS, "font.family": family})
        yield


def fallback_fonts(characters: frozenset[str]) -> tuple[str, ...]:
    """Return installed font families that have the characters which our font lacks.

    Warns of characters that no installed font has.
    """
    families, missing = _fallback(characters)
    if missing:
        warnings.warn(
            f"No installed font has {missing[:8]}, drawn as boxes in png and pdf. Install one that "
            "has them, for example Noto Sans CJK, or write svg.",
            AttnvizWarning,
            stacklevel=4,
        )
    return families


@cache
def _fallback(characters: frozenset[str]) -> tuple[tuple[str, ...], str]:
    missing = {ord(c) for c in characters if c.isprintable()} - _characters(fm.findfont(SANS))
    families = []
    fonts = sorted(fm.fontManager.ttflist, key=lambda font: (font.style != "normal", font.name))
    for font in fonts if missing else ():
        if _LAST_RESORT not in font.name and (found := missing & _characters(font.fname)):
            missing -= found
            families.append(font.name)
    if missing:
        families += [font.name for font in fonts if _LAST_RESORT in font.name]
    return tuple(dict.fromkeys(families)), "".join(map(chr, sorted(missing)))


@cache
def _characters(path: str) -> frozenset[int]:
    try:
        return frozenset(fm.get_font(path).get_charmap())
    except (OSError, RuntimeError):  # a damaged font, or one without outlines
        return frozenset()
