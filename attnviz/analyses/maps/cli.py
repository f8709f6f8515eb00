"""The commands `heatmap` and `heads`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from attnviz.terminal.options import (
    ConsoleOptions,
    FigureOptions,
    InputOptions,
    Layer,
    RunOptions,
    SpecialTokens,
    Stack,
    Words,
    expect_in_text,
    option_groups,
    parse_index,
    parse_patch,
    parse_slice,
    parse_word_pair,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from attnviz.results import AttentionResult


@option_groups()
def heatmap(
    *,
    inputs: InputOptions,
    stack: Stack = None,
    layer: Annotated[
        list[int] | None,
        typer.Option(
            help="Layer, counted from 0. Repeat the option to average several layers.",
            show_default="chosen",
            parser=parse_index,
            metavar="<list[int]>",
        ),
    ] = None,
    head: Annotated[
        list[int] | None,
        typer.Option(
            help="Head, counted from 0. Repeat the option to average several heads.",
            show_default="the one that relates content words most; all of several layers",
            parser=parse_index,
            metavar="<list[int]>",
        ),
    ] = None,
    patch: Annotated[
        str | None,
        typer.Option(
            help="For an image: the query whose weights are drawn, a patch as ROW,COLUMN or a "
            "token.",
            show_default="[CLS], else the middle patch; for a text its last token",
        ),
    ] = None,
    matrix: Annotated[
        bool,
        typer.Option("--matrix", help="Draw queries × keys even if the keys are image patches."),
    ] = False,
    rows: Annotated[
        str | None,
        typer.Option(
            help="Part of the map as START:STOP, counted from 0: words, or tokens of a long text.",
            show_default="all",
        ),
    ] = None,
    cols: Annotated[
        str | None, typer.Option(help="The same for the columns.", show_default="all")
    ] = None,
    words: Words = True,
    special: SpecialTokens = "keep",
    find: Annotated[
        str | None,
        typer.Option(help="QUERY:KEY, two words. Rank the heads by the weight between them."),
    ] = None,
    figure: FigureOptions = FigureOptions("heatmap.png"),
    run: RunOptions,
    console: ConsoleOptions,
) -> int:
    """Draw the attention map of one head, with an overview of all heads.

    Without --layer and --head, the head that relates the content words of the text most is drawn.
    For an image, the weights from one query to the patches are laid over the image. A long text is
    drawn as an overview; --rows and --cols draw an exact part of it.
    """
    inputs = inputs.checked()
    path = figure.path(json=console.json, inputs=inputs)
    word_pair = None if find is None else parse_word_pair(find)
    if word_pair is not None:
        expect_in_text(word_pair, inputs)
    query_patch = parse_patch(patch)
    row_part, column_part = parse_slice(rows, "--rows"), parse_slice(cols, "--cols")
    run.expect_heads(inputs, layer or (), head or ())
    result = run.attend(inputs, layers=layer or None, heads=head or None).stack(stack)

    from attnviz.analyses.maps.compute import rank_heads
    from attnviz.analyses.maps.heatmap import draw_heatmap, select_map
    from attnviz.io.files import FIGURE_SUFFIXES
    from attnviz.terminal.console import report

    def attend_again(layers: Sequence[int], heads: tuple[int, ...]) -> AttentionResult:
        return run.attend(inputs, layers=layers, heads=heads).stack(stack)

    drawn = select_map(
        result,
        layer=layer or None,
        head=head or None,
        find=word_pair,
        patch=query_patch,
        matrix=matrix,
        rows=row_part,
        columns=column_part,
        words=words,
        special=special,
        overview=None if path and path.suffix.lower() in FIGURE_SUFFIXES else False,
        attend_again=attend_again,
    )
    ranking = drawn.ranking or rank_heads(result)

    def draw() -> Figure:
        return cast("Figure", draw_heatmap(drawn, **figure.appearance).get_figure(root=True))

    return report(
        drawn.map,
        drawn.map,
        drawn.matches or (ranking.of_layer(layer[0]) if layer and len(layer) == 1 else ranking),
        draw=draw,
        path=path,
        force=figure.force,
        json=console.json,
    )


@option_groups()
def heads(
    *,
    inputs: InputOptions,
    stack: Stack = None,
    layer: Layer = None,
    words: Words = True,
    special: SpecialTokens = "keep",
    figure: FigureOptions = FigureOptions("heads.png"),
    run: RunOptions,
    console: ConsoleOptions,
) -> int:
    """Draw the attention maps of all heads, of the whole model or of one layer."""
    inputs = inputs.checked()
    path = figure.path(json=console.json, inputs=inputs)
    run.expect_heads(inputs, [layer])
    result = run.attend(inputs, layers=None if layer is None else [layer]).stack(stack)

    from attnviz.analyses.maps.compute import head_maps, rank_heads
    from attnviz.terminal.console import report

    maps = head_maps(result, layer=layer, words=words, special=special)
    ranking = rank_heads(result)
    return report(
        maps,
        ranking if layer is None else ranking.of_layer(layer),
        draw=lambda: maps.plot(**figure.appearance),
        path=path,
        force=figure.force,
        json=console.json,
    )


COMMANDS = (heatmap, heads)
