"""Measure attnviz beside the obvious way of doing the same, alternating in one run.

Every time is a ratio: what it is on another machine is another matter, but what it is compared
with has been measured there too.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

app = typer.Typer(
    help=__doc__, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False
)
Kind = Literal["bert", "llama"]
Lengths = Annotated[list[int], typer.Option(help="Lengths to measure.")]


@app.callback()
def main() -> None:
    """Choose what to measure."""


@app.command()
def startup(rounds: int = 7) -> None:
    """A cold `attnviz heatmap` beside the bare minimum of the same work."""
    from benchmarks.startup import measure

    measure(rounds)


@app.command()
def stream(tokens: Lengths = [8192, 102400], rounds: int = 3) -> None:  # noqa: B006
    """One causal head of 64 features, streamed, beside the fused attention that tells its lse.

    One thread, CPU time; memory is what a process of its own grows by.
    """
    from benchmarks.stream import measure

    measure(tokens, rounds)


@app.command()
def render(
    tokens: Annotated[int, typer.Option(help="Queries and keys of each head.")] = 64,
    rounds: int = 5,
    seaborn_rounds: Annotated[int, typer.Option(help="Turns of seaborn, minutes each.")] = 1,
) -> None:
    """All 144 heads in one figure, beside a heatmap of seaborn for each, and an imshow for each.

    From the weights to PNG, SVG and PDF; CPU time.
    """
    from benchmarks.render import measure

    measure(tokens, rounds, seaborn_rounds)


@app.command()
def survey(
    corpus: Annotated[Path, typer.Argument(help="A file of texts, as for attnviz survey.")],
    sentences: int = 2000,
    rounds: int = 3,
) -> None:
    """Every head on many sentences, beside the obvious loop over them; and memory as they grow.

    Wall time, with as many threads as torch takes.
    """
    from benchmarks.survey import measure

    measure(corpus, sentences, rounds)


@app.command()
def capture(
    tokens: Lengths = [512, 2048],  # noqa: B006
    model: Annotated[Kind, typer.Option(help="Its shape; the weights are random.")] = "bert",
    layers: int = 12,
    rounds: int = 5,
    slow: Annotated[bool, typer.Option(help="BertViz also where it takes minutes.")] = False,
    patience: Annotated[float, typer.Option(help="Seconds for the memory of one way.")] = 600,
) -> None:
    """Every head of a whole model, beside the model alone and what other tools do.

    CPU time; memory is what a process of its own grows by over the loaded model.
    """
    from benchmarks.capture import measure

    measure(tokens, model, layers, rounds, slow=slow, patience=patience)


@app.command()
def html(
    rounds: Annotated[int, typer.Option(help="How often each page is opened.")] = 5,
    patience: Annotated[float, typer.Option(help="Seconds for writing or drawing a page.")] = 60,
) -> None:
    """The interactive view beside BertViz' two, on the same weights, in the same Chromium.

    Bytes, seconds until it is drawn and until it answers the pointer, elements.
    """
    from benchmarks.html import measure

    measure(rounds, patience)


@app.command()
def gpu(
    tokens: Annotated[int, typer.Option(help="Queries and keys.")] = 131_072,
    rounds: int = 5,
    tilings: Annotated[bool, typer.Option(help="Also other sizes of tiles.")] = False,
) -> None:
    """One causal layer of Llama 3.1 8B's shape on CUDA: its maps beside fused attention."""
    from benchmarks.gpu import run

    run(tokens, rounds=rounds, tilings=tilings)


@app.command(hidden=True)
def memory(command: str, way: list[str]) -> None:
    """Print by how many MB this process grows in one of the ways of a command."""
    print(import_module(f"benchmarks.{command}").memory(*way))


@app.command()
def faithfulness(
    sentences: Annotated[
        Path | None,
        typer.Argument(help="JSON: a list of word, sense and sentence; else the bundled ones"),
    ] = None,
) -> None:
    """Which attribution method names the words that moved a word, judged by interventions."""
    from faithfulness import judge_all, read, show

    given = read(sentences)
    console = Console()
    wide = Console(width=max(console.width, 150))
    show(judge_all(given), f"{', '.join(given)} in {sentences or 'the sentences of senses'}", wide)


if __name__ == "__main__":
    app()
