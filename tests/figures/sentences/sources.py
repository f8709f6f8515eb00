"""Where sentences stand: what commands print, and the titles and captions of figures."""

from functools import cache

from golden.goldens import DATA, _read

import attnviz

SENTENCES = ("headline", "summary", "conclusion")
LISTS = ("notes", "hints")


@cache
def printed(name):
    """Return what a command printed as JSON, with all arrays."""
    return _read(DATA / "commands" / f"{name}.json")["data"]


def sentences_of_json(data):
    """Yield the sentences of what a command printed."""
    yield from (data[key] for key in SENTENCES if data.get(key))
    for key in LISTS:
        yield from data.get(key, ())
    for report in (data.get("agreement"), *data.get("agreements", ())):
        if report:
            yield report["summary"]


@cache
def saved(name):
    return attnviz.load_result(DATA / "saved" / f"{name}.safetensors")


@cache
def drawn(name):
    """Return the stored texts of a figure."""
    return _read(DATA / "figures" / f"{name}.json")


def lines_of_figure(name):
    """Yield the lines of a stored figure in groups: those of one style, then those of axes."""
    figure = drawn(name)
    yield from figure["texts"].values()
    for axes in figure["axes"]:
        for part in ("titles", "labels", "texts", "legend"):
            yield from axes[part].values()
