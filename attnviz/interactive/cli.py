"""The commands `view`, `explore` and `serve`."""

from __future__ import annotations

from collections.abc import Sequence
from glob import has_magic
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from attnviz.errors import InputError
from attnviz.io.files import PAGE_SUFFIXES, check_output
from attnviz.terminal.options import (
    Column,
    Debug,
    Force,
    Head,
    InputOptions,
    Layer,
    ModelOptions,
    RunOptions,
    Seed,
    SkipBad,
    Words,
    option_groups,
)


@option_groups()
def view(
    *,
    inputs: InputOptions,
    compare: Annotated[
        str | None,
        typer.Option(help="Second text to compare with, word by word."),
    ] = None,
    layer: Layer = None,
    head: Head = None,
    show: Annotated[
        Literal["grid", "head", "token", "steps"],
        typer.Option(
            help="First view of the page: all heads, one head, one word in all heads, or the steps "
            "to one weight."
        ),
    ] = "grid",
    words: Words = True,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Explain each generated token by the words before it. Needs --generate.",
        ),
    ] = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Compare each explanation with the effects of changing the words, measured in "
            "separate runs.",
        ),
    ] = False,
    size: Annotated[
        float | None,
        typer.Option(
            help="Largest size of the page in megabytes.",
            show_default="0.5; 8 for more than a sentence",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .html.")] = Path(
        "view.html"
    ),
    force: Force = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    run: RunOptions,
    debug: Debug = False,
) -> int:
    """Write an interactive page: all heads, lines and maps, one word in all heads, every step.

    The page is one file and works offline. For a long text it holds as much as --size allows.
    """
    texts = [inputs.checked()]
    if compare is not None:
        if inputs.result is not None:
            raise InputError("--compare needs a text, not a --result. Type both texts.")
        if texts[0].text is None:
            raise InputError("--compare needs a text to compare with. Type both texts.")
        texts.append(InputOptions(text=compare).checked())
    tokens = _explained_tokens(texts, explain=explain, measure=measure)
    path = check_output(output, PAGE_SUFFIXES, force=force)
    texts[0].refuse_overwriting(path)
    run.expect_heads(texts[0], [layer])
    exact = None if layer is None else [layer]
    results = [run.attend(text, exact=exact) for text in texts]
    explanations = None
    if tokens:
        from attnviz.analyses.explain.generation import explain_generation
        from attnviz.terminal.console import progress_bar

        with progress_bar("explaining the tokens"):
            explanations = explain_generation(
                texts[0].text or "", generate=tokens, measure=measure, model=run.loaded
            )

    from attnviz.interactive.view import view as make_page
    from attnviz.results import AgreementReport
    from attnviz.terminal.console import print_verdict

    page = make_page(
        results[0],
        compare=results[1] if compare is not None else None,
        layer=layer,
        head=head,
        show=show,
        words=words,
        explain=explanations,
        size=size,
    )
    page.save(path, force=force)
    agreement = AgreementReport.joined(result.checked_agreement for result in results)
    code = print_verdict(agreement, path, json=False)
    if open_:
        typer.launch(str(path))
    return code


def _explained_tokens(texts: Sequence[InputOptions], *, explain: bool, measure: bool) -> int:
    """Return how many generated tokens to explain: those that the page shows; 0 for none.

    The model does not read its last token, so the page does not show it.
    """
    inputs = texts[0]
    if not explain:
        if measure:
            raise InputError("--measure is for explanations. Add --explain.")
        return 0
    if inputs.text is None or (inputs.generate or 1) < 2 or len(texts) > 1:
        raise InputError(
            "--explain explains the tokens that a model generates after one text. Type a text, and "
            "--generate 2 or more."
        )
    if inputs.pair is not None or inputs.image is not None or inputs.audio is not None:
        raise InputError("--explain reads one text and nothing else. Leave the other input out.")
    return (inputs.generate or 1) - 1


@option_groups(without=["mode"])
def explore(
    *,
    corpus: Annotated[
        str,
        typer.Argument(
            help="File of texts: .txt (one per line), .jsonl, .csv, .tsv or .parquet. For a model "
            "that reads images or sounds: a folder of them, or a .txt file with their names.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .html.")] = Path(
        "heads.html"
    ),
    column: Column = "text",
    skip_bad: SkipBad = False,
    force: Force = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    seed: Seed = 0,
    run: RunOptions,
    debug: Debug = False,
) -> int:
    """Write an interactive page of all heads: what each attends to, looks for and writes.

    The page has every head in a plane of two statistics. Of each it shows the strongest and typical
    examples from the corpus, where its queries and keys meet, the tokens whose logits it raises and
    lowers, and what is lost without it. It is one file and works offline. Models of images and
    sounds have pictures and outlines in place of texts.
    """
    from attnviz.analyses.survey.corpus import check_corpus_name
    from attnviz.analyses.survey.media import is_of_media

    path = check_output(output, PAGE_SUFFIXES, force=force)
    if corpus == "-":
        raise InputError("The corpus is read twice, so it has to be a file. Save it first.")
    if not Path(corpus).exists() and not has_magic(corpus):
        raise InputError(f"There is no file or folder {corpus}. Check the name of the corpus.")
    if not is_of_media(corpus):
        check_corpus_name(corpus)
    model = run.load()

    from attnviz.analyses.explore.compute import explore as compute
    from attnviz.terminal.console import print_verdict, progress_bar

    with progress_bar("exploring the heads"):
        result = compute(
            corpus,
            model=model,
            column=column,
            truncate=run.truncate,
            skip_bad=skip_bad,
            seed=seed,
        )
    result.page().save(path, force=force)
    code = print_verdict(result.checked_agreement, path, json=False)
    if open_:
        typer.launch(str(path))
    return code


@option_groups(without=["model", "device_map", "offload_folder", "special_tokens"])
def serve(
    *,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Model to offer, a hub name or a local folder. Repeat it for several models.",
            show_default="the bundled all-MiniLM-L6-v2",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any other lets other machines connect.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on. 0 takes any free port.", min=0, max=65535)
    ] = 8765,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of a text.", min=1)] = 512,
    time_limit: Annotated[
        float, typer.Option(help="Most seconds that an answer may take.", min=0.1)
    ] = 30.0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page.")] = False,
    loading: ModelOptions,
    debug: Debug = False,
) -> int:
    """Serve a page on this machine: type a sentence, and see attention, senses and shifts at once.

    The command prints the link to the page. The link is secret, and changes with each start. No
    text is stored. Ctrl-C stops the server.
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"The server needs {' and '.join(missing)}, not installed here. Install the extra: pip "
            "install 'attnviz[serve]'."
        )
    from attnviz.interactive.serve.app import run

    run(
        models or [],
        loading,
        host=host,
        port=port,
        max_tokens=max_tokens,
        time_limit=time_limit,
        open_browser=open_browser,
    )
    return 0


COMMANDS = (view, explore, serve)
