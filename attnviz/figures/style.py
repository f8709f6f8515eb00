"""How figures look: sizes, colors, fonts and formulas, applied only while attnviz draws."""

from __future__ import annotations

import contextlib
import inspect
import math
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import matplotlib as mpl
import matplotlib.font_manager as fm
import matplotlib.pyplot as plt
import numpy as np
from cmcrameri import cm
from cycler import cycler
from matplotlib.colors import Colormap, LinearSegmentedColormap, ListedColormap, to_rgba
from matplotlib.typing import ColorType

from attnviz.errors import AttnvizWarning, InputError, did_you_mean

# The sizes that all figures share, in inches unless stated otherwise.
MM = 1 / 25.4
COLUMN_WIDTH, FULL_WIDTH = 89.0, 183.0  # mm: one and two columns of a journal
WIDE = 5.0  # figures from this width on have panels side by side
MARGIN = 0.06  # around a figure
GAP = 0.12  # between panels
CAPTION_GAP = 0.1  # above a caption
AXIS_ROOM = 0.34  # the numbers and the name of an axis
BAR_ROOM = 0.6  # a color bar with its numbers and its label
BAR_GAP, BAR_WIDTH = 0.1, 0.08  # a color bar: distance from its panel, and width
TEXT_SIZE, SMALL_SIZE, TITLE_SIZE = 7.0, 6.0, 9.0  # points
NUMBER_SIZE = 5.5  # points: a number in a cell
SMALLEST_SIZE = 5.0  # points: smaller labels are left out
LEADING = 1.35  # line height over font size

SANS = "DejaVu Sans"  # ships with matplotlib
_CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "IDEOGRAPHIC", "FULLWIDTH")
LUMINANCE = 0.2126, 0.7152, 0.0722  # of red, green and blue, from 0 to 1
_DARK = 0.45  # luminance: text on a darker fill is light
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
_TICKS = {"labelsize": TEXT_SIZE, "major.width": 0.5, "major.size": 2.0, "major.pad": 2.0}
_COLORED: dict[Any, str] = {  # the settings, with the color of the theme that each has
    "figure.facecolor": "ground", "axes.facecolor": "ground", "axes.edgecolor": "muted",
    "text.color": "ink", "axes.labelcolor": "ink", "xtick.color": "ink", "ytick.color": "ink",
}  # fmt: skip
_RC_PARAMS: dict[Any, Any] = {
    "font.sans-serif": [SANS], "font.size": TEXT_SIZE,
    "text.parse_math": False,  # a token such as $x$ is literal text
    "axes.labelsize": TEXT_SIZE, "axes.titlesize": TEXT_SIZE, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "figure.titlesize": TITLE_SIZE, "figure.titleweight": "bold",
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.5,
    **{f"{axis}tick.{name}": size for axis in "xy" for name, size in _TICKS.items()},
    "legend.fontsize": SMALL_SIZE, "legend.title_fontsize": SMALL_SIZE, "legend.frameon": False,
    "lines.linewidth": 1.2, "lines.markersize": 3.0, "figure.dpi": 150.0, "savefig.dpi": 300.0,
    "svg.hashsalt": "attnviz",  # the same figure gives the same file
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42, "ps.fonttype": 42,
}  # fmt: skip
_SIZE = re.compile(r"size$|width$|\.pad$").search  # of the names of what `style` enlarges


@dataclass(frozen=True)
class Theme:
    """The colors of figures on one background.

    Colormaps of weights begin with the background and are perceptually uniform, also in gray and
    with every kind of color vision (devon or oslo; Crameri 2018, doi:10.5281/zenodo.1243862).
    """

    ground: str  # the background
    ink: str  # text and lines
    muted: str  # text beside them
    faint: str  # lines behind them
    gray: str  # what says nothing about words
    claim: str  # only what the title says, always with a second sign
    sides: tuple[str, ...]  # fills and lines of the first side, the second, a third and a fourth
    side_text: tuple[str, ...]  # words in these colors
    side_pale: tuple[str, ...]  # areas in these colors
    alarm: str  # a verdict that is not "verified"
    masked: str  # cells of keys that a query may not attend to
    cycle: tuple[str, ...]  # lines and bars; the first four differ with every color vision
    roles: Mapping[str, str]  # of heads, in every figure and page
    weights: Colormap
    neutral: Colormap  # of weights that say little about the text

    @property
    def values(self) -> Colormap:
        """The colors of signed numbers: from the second side over the background to the first."""
        ends = self.sides[1], self.ground, self.sides[0]
        return LinearSegmentedColormap.from_list("sides", ends)

    def readable_on(self, fill: ColorType) -> str:
        """Return the color of text on a fill: the background's or that of ink."""
        choose = max if _luminance(fill) < _DARK else min
        return choose(self.ink, self.ground, key=_luminance)

    def role(self, name: str) -> str:
        """Return the color of a role of heads."""
        return self.roles.get(_ALIKE.get(name, name), self.muted)


def _luminance(color: ColorType) -> float:
    return float(np.dot(to_rgba(color)[:3], LUMINANCE))


def theme_on(ground: ColorType) -> ThemeName | None:
    """Return the theme of figures with a background; None if it is transparent."""
    if to_rgba(ground)[3] == 0:
        return None
    return "dark" if _luminance(ground) < _DARK else "light"


def _on_ground(colors: Colormap, ground: str) -> Colormap:
    """Return colors, brighter by what turns the first, the darkest, into the ground."""
    table = colors(np.linspace(0, 1, colors.N))[:, :3]
    light = ((table - table[0]) / (1 - table[0])).clip(0)
    base = np.array(to_rgba(ground)[:3])
    return ListedColormap(base + (1 - base) * light, f"{colors.name} on {ground}")


# Roles of heads with the color of another: patches nearby are as the previous token, and so on.
_ALIKE = {
    "previous token": "previous", "next token": "next", "own token": "itself", "same token": "same",
    "name mover": "mover", "subject inhibition": "inhibition",
    "rests on the first token": "first", "rests on special tokens": "special",
    "rests on the silence": "first", "neighboring patches": "previous", "same row": "next",
    "own patch": "itself", "same column": "same", "nearby frames": "previous",
    "own position": "itself", "follows the speech": "induction",
}  # fmt: skip
LIGHT = Theme(
    ground="white", ink="#1a1a1a", muted="#5c5c5c", faint="#d5d5dd", gray="#8f8f8f",
    claim="#c4122f", sides=("#d9720f", "#3567ad", "#1f8a73", "#7a1f6a"),
    side_text=("#a84e06", "#28528f", "#16695a", "#7a1f6a"),
    side_pale=("#f6dcc1", "#cfdcee", "#cbe6df", "#ecd6e7"), alarm="#b00020",
    masked="#eeeef2", weights=cm.devon_r,
    cycle=(
        "#34508f", "#b0640a", "#e3a02f", "#2f8f7a", "#8c8c8c", "#8a6fb0",
        "#4fa3d1", "#7d8f2f", "#c77fb0", "#5b4a42", "#1f6f5c",
    ),
    roles={
        "previous": "#24508f", "next": "#6fb1e0", "same": "#e0b83a", "induction": "#1f8a73",
        "itself": "#1a1a1a", "first": "#c8c8c8", "special": "#9a9a9a", "punctuation": "#8a6fb0",
        "retrieval": "#7a1f6a", "mover": "#c77fb0", "inhibition": "#6b5a52",
    },
    neutral=LinearSegmentedColormap.from_list("neutral", ["#ffffff", "#9a9a9a"]),
)  # fmt: skip
_NIGHT = "#14161a"
DARK = Theme(
    ground=_NIGHT, ink="#ececec", muted="#a6a8ad", faint="#3b3f47", gray="#85888f",
    claim="#ff6f85", sides=("#f0a04b", "#7fa9ee", "#5cc4ab", "#e59ad2"),
    side_text=("#f3ae66", "#94b7f2", "#74d0ba", "#eab0db"),
    side_pale=("#4a3420", "#26364f", "#1f4038", "#452a40"), alarm="#ff6b6b",
    masked="#24272d", weights=_on_ground(cm.oslo, _NIGHT),
    cycle=(
        "#8fa8e8", "#d99468", "#f0bd62", "#5cc4ab", "#b4b4b4", "#b9a2dd",
        "#7cc4ec", "#b0c25c", "#e5a8d2", "#b3a098", "#57a893",
    ),
    roles={
        "previous": "#4f86d6", "next": "#a8d4f2", "same": "#e0b83a", "induction": "#5cc4ab",
        "itself": "#ececec", "first": "#565a63", "special": "#85888f", "punctuation": "#b9a2dd",
        "retrieval": "#c06bb0", "mover": "#e5a8d2", "inhibition": "#b3a098",
    },
    neutral=LinearSegmentedColormap.from_list("neutral, dark", [_NIGHT, "#9a9a9a"]),
)  # fmt: skip
ThemeName: TypeAlias = Literal["light", "dark"]
_THEMES: dict[str, Theme] = {"light": LIGHT, "dark": DARK}
Context: TypeAlias = Literal["paper", "notebook", "talk", "poster"]
_CONTEXTS = {"paper": 1.0, "notebook": 1.25, "talk": 1.875, "poster": 2.5}  # ratios of seaborn
_CHOSEN: ContextVar[tuple[str, Theme, float | None]] = ContextVar(
    "chosen", default=(SANS, LIGHT, None)
)


def theme() -> Theme:
    """Return the colors of the figures that are drawn."""
    return _CHOSEN.get()[1]


def text_scale() -> float:
    """Return by how much text, lines and marks are larger than in print."""
    return _CHOSEN.get()[2] or 1.0


# Weights over an image: below even weights, even (white), and above. They are light in both themes,
# because the image shades them.
IMAGE_COLORS = LinearSegmentedColormap.from_list(
    "over images", [(0.0, "#a4c6df"), (0.5, "#ffffff"), (1.0, LIGHT.sides[0])]
)


@contextmanager
def style(
    texts: Iterable[str] = (),
    *,
    font: str | None = None,
    theme: ThemeName | None = None,
    context: Context | None = None,
    scale: float | None = None,
) -> Iterator[None]:
    """Set the rcParams of attnviz within a `with` block, for your figures.

    Of the settings from outside, such as a matplotlibrc, only a larger font size has an effect
    inside, and nothing changes outside. Text is literal, also between dollar signs, because tokens
    may contain them.

    Parameters
    ----------
    texts : iterable of str, optional
        The texts that will be drawn. Installed fonts are added for characters that the default font
        lacks.
    font : str, optional
        An installed font, such as "Arial", for all figures that attnviz draws within the block.
    theme : {"light", "dark"}, optional
        The colors of these figures: on white, or on a dark background, as in a dark notebook. By
        default those of the block around, else on white.
    context : {"paper", "notebook", "talk", "poster"}, optional
        How large text, lines and marks are, as in seaborn. By default as matplotlib's font size
        (`rcParams["font.size"]`, which seaborn's contexts set), and at least as in a paper.
    scale : float, optional
        Enlarges text, lines and marks further; 1 is the size of the context.

    Raises
    ------
    InputError
        The font is not installed, there is no such theme, or the scale is not from 0.5 to 5.

    Examples
    --------
    >>> import attnviz
    >>> import matplotlib.pyplot as plt
    >>> result = attnviz.attend("the train left the station")
    >>> with attnviz.plot.style(theme="dark"):
    ...     axes = attnviz.plot.heatmap(result, layer=2, head=8)
    """
    with drawing(texts, font=font, theme=theme, context=context, scale=scale):
        larger = {name: size * text_scale() for name, size in _RC_PARAMS.items() if _SIZE(name)}
        mpl.rcParams.update(larger)
        yield


@contextmanager
def drawing(
    texts: Iterable[str],
    *,
    font: str | None = None,
    theme: ThemeName | None = None,
    context: Context | None = None,
    scale: float | None = None,
) -> Iterator[None]:
    """Set the rcParams as in `style`, with sizes of print: pages enlarge what is drawn."""
    if font is not None and font not in fm.get_font_names():
        _add_new_fonts()
        if font not in (names := fm.get_font_names()):
            hint = did_you_mean(font, names) or "Install it, or name one of matplotlib's fonts."
            raise InputError(f"The font {font!r:.60} is not installed. {hint}")
    if scale is not None and not 0.5 <= scale <= 5:
        raise InputError(f"The scale of text must be from 0.5 to 5, not {scale:g}.")
    outer_font, outer_colors, outer_size = _CHOSEN.get()
    if outer_size is None:  # the outermost block: the size is that of matplotlib's settings
        outer_size = max(1.0, mpl.rcParams["font.size"] / mpl.rcParamsDefault["font.size"])
    size = (outer_size if context is None else _CONTEXTS[context]) * (scale or 1.0)
    chosen = outer_font if font is None else font
    colors = outer_colors if theme is None else _THEMES[theme]
    # The backend of a notebook changes settings when it is loaded: they must outlast this block.
    plt.draw_if_interactive()  # type: ignore[no-untyped-call]
    # In an SVG the generic name stands for a font of the reader, if the default font is missing.
    others = [SANS] if chosen != SANS else []
    family = [chosen, *others, *fallback_fonts(frozenset("".join(texts))), "sans-serif"]
    token = _CHOSEN.set((chosen, colors, size))
    try:
        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update({**_RC_PARAMS, "font.family": family})
            mpl.rcParams.update({name: getattr(colors, of) for name, of in _COLORED.items()})
            mpl.rcParams["axes.prop_cycle"] = cycler(color=colors.cycle)
            yield
    finally:
        _CHOSEN.reset(token)


def main_font() -> str:
    """Return the font of the figures that are drawn."""
    return _CHOSEN.get()[0]


def fallback_fonts(characters: frozenset[str]) -> tuple[str, ...]:
    """Return installed fonts with the characters that the default font lacks; warn without one."""
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
    """Return the name of a free font for the script of a character."""
    if unicodedata.category(character) in ("So", "Sk", "Mn"):
        return "Noto Emoji"
    script = unicodedata.name(character, "SYMBOLS").split()[0]
    return f"Noto Sans {'CJK' if script in _CJK else script.title()}"


def _outside() -> int:
    """Return the stack level of the code that called attnviz, for a warning of the caller."""
    names = [one.frame.f_globals.get("__name__", "") for one in inspect.stack(0)]
    packages = enumerate(name.partition(".")[0] for name in names)
    return next((n for n, name in packages if name not in ("attnviz", "contextlib")), 1)


@cache
def _fallback(characters: frozenset[str]) -> tuple[tuple[str, ...], str]:
    missing = {ord(c) for c in characters if c.isprintable()} - _characters(fm.findfont(SANS))
    families = _covering(missing)
    if missing and _add_new_fonts():
        families += _covering(missing)
    if missing:
        families += [font.name for font in fm.fontManager.ttflist if _LAST_RESORT in font.name]
    return tuple(dict.fromkeys(families)), "".join(map(chr, sorted(missing)))


def _covering(missing: set[int]) -> list[str]:
    """Return fonts that have some of the characters, and take those out of `missing`."""
    families = []
    fonts = sorted(fm.fontManager.ttflist, key=lambda font: (font.style != "normal", font.name))
    for font in fonts if missing else ():
        is_drawn = _LAST_RESORT not in font.name and "Color" not in font.name
        if is_drawn and (covered := missing & _characters(font.fname)):
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
    r"""Return a formula as mathtext: words are upright, indices after ^ and _ raised or lowered."""
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
    """Return a number in powers of ten, for captions and the labels of logarithmic axes."""
    if not math.isfinite(number) or not number:
        return f"{number:g}"
    digits, exponent = f"{number:.0e}".split("e")
    power_of_ten = f"10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    return power_of_ten if digits == "1" else f"{digits}·{power_of_ten}"
