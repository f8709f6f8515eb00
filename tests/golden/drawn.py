"""What a figure is made of: places, texts, artists, and sums of what they show."""

from collections import Counter

import numpy as np
from matplotlib.collections import Collection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text


def structure(figure):
    """Return the structure of a figure in types that JSON knows."""
    figure.canvas.draw()
    return {
        "size": _rounded(figure.get_size_inches()),
        "texts": _texts(figure.texts),
        "artists": _artists([*figure.lines, *figure.patches, *figure.images]),
        "axes": [_axes(axes) for axes in _every(figure.axes)],
    }


def _every(some):
    for axes in some:
        yield axes
        yield from _every(axes.child_axes)


def _axes(axes):
    drawn = [
        each for each in axes.get_children() if each not in (*axes.spines.values(), axes.patch)
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
        "texts": _texts(each for each in axes.texts if each not in titles),
        "legend": _texts(axes.get_legend().get_texts()) if axes.get_legend() else {},
        "artists": _artists(each for each in drawn if not isinstance(each, Text)),
    }


def _texts(texts):
    """Return the texts that are seen, by size, colour and weight."""
    found = {}
    for each in texts:
        if each.get_visible() and each.get_text():
            colour, weight = to_hex(each.get_color()), each.get_fontweight()
            how = f"{each.get_fontsize():.4g} {colour} {weight}"
            found.setdefault(how, []).append(each.get_text())
    return found


def _ticks(axis):
    labels = [each.get_text() for each in axis.get_ticklabels() if each.get_visible()]
    return labels if any(labels) else len(labels)


def _artists(artists):
    """Return of each type of artist how many there are, in which colours, and what they show."""
    found = {}
    for each in artists:
        told = found.setdefault(type(each).__name__, {"count": 0, "colours": Counter(), "data": []})
        told["count"] += 1
        told["colours"].update(_colours(each))
        told["data"] += [_data(each)]
    return {name: _summed(told) for name, told in found.items()}


def _summed(told):
    data = [each for each in told["data"] if each[0]]
    if len(data) > 8:
        sums, most = zip(*(each[1:] for each in data), strict=True)
        data = [(f"{len(data)} together", sum(sums), max(most))]
    shown = [f"{size}, sum {total:#.5g}, most {most:#.5g}" for size, total, most in data]
    return {"count": told["count"], "colours": dict(told["colours"]), "data": shown}


def _colours(artist):
    if isinstance(artist, AxesImage | QuadMesh):
        return [f"{artist.get_cmap().name} {' to '.join(f'{x:.5g}' for x in artist.get_clim())}"]
    if isinstance(artist, Collection):
        colours = [*artist.get_facecolors(), *artist.get_edgecolors()]
    elif isinstance(artist, Patch):
        colours = [artist.get_facecolor(), artist.get_edgecolor()]
    else:
        colours = [artist.get_color()] if isinstance(artist, Line2D) else []
    return [to_hex(each, keep_alpha=True) for each in colours]


def _data(artist):
    """Return how large the data of an artist are, the sum of their absolutes and the largest."""
    if isinstance(artist, AxesImage | QuadMesh):
        data = artist.get_array()
    elif isinstance(artist, Collection):
        paths = [path.vertices for path in artist.get_paths()]
        data = np.concatenate([np.ravel(each) for each in (*paths, artist.get_offsets())])
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
    return [round(float(each), 3) + 0.0 for each in numbers]


def _significant(numbers):
    return [float(f"{each:.6g}") for each in numbers]
