"""Compare the speed and memory of attnviz with the straightforward alternative.

Both are measured alternately in the same run and reported as ratios, because absolute times depend
on the machine.
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
    """Choose a benchmark."""


@app.command()
def startup(rounds: int = 7) -> None:
    """Measure a cold start of `attnviz heatmap` against a minimal script."""
    from benchmarks.startup import measure

    measure(rounds)


@app.command()
def stream(tokens: Lengths = [8192, 102400], rounds: int = 3) -> None:  # noqa: B006
    """Stream one causal head with 64 features; compare with torch's fused attention.

    One thread, CPU time; memory is the growth of a separate process.
    """
    from benchmarks.stream import measure

    measure(tokens, rounds)


@app.command()
def render(
    tokens: Annotated[int, typer.Option(help="Queries and keys of each head.")] = 64,
    rounds: int = 3,
    seaborn_rounds: Annotated[int, typer.Option(help="Rounds of seaborn, of one layer.")] = 1,
) -> None:
    """Draw all 144 heads in one figure; compare with 144 imshow axes, and seaborn in one layer.

    CPU time from the weights to PNG, SVG and PDF.
    """
    from benchmarks.render import measure

    measure(tokens, rounds, seaborn_rounds)


@app.command()
def survey(
    corpus: Annotated[Path, typer.Argument(help="File of texts, as for attnviz survey.")],
    sentences: int = 2000,
    rounds: int = 3,
) -> None:
    """Survey every head on many sentences; compare with a simple loop, and measure memory growth.

    Wall-clock time, with torch's default number of threads.
    """
    from benchmarks.survey import measure

    measure(corpus, sentences, rounds)


@app.command()
def capture(
    tokens: Lengths = [512, 2048],  # noqa: B006
    model: Annotated[Kind, typer.Option(help="Architecture; the weights are random.")] = "bert",
    layers: int = 12,
    rounds: int = 5,
    slow: Annotated[bool, typer.Option(help="Run BertViz even if it takes minutes.")] = False,
    patience: Annotated[float, typer.Option(help="Time limit of a memory run, in seconds.")] = 600,
) -> None:
    """Capture every head of a whole model; compare with the model alone and with other tools.

    CPU time; memory is the growth of a separate process over the loaded model.
    """
    from benchmarks.capture import measure

    measure(tokens, model, layers, rounds, slow=slow, patience=patience)


@app.command()
def linear(tokens: Lengths = [16_384], rounds: int = 1) -> None:  # noqa: B006
    """Pool the maps of one Mamba-2 layer of a long text; compare with the model alone.

    CPU time; memory is the growth of a separate process over the loaded model.
    """
    from benchmarks.linear import measure

    measure(tokens, rounds)


@app.command()
def html(
    rounds: Annotated[int, typer.Option(help="Number of times each page is opened.")] = 5,
    patience: Annotated[float, typer.Option(help="Time limit per page, in seconds.")] = 60,
) -> None:
    """Compare the interactive view with the two BertViz views: same weights, same Chromium.

    Bytes, seconds until the page is drawn and until it responds to the pointer, elements.
    """
    from benchmarks.html import measure

    measure(rounds, patience)


@app.command()
def live(tokens: Lengths = [10, 30, 100], rounds: int = 9) -> None:  # noqa: B006
    """Run the bundled model in a page, on texts of these lengths; compare with PyTorch.

    One thread. The time of the page includes its check of the formula and the way to its worker.
    """
    from benchmarks.live import measure

    measure(tokens, rounds)


@app.command()
def gpu(
    tokens: Annotated[int, typer.Option(help="Queries and keys.")] = 131_072,
    rounds: int = 5,
    tilings: Annotated[bool, typer.Option(help="Also compare tile sizes.")] = False,
) -> None:
    """Measure the maps of one causal Llama 3.1 8B layer on CUDA against fused attention."""
    from benchmarks.gpu import run

    run(tokens, rounds=rounds, tilings=tilings)


@app.command()
def launches(
    tokens: Annotated[int, typer.Option(help="Length of the text for BERT-base.")] = 512,
    places: Annotated[int, typer.Option(help="Number of places to list for each count.")] = 0,
    long: Annotated[
        list[int] | None, typer.Option(help="A length of a text for the shape of an 8B model.")
    ] = None,
) -> None:
    """Count kernel launches, synchronizations and copies of `attend` on a simulated CUDA device.

    Those of long texts in a model of the shape of Llama 3 8B are counted without computing.
    """
    from benchmarks.launches import measure, measure_long, measure_many

    if long:
        measure_long(long)
    else:
        measure(tokens, places)
        measure_many()


@app.command()
def speech(
    sentences: Annotated[int, typer.Option(help="Sentences to measure.")] = 100,
    chosen_on: Annotated[int, typer.Option(help="Other sentences, to choose heads.")] = 60,
) -> None:
    """Compare the onsets of words in Whisper's cross-attention with those that espeak-ng spoke."""
    from benchmarks.speech import measure

    measure(sentences, chosen_on)


@app.command()
def senses(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="minilm, or what attnviz.load takes; default: minilm and smollm2."),
    ] = None,
    write: Annotated[bool, typer.Option(help="Store the table, also in its guide.")] = False,
) -> None:
    """Measure where models tell the senses of words apart, on pairs of WordNet's sentences."""
    from benchmarks.senses import measure

    measure(models or [], write=write)


@app.command()
def models(
    name: Annotated[str, typer.Argument(help="minilm, or a short name.")] = "smollm2",
    rounds: int = 3,
) -> None:
    """Measure analyses of a pretrained model: time beside a forward pass, and peak memory."""
    from benchmarks.models import measure

    measure(name, rounds)


@app.command(hidden=True)
def memory(command: str, variant: list[str]) -> None:
    """Print what one variant of a benchmark takes in this process, such as its memory growth."""
    print(import_module(f"benchmarks.{command}").memory(*variant))


@app.command()
def faithfulness(
    sentences: Annotated[
        Path | None,
        typer.Argument(
            help="JSON list of word, sense and sentence, or a file like the frozen texts of --task."
        ),
    ] = None,
    task: Annotated[
        Literal["senses", "shift", "next-token", "reactions"],
        typer.Option(
            help="Axes of senses in MiniLM; shifts or next tokens in SmolLM2; centers of reactions "
            "in rxnfp, a truth that no change of the input defines."
        ),
    ] = "senses",
    step: Annotated[int, typer.Option(min=1, help="Take every n-th text.")] = 1,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also run captum (bench extra; not with --task senses).")
    ] = False,
    store: Annotated[
        Path | None,
        typer.Option(help="JSON lines, one a text: an interrupted --task goes on from there."),
    ] = None,
) -> None:
    """Compare attribution methods with interventions, or with the centers of reactions."""
    from faithfulness import evaluate_all, read, show
    from faithfulness.decoders import evaluate, show_decoder

    console = Console()
    wide = Console(width=max(console.width, 150))
    if task == "reactions":
        from faithfulness import reactions

        judged = reactions.evaluate(sentences, step=step, peers=peers, store=store)
        reactions.show(judged, wide)
        return
    if task != "senses":
        judged = evaluate(task, sentences, step=step, peers=peers, store=store)
        show_decoder(judged, f"{task} in SmolLM2", wide)
        return
    by_word = read(sentences)
    words = f"{', '.join(by_word)} in {sentences or 'the sentences of senses'}"
    show(evaluate_all(by_word, step=step), words, wide)


@app.command()
def passages(
    model: str = "smollm2",
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of ten passages.")] = 200,
    scored: Annotated[int, typer.Option(help="Prompts with a score of 64 ablations.")] = 40,
    store: Annotated[
        Path | None, typer.Option(help="JSON lines, one a prompt: goes on from there.")
    ] = None,
) -> None:
    """Find the passage that holds the fact, by `explain` with groups="passage"."""
    from faithfulness.passages import evaluate, show

    show(evaluate(model, prompts, scored=scored, store=store), model, Console())


@app.command()
def windows(
    model: str = "whisper-tiny.en",
    sentences: Annotated[int, typer.Option(min=1, help="Sentences that espeak-ng speaks.")] = 24,
    store: Annotated[
        Path | None, typer.Option(help="JSON lines, one a sentence: goes on from there.")
    ] = None,
) -> None:
    """Find where each written word is spoken, by `explain` of a sound and by cross-attention."""
    from faithfulness.windows import evaluate, show

    show(evaluate(model, sentences, store=store), model, Console())


@app.command()
def circuits(
    step: Annotated[int, typer.Option(min=1, help="Take every n-th circuit.")] = 1,
    store: Annotated[
        Path | None, typer.Option(help="JSON lines, one a circuit: goes on from there.")
    ] = None,
) -> None:
    """Find the known heads and words of models whose weights are set by hand."""
    from faithfulness.circuits import evaluate, show

    console = Console()
    show(evaluate(step=step, store=store), Console(width=max(console.width, 110)))


if __name__ == "__main__":
    app()
