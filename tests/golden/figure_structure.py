"""The structure of a figure: positions, texts, artists, and checksums of their data."""

from collections import Counter

import numpy as np
from matplotlib.collections import Collection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text


def structure(figure):
    """Return the structure of a figure in JSON types."""
    figure.draw_without_rendering()
    return {
        "size": _rounded(figure.get_size_inches()),
        "texts": _texts([*figure.texts, *(a for a in figure.artists if isinstance(a, Text))]),
        "artists": _artists([*figure.lines, *figure.patches, *figure.images]),
        "axes": [_axes(axes) for axes in _all_axes(figure.axes)],
    }


def _all_axes(axes_list):
    for axes in axes_list:
        yield axes
        yield from _all_axes(axes.child_axes)


def _axes(axes):
    artists = [
        artist
        for artist in axes.get_children()
        if artist not in (*axes.spines.values(), axes.patch)
    ]
    titles = (axes.title, axes._left_title, axes._right_title)
    return {
        "place": _rounded(axes.get_position().bounds),
        "visible": axes.axison,
        "titles": _texts(titles),
        "labels": _texts([axes.xaxis.label, axes.yaxis.label]),
        "x limits": _significant(axes.get_xlim()),
        "y limits": _significant(axes.get_ylim()),
        "x ticks": _ticks(axes.xaxis),
        "y ticks": _ticks(axes.yaxis),
        "texts": _texts(artist for artist in axes.texts if artist not in titles),
        "legend": _texts(axes.get_legend().get_texts()) if axes.get_legend() else {},
        "artists": _artists(artist for artist in artists if not isinstance(artist, Text)),
    }


def _texts(texts):
    """Return the visible texts by size, color and weight."""
    by_style = {}
    for text in texts:
        if text.get_visible() and text.get_text():
            color, weight = to_hex(text.get_color()), text.get_fontweight()
            style = f"{text.get_fontsize():.4g} {color} {weight}"
            by_style.setdefault(style, []).append(text.get_text())
    return by_style


def _ticks(axis):
    labels = [label.get_text() for label in axis.get_ticklabels() if label.get_visible()]
    return labels if any(labels) else len(labels)


def _artists(artists):
    """Return the count, colors and data summary of each artist type."""
    by_type = {}
    for artist in artists:
        summary = by_type.setdefault(
            type(artist).__name__, {"count": 0, "colours": Counter(), "data": []}
        )
        summary["count"] += 1
        summary["colours"].update(_colors(artist))
        summary["data"] += [_data(artist)]
    return {name: _summarize(summary) for name, summary in by_type.items()}


def _summarize(summary):
    data = [item for item in summary["data"] if item[0]]
    if len(data) > 8:
        sums, maxima = zip(*(item[1:] for item in data), strict=True)
        data = [(f"{len(data)} together", sum(sums), max(maxima))]
    descriptions = [f"{size}, sum {total:#.5g}, most {maxima:#.5g}" for size, total, maxima in data]
    return {"count": summary["count"], "colours": dict(summary["colours"]), "data": descriptions}


def _colors(artist):
    if isinstance(artist, AxesImage | QuadMesh):
        return [f"{artist.get_cmap().name} {' to '.join(f'{x:.5g}' for x in artist.get_clim())}"]
    if isinstance(artist, Collection):
        colors = [*artist.get_facecolors(), *artist.get_edgecolors()]
    elif isinstance(artist, Patch):
        colors = [artist.get_facecolor(), artist.get_edgecolor()]
    else:
        colors = [artist.get_color()] if isinstance(artist, Line2D) else []
    return [to_hex(color, keep_alpha=True) for color in colors]


def _data(artist):
    """Return the size of an artist's data, the sum of absolute values and their maximum."""
    if isinstance(artist, AxesImage | QuadMesh):
        data = artist.get_array()
    elif isinstance(artist, Collection):
        paths = [path.vertices for path in artist.get_paths()]
        data = np.concatenate([np.ravel(points) for points in (*paths, artist.get_offsets())])
    elif isinstance(artist, Line2D):
        data = np.asarray(artist.get_xydata(), float)
    elif isinstance(artist, Patch):
        data = artist.get_path().vertices @ artist.get_patch_transform().get_matrix()[:2, :2].T
        data = data + artist.get_patch_transform().get_matrix()[:2, 2]
    else:
        return "", 0.0, 0.0
    data = np.ma.filled(np.ma.asarray(data, dtype=float), np.nan)
    data = np.abs(np.where(np.isfinite(data), data, 0.0))
    return "×".join(map(str, data.shape)), data.sum(), data.max(initial=0.0)


def _rounded(numbers):
    return [round(float(number), 3) + 0.0 for number in numbers]


def _significant(numbers):
    return [float(f"{number:.6g}") for number in numbers]
