"""The commands. Heavy rooms are imported inside them, so that help comes at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from attnviz.cli.listing import models
from attnviz.cli.options import (
    Audio,
    Debug,
    Device,
    DeviceName,
    Dtype,
    Generate,
    Heads,
    Image,
    Json,
    Layer,
    Matrix,
    ModelName,
    Pair,
    Patch,
    Special,
    SpecialTokens,
    Stack,
    Target,
    Text,
    Truncate,
    Width,
    Words,
    output_file,
)
from attnviz.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnviz.records import AttentionMap, AttentionResult, HeadMaps

app = typer.Typer(
    name="attnviz",
    help="See, verify and explain attention in pretrained Hugging Face models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        print(f"attnviz {version_of('attnviz')}")
        raise typer.Exit


@app.command()
def heatmap(
    text: Text = None,
    image: Image = None,
    audio: Audio = None,
    pair: Pair = None,
    target: Target = None,
    generate: Generate = None,
    stack: Stack = None,
    layer: Layer = None,
    head: Heads = None,
    patch: Patch = None,
    matrix: Matrix = False,
    words: Words = True,
    special: SpecialTokens = Special.keep,
    find: Annotated[
        str | None,
        typer.Option(help="QUERY:KEY, two words: rank the heads by the weight between them."),
    ] = None,
    output: Annotated[Path | None, output_file("heatmap.png")] = None,
    width: Width = 183.0,
    model: ModelName = None,
    device: DeviceName = Device.auto,
    dtype: Dtype = None,
    truncate: Truncate = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Draw the attention map of one head, and all heads beside it.

    Without --layer and --head the head is drawn that relates the content words of the text most.
    What a query gives to the patches of an image is laid over the image.
    """
    given = _given(text, image, audio, pair, target, generate)
    path = _where(output, None if json else "heatmap.png")
    wanted = None if find is None else _two_words(find)
    over: dict[str, Any] = {"patch": _patch(patch), "matrix": matrix}
    result = _attend(given, model, device, dtype, truncate).stack(stack)

    from attnviz.cli import report
    from attnviz.maps import make_map, make_overview
    from attnviz.metrics import choose_head, find_heads, rank_heads
    from attnviz.plot.overlay import find_query
    from attnviz.storage import map_data

    found = None if wanted is None else find_heads(result, query=wanted[0], key=wanted[1])
    ranking = rank_heads(result) if found is None else found.ranking
    shown, chosen, reason = choose_head(result, layer, head or None, ranking=ranking)
    how: dict[str, Any] = {"words": words, "special": special.value}
    drawn = make_map(result, layer=shown, head=chosen, notes=reason, **how)
    find_query(drawn, **over)

    def figure() -> Figure:
        from attnviz.plot import heatmap as draw

        overview = make_overview(result, **how) if reason else None
        axes = draw(drawn, overview=overview, width=width, **over)
        return cast("Figure", axes.get_figure(root=True))

    _save(path, drawn, figure)
    if json:
        report.print_json(map_data(drawn))
    else:
        report.print_map(drawn)
        report.print_found(found) if found else report.print_ranking(ranking, layer=layer)
    return report.finish(result.agreement, path, json=json)


@app.command()
def heads(
    text: Text = None,
    image: Image = None,
    audio: Audio = None,
    pair: Pair = None,
    target: Target = None,
    generate: Generate = None,
    stack: Stack = None,
    layer: Layer = None,
    words: Words = True,
    special: SpecialTokens = Special.keep,
    output: Annotated[Path | None, output_file("heads.png")] = None,
    width: Width = 183.0,
    model: ModelName = None,
    device: DeviceName = Device.auto,
    dtype: Dtype = None,
    truncate: Truncate = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Draw the attention maps of all heads, of the whole model or of one layer."""
    given = _given(text, image, audio, pair, target, generate)
    path = _where(output, None if json else "heads.png")
    result = _attend(given, model, device, dtype, truncate).stack(stack)

    from attnviz.cli import report
    from attnviz.maps import make_maps
    from attnviz.metrics import rank_heads
    from attnviz.storage import map_data

    maps = make_maps(result, layer=layer, words=words, special=special.value)

    def figure() -> Figure:
        from attnviz.plot import head_grid

        return head_grid(maps, width=width)

    _save(path, maps, figure)
    if json:
        report.print_json(map_data(maps))
    else:
        report.print_ranking(rank_heads(result), layer=layer)
    return report.finish(result.agreement, path, json=json)


@app.command()
def verify(
    text: Text = None,
    image: Image = None,
    audio: Audio = None,
    pair: Pair = None,
    target: Target = None,
    generate: Generate = None,
    model: ModelName = None,
    device: DeviceName = Device.auto,
    dtype: Dtype = None,
    truncate: Truncate = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Recompute every head's attention and compare it with the model's own, stage by stage.

    Exit code 5 means that they differ, or that their agreement could not be proven.
    """
    given = _given(text, image, audio, pair, target, generate)
    result = _attend(given, model, device, dtype, truncate)

    from attnviz.cli import report
    from attnviz.storage import agreement_data

    if json:
        report.print_json({**asdict(result.provenance), **agreement_data(result.agreement)})
    else:
        report.print_stages(result)
    return report.finish(result.agreement, None, json=json)


app.command()(models)


def _where(output: Path | None, default: str | None) -> Path | None:
    """Return where to write, checked before anything slow is done; None where nothing is asked."""
    from attnviz.files import check_output

    chosen = output or (None if default is None else Path(default))
    return None if chosen is None else check_output(chosen)


def _given(
    text: str | None,
    image: Path | None,
    audio: Path | None,
    pair: str | None,
    target: str | None,
    generate: int | None,
) -> dict[str, Any]:
    """Return what the model is to read; refuse an empty text or no file before torch is loaded."""
    for name, words in (("text", text), ("--pair", pair), ("--target", target)):
        if words is not None and not words.strip():
            raise InputError(
                f"Expected a {name} with at least one word, got an empty one. Type a sentence."
            )
    for name, file in (("--image", image), ("--audio", audio)):
        if file is not None and not file.is_file():
            raise InputError(f"Expected a file for {name}, but there is no file {file}.")
    if text is None and image is None and audio is None:
        raise InputError("Expected a text, an --image or an --audio file, got none. Give one.")
    given = {"text": text, "image": image, "audio": audio, "pair": pair, "target": target}
    return {**given, "generate": generate}


def _patch(patch: str | None) -> tuple[int, int] | str | None:
    """Return (row, column) where a patch is given so, else the token."""
    row, comma, column = (part.strip() for part in (patch or "").partition(","))
    return (int(row), int(column)) if row.isdecimal() and column.isdecimal() and comma else patch


def _two_words(find: str) -> tuple[str, str]:
    query, colon, key = (part.strip() for part in find.partition(":"))
    if not (query and colon and key):
        raise InputError(
            f"Expected two words as QUERY:KEY, got {find!r}. For example: --find train:station."
        )
    return query, key


def _attend(
    given: dict[str, Any], model: str | None, device: Device, dtype: str | None, truncate: bool
) -> AttentionResult:
    from attnviz.models import attend, load

    loaded = load(model, device=device.value, dtype=dtype)
    result: AttentionResult = attend(**given, model=loaded, truncate=truncate)
    return result


def _save(path: Path | None, drawn: AttentionMap | HeadMaps, figure: Callable[[], Figure]) -> None:
    """Write the figure or the data, whichever the ending of `path` asks for."""
    from attnviz.files import DATA_SUFFIXES

    if path is None:
        return
    if path.suffix.lower() in DATA_SUFFIXES:
        from attnviz.storage import save_map

        save_map(drawn, path)
    else:
        import matplotlib.pyplot as plt

        from attnviz.plot import save_figure

        drawing = figure()
        save_figure(drawing, path)
        plt.close(drawing)
