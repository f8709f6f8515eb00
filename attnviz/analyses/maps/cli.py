"""The commands `heatmap` and `heads`: attention maps, of a sentence or of a book."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from attnviz.terminal import parse as typed
from attnviz.terminal.options import (
    Audio,
    Columns,
    Debug,
    Device,
    DeviceMap,
    DeviceName,
    Dtype,
    File,
    Force,
    Generate,
    Heads,
    Image,
    Json,
    Layer,
    Matrix,
    Mode,
    ModelName,
    OffloadFolder,
    Pair,
    Patch,
    Reading,
    Rows,
    Saved,
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def heatmap(
    text: Text = None,
    file: File = None,
    image: Image = None,
    audio: Audio = None,
    pair: Pair = None,
    target: Target = None,
    generate: Generate = None,
    saved: Saved = None,
    stack: Stack = None,
    layer: Layer = None,
    head: Heads = None,
    patch: Patch = None,
    matrix: Matrix = False,
    rows: Rows = None,
    cols: Columns = None,
    words: Words = True,
    special: SpecialTokens = Special.keep,
    find: Annotated[
        str | None,
        typer.Option(help="QUERY:KEY, two words: rank the heads by the weight between them."),
    ] = None,
    output: Annotated[Path | None, output_file("heatmap.png")] = None,
    force: Force = False,
    width: Width = 183.0,
    model: ModelName = None,
    device: DeviceName = Device.auto,
    device_map: DeviceMap = None,
    offload_folder: OffloadFolder = None,
    dtype: Dtype = None,
    truncate: Truncate = False,
    mode: Mode = Reading.auto,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Draw the attention map of one head, and all heads beside it.

    Without --layer and --head the head is drawn that relates the content words of the text most.
    What a query gives to the patches of an image is laid over the image. Of a long text an
    overview is drawn, and with --rows and --cols an exact part of it.
    """
    given = typed.given(text, image, audio, pair, target, generate, file, saved)
    path = typed.where(output, None if json else "heatmap.png", force=force, image=image)
    wanted = None if find is None else typed.two_words(find)
    over: dict[str, Any] = {"patch": typed.patch(patch), "matrix": matrix}
    part: dict[str, Any] = {
        "rows": typed.part(rows, "--rows"),
        "columns": typed.part(cols, "--cols"),
    }
    asked: dict[str, Any] = {"layers": None if layer is None else [layer], "heads": head or None}
    where = typed.place(device, dtype, device_map, offload_folder)
    run = given, model, where, truncate
    result = typed.attend(*run, mode=mode.value, **asked).stack(stack)

    from attnviz.analyses.maps.compute import attention_map, make_overview
    from attnviz.analyses.maps.heads import choose_head, find_heads, rank_heads
    from attnviz.analyses.maps.overlay import find_query
    from attnviz.terminal import console as report

    found = None if wanted is None else find_heads(result, query=wanted[0], key=wanted[1])
    ranking = rank_heads(result) if found is None else found.ranking
    shown, chosen, reason = choose_head(result, layer, head or None, ranking=ranking)
    whole = result
    if result.streamed and layer is None and any(part.values()):
        # What exact weights follow from is kept of layers that are named: now one can be.
        result = typed.attend(*run, mode=mode.value, layers=[shown], heads=chosen).stack(stack)
    how: dict[str, Any] = {"words": words, "special": special.value}
    drawn = attention_map(result, layer=shown, head=chosen, notes=reason, **part, **how)
    find_query(drawn, **over)

    def figure() -> Figure:
        from attnviz.analyses.maps.heatmap import heatmap as draw

        overview = make_overview(whole, **how) if reason else None
        axes = draw(drawn, overview=overview, width=width, **over)
        return cast("Figure", axes.get_figure(root=True))

    def tell() -> None:
        best = ranking if layer is None else ranking.of_layer(layer)
        report.console.print(drawn)
        report.console.print(found or best)

    return report.conclude(drawn, path, figure, tell, json=json, force=force)


def heads(
    text: Text = None,
    file: File = None,
    image: Image = None,
    audio: Audio = None,
    pair: Pair = None,
    target: Target = None,
    generate: Generate = None,
    saved: Saved = None,
    stack: Stack = None,
    layer: Layer = None,
    words: Words = True,
    special: SpecialTokens = Special.keep,
    output: Annotated[Path | None, output_file("heads.png")] = None,
    force: Force = False,
    width: Width = 183.0,
    model: ModelName = None,
    device: DeviceName = Device.auto,
    device_map: DeviceMap = None,
    offload_folder: OffloadFolder = None,
    dtype: Dtype = None,
    truncate: Truncate = False,
    mode: Mode = Reading.auto,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Draw the attention maps of all heads, of the whole model or of one layer."""
    given = typed.given(text, image, audio, pair, target, generate, file, saved)
    path = typed.where(output, None if json else "heads.png", force=force, image=image)
    kept = {"mode": mode.value, "layers": None if layer is None else [layer]}
    where = typed.place(device, dtype, device_map, offload_folder)
    result = typed.attend(given, model, where, truncate, **kept).stack(stack)

    from attnviz.analyses.maps.compute import head_maps
    from attnviz.analyses.maps.heads import rank_heads
    from attnviz.terminal import console as report

    maps = head_maps(result, layer=layer, words=words, special=special.value)

    def figure() -> Figure:
        from attnviz.analyses.maps.head_grid import heads as draw

        return draw(maps, width=width)

    def tell() -> None:
        ranking = rank_heads(result)
        report.console.print(ranking if layer is None else ranking.of_layer(layer))

    return report.conclude(maps, path, figure, tell, json=json, force=force)
