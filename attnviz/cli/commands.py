"""The commands. Heavy rooms are imported inside them, so that help comes at once."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from attnviz.cli import typed
from attnviz.cli.example import example
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
from attnviz.cli.senses import senses
from attnviz.cli.shift import shift

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    given = typed.given(text, image, audio, pair, target, generate)
    path = typed.where(output, None if json else "heatmap.png")
    wanted = None if find is None else typed.two_words(find)
    over: dict[str, Any] = {"patch": typed.patch(patch), "matrix": matrix}
    result = typed.attend(given, model, device, dtype, truncate).stack(stack)

    from attnviz.cli import report
    from attnviz.maps import make_map, make_overview
    from attnviz.metrics import choose_head, find_heads, rank_heads
    from attnviz.plot.overlay import find_query

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

    def tell() -> None:
        report.print_map(drawn)
        report.print_found(found) if found else report.print_ranking(ranking, layer=layer)

    return report.conclude(drawn, path, figure, tell, json=json)


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
    given = typed.given(text, image, audio, pair, target, generate)
    path = typed.where(output, None if json else "heads.png")
    result = typed.attend(given, model, device, dtype, truncate).stack(stack)

    from attnviz.cli import report
    from attnviz.maps import make_maps
    from attnviz.metrics import rank_heads

    maps = make_maps(result, layer=layer, words=words, special=special.value)

    def figure() -> Figure:
        from attnviz.plot import head_grid

        return head_grid(maps, width=width)

    def tell() -> None:
        report.print_ranking(rank_heads(result), layer=layer)

    return report.conclude(maps, path, figure, tell, json=json)


@app.command()
def steps(
    text: Text = None,
    image: Image = None,
    audio: Audio = None,
    pair: Pair = None,
    target: Target = None,
    generate: Generate = None,
    stack: Stack = None,
    layer: Layer = None,
    head: Annotated[
        int | None,
        typer.Option(
            help="Head, counted from 0.", show_default="the one that relates content words most"
        ),
    ] = None,
    word: Annotated[
        str | None,
        typer.Option(
            help="The word to follow, or one of its pieces; the#2 is the second “the”.",
            show_default="the first content word",
        ),
    ] = None,
    output: Annotated[Path | None, output_file("steps.png")] = None,
    width: Width = 183.0,
    model: ModelName = None,
    device: DeviceName = Device.auto,
    dtype: Dtype = None,
    truncate: Truncate = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Take one head apart: from X through Q, K, V, scores and weights to the output.

    One word is followed all the way, with shapes, real numbers and the agreement of every stage.
    """
    given = typed.given(text, image, audio, pair, target, generate)
    path = typed.where(output, None if json else "steps.png")
    result = typed.attend(given, model, device, dtype, truncate).stack(stack)

    from attnviz.cli import report
    from attnviz.cli.print_steps import print_steps
    from attnviz.dissection import make_steps

    taken = make_steps(result, layer=layer, head=head, word=word)

    def figure() -> Figure:
        from attnviz.plot import steps as draw

        return draw(taken, width=width)

    return report.conclude(taken, path, figure, lambda: print_steps(taken), json=json)


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
    given = typed.given(text, image, audio, pair, target, generate)
    result = typed.attend(given, model, device, dtype, truncate)

    from attnviz.cli import report
    from attnviz.storage import agreement_data

    if json:
        report.print_json({**asdict(result.provenance), **agreement_data(result.agreement)})
    else:
        report.print_stages(result)
    return report.finish(result.agreement, None, json=json)


app.command()(senses)
app.command()(shift)
app.command()(example)
app.command()(models)
