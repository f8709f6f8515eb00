"""The command line: the commands, their errors as one line, and their exit codes."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import typer

from attnviz import __version__, terminal
from attnviz.analyses.example import check_source
from attnviz.errors import (
    AttnvizError,
    AttnvizWarning,
    InputError,
    ModelError,
    is_panic,
    printable,
    refuse_given,
    require,
)
from attnviz.io import FIGURE_SUFFIXES, PAGE_SUFFIXES, SCHEMA, check_folder, check_output
from attnviz.runtime import address_of
from attnviz.terminal.command import COMMANDS, Call, Command

# A declaration says what no signature says.
_FIGURE = "output force width caption json"
_MAP = f"stack {_FIGURE}"
_PAGE = "output force open"


@Command(
    "plot.heatmap",
    "heatmap.png",
    f"find {_MAP}",
    without="annot ax caption cbar cbar_ax cmap figsize norm overview title vmax vmin width",
)
def heatmap(call: Call) -> int:
    """Draw the attention map of one head, with an overview of all heads.

    Without --layer and --head, the head that relates the content words of the text most is drawn.
    For an image, the weights from one query to the patches are laid over the image. A long text is
    drawn as an overview; --rows and --columns draw an exact part of it.
    """
    words = terminal.parse_word_pair(call.given["find"]) if "find" in call.given else None
    layer, head = call.values.get("layer"), call.values.get("head")
    result = call.attend(layers=layer, heads=head)

    with terminal.progress_bar("drawing"):
        from attnviz.analyses.maps.compute import rank_heads
        from attnviz.analyses.maps.plot import draw_heatmap, select_map

    drawn = select_map(
        result,
        find=words,
        overview=None if call.path and call.path.suffix.lower() in FIGURE_SUFFIXES else False,
        attend_again=lambda layers, heads: call.attend(layers=layers, heads=heads),
        **call.values,
    )
    ranking = drawn.ranking or rank_heads(result)
    ranking = ranking.of_layer(layer) if words is None and isinstance(layer, int) else ranking
    return call.report(
        drawn.map,
        *drawn.map.printed(drawn.finding, terminal.console.width),
        ranking,
        draw=lambda: draw_heatmap(drawn, **call.look).get_figure(root=True),
    )


@Command("head_maps", "heads.png", _MAP)
def heads(call: Call) -> int:
    """Draw the attention maps of all heads, of the whole model or of one layer."""
    layer = call.values.get("layer")
    result = call.attend(layers=layer)

    from attnviz.analyses.maps.compute import head_maps, rank_heads
    from attnviz.figures.claims import of_heads

    ranking = rank_heads(result)
    shown = ranking if layer is None else ranking.of_layer(layer)
    maps = head_maps(result, **call.values)
    return call.report(maps, f"[bold]{of_heads(maps)}[/]", maps, shown)


@Command(
    "view",
    "view.html",
    f"compare explain measure live {_PAGE}",
    PAGE_SUFFIXES,
    without="compare explain top",
)
def view(call: Call) -> int:
    """Write an interactive page: all heads, lines and maps, one word in all heads, every step.

    The page is one file and works offline. For a long text it holds as much as --size allows. With
    --live it is a folder, whose page also reads other texts.
    """
    names = ("compare", "explain", "output", "size")
    if (folder := call.given.get("live")) is not None:
        why = "--live begins with one text, and writes a folder. Leave it out."
        refuse_given(why, **{f"--{name}": call.given.get(name) for name in names})
        check_folder(folder)
    text, layer = call.inputs.get("text"), call.values.get("layer")
    compare: str | None = call.given.get("compare")
    if compare is not None and text is None:
        what = "a text, not a --result" if call.result else "a text to compare with"
        raise InputError(f"--compare needs {what}. Type both texts.")
    if compare is not None:
        others = {name: call.inputs.get(name) for name in ("pair", "target", "image", "audio")}
        refuse_given("--compare reads two texts, each alone. Leave it out.", **others)
    tokens = _explained_tokens(call)
    result = call.attend(exact=layer)
    other = None if compare is None else call.attend(compare, exact=layer)
    options = dict(call.values)
    if tokens:
        from attnviz.analyses.explain.compute import explain_generation

        with terminal.progress_bar("explaining the tokens"):
            options["explain"] = explain_generation(
                str(text), generate=tokens, measure=call.given["measure"], model=call.model
            )

    from attnviz.interactive import view as make_page

    return call.save_page(make_page(result, compare=other, **options), folder)


def _explained_tokens(call: Call) -> int:
    """Return how many generated tokens to explain: those that the page shows; 0 for none."""
    generated = call.inputs.get("generate", 1)
    if not call.given["explain"]:
        if call.given["measure"]:
            raise InputError("--measure is for explanations. Add --explain.")
        return 0
    if "text" not in call.inputs or generated < 2 or "compare" in call.given:
        raise InputError(
            "--explain explains the tokens that a model generates after one text. Type a text, and "
            "--generate 2 or more."
        )
    if {"pair", "image", "audio"} & set(call.inputs):
        raise InputError("--explain reads one text and nothing else. Leave the other input out.")
    return int(generated) - 1  # the model does not read its last token


Command("steps", "steps.png", _MAP, without="mode", defaults={"mode": "full"})()


@Command("verify", None, "output force json", (".safetensors",))
def verify(call: Call) -> int:
    """Recompute every head's attention and compare it with the model's own, stage by stage.

    With --result, recompute what the file holds: no model runs. --output saves the whole result,
    for --result.

    Exit code 5 means that they differ, or that their agreement could not be proven.
    """
    result = call.attend()

    from attnviz.agreement import verify_saved
    from attnviz.io.export import save_result

    if call.result is not None:
        result = replace(result, agreement=verify_saved(result))
    if call.path is not None:
        save_result(result, call.path, force=call.force)
    if call.json:
        notes = {"notes": list(result.notes)}
        about = {**asdict(result.provenance), **notes, **result.agreement.about()}
        terminal.print_json({"schema": SCHEMA.format("AgreementReport"), **about})
    else:
        terminal.console.print(result)
    return terminal.print_verdict(result.checked_agreement, call.path, json=call.json)


@Command("check", doing="comparing the weights")
def check(call: Call) -> int:
    """Compare another tool's attention weights with those of attnviz, head by head.

    Prints the first head that differs, where it does so most, and what explains the difference.

    Exit code 5 means that a head differs, or that attnviz's own weights could not be verified.
    """
    from attnviz.io import read_weights

    call.values["weights"] = read_weights(Path(call.values["weights"]))
    if call.result is None and call.inputs.get("mode", "auto") == "auto":
        call.inputs["mode"] = "full"
    return call.report(call.compute())


def _check_sentences(values: dict[str, Any]) -> None:
    from attnviz.analyses.senses import read_sentences

    read_sentences(values["word"], values.get("sentences"))


Command("senses", "senses.png", arguments="word", first=_check_sentences)()
Command("shift", "shift.png", doing="splitting the shift")()
Command("explain", "explain.png", doing="explaining the prediction")()
Command("ablate", "ablation.png", doing="ablating heads")()


@Command("survey", None, "width json", defaults={"out": "survey"}, doing="measuring the texts")
def survey(call: Call) -> int:
    """Measure what every head does over a corpus, with confidence intervals and chance levels.

    The folder gets the long table (sentence, layer, head, statistic, value, and the same for
    shuffled keys and shuffled tokens), a summary of every head, and a figure.
    """
    folder = call.values["out"] = os.path.expanduser(call.values["out"])  # noqa: PTH111  leaves ~nobody as it is
    call.path = Path(folder, "survey.png")
    if os.path.isdir(folder):  # noqa: PTH112  a name may be too long for a path
        check_output(call.path, force=call.force)
    return call.report(call.compute(), written=call.path.parent)


@Command("explore", "heads.html", _PAGE, PAGE_SUFFIXES, doing="exploring the heads")
def explore(call: Call) -> int:
    """Write an interactive page of all heads: what each attends to and writes.

    The page has every head in a plane of two statistics. Of each it shows the strongest and typical
    examples from the corpus, the tokens whose logits it raises and lowers, and what is lost without
    it. It is one file and works offline. Models of images and sounds have pictures and outlines in
    place of texts.
    """
    return call.save_page(call.compute().page())


@Command("compare", "comparison.png", arguments="models texts", without="model", loads=True)
def compare(call: Call) -> int:
    """Compare two checkpoints head by head over a corpus: which heads changed, with intervals."""
    from attnviz.analyses.survey.corpus import check_corpus
    from attnviz.models.checkpoint import locate_checkpoint

    check_corpus(call.values["texts"])
    for name in call.values["models"]:
        locate_checkpoint(name)  # a wrong name is an error before the others are read
    call.values["models"] = [partial(call.load, name) for name in call.values["models"]]
    return call.report(call.compute())


Command("example", first=lambda values: check_source(values.get("name"), values.get("file")))()


@Command("architectures", None, "json")
def models(call: Call) -> int:
    """List the models of the installed transformers, and how far each is verified.

    The states come from the last check of every architecture, which ships with attnviz.
    """
    from attnviz.models import last_check
    from attnviz.runtime import version_of

    matching = call.compute()
    if not call.json:
        terminal.print_models(matching)
        return 0
    versions = {"transformers": version_of("transformers")}
    versions["checked_with"] = last_check().transformers
    _print_without_torch("models", {**versions, "models": [asdict(one) for one in matching]})
    return 0


@Command(
    "",
    None,
    "model port max_tokens time_limit open_browser",
    without="model device_map offload_folder processor special_tokens target_tokenizer tokenizer",
    loads=True,
)
def serve(call: Call) -> int:
    """Serve a page on this machine: type a sentence, and see attention, senses and shifts at once.

    The command prints the link to the page. The link is secret, and changes with each start. No
    text is stored. Ctrl-C stops the server.
    """
    for package in ("starlette", "uvicorn"):
        require(package, "serve", "The server needs")
    from attnviz.interactive import serve

    names = ("port", "max_tokens", "time_limit", "open_browser")
    serve.run(call.given.get("model", []), call.load, **{name: call.given[name] for name in names})
    return 0


@Command("doctor", None, "json")
def doctor(call: Call) -> int:
    """Say what works on this machine, and how to install what is missing.

    Lists the versions, the devices and the extras of attnviz, and proves the default model.

    Exit code 3 means that attnviz cannot work here.
    """
    result = call.compute()
    if call.json:
        _print_without_torch("DoctorResult", vars(result))
    else:
        terminal.wide_console().print(result)
    return 0 if result.works else ModelError.exit_code


def _print_without_torch(kind: str, data: dict[str, Any]) -> None:
    data = {"schema": SCHEMA.format(kind), **data}
    sys.stdout.write(json.dumps(data, ensure_ascii=False, indent=1) + "\n")


app = typer.Typer(
    name="attnviz",
    help="See, verify and explain attention in pretrained Hugging Face models.",
    epilog="Exit codes: 0 done, 1 unexpected error, 2 wrong usage or input, 3 the model cannot be "
    "used, 4 the output cannot be written, 5 not verified, 130 and 143 interrupted.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # joins the lines of a docstring's paragraph
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_site = address_of("Documentation")
for line in Path(__file__).with_name("terminal").joinpath("examples.txt").read_text().splitlines():
    panel, name, *example = line.split(maxsplit=2)
    end = " ".join(["Example: attnviz", name, *example])
    end += _site and f"\n\n\n\nMore: {_site}/commands/{name}.html"
    app.command(name, rich_help_panel=panel, epilog=end)(COMMANDS[name])
_command_of = cache(typer.main.get_command)


@app.callback(invoke_without_command=True)
def _print_version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"attnviz {__version__}")
        raise typer.Exit


def run(arguments: Sequence[str]) -> int:
    """Run one command, print an error as one line on standard error, and return the exit code."""
    debug = "--debug" in arguments
    with _only_our_warnings(debug=debug):
        try:
            main = _command_of(app)
            with main.make_context("attnviz", list(arguments)) as context:
                code = main.invoke(context)
            sys.stdout.flush()
        except typer.Exit as exit_:
            code = exit_.exit_code
        except BaseException as error:
            if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
                raise BrokenPipeError from None  # rich turns it into SystemExit
            # Libraries may raise SystemExit, or a panic that is no Exception.
            if not (isinstance(error, Exception | SystemExit) or is_panic(error)):
                raise
            if debug:
                traceback.print_exc()
            message, code = _message_and_code(error)
            _print_error(message)
    return code if isinstance(code, int) else 0


def _message_and_code(error: BaseException) -> tuple[str, int]:
    if isinstance(error, AttnvizError):
        return str(error), error.exit_code
    if isinstance(error, typer.TyperException):
        usage_error = getattr(error, "format_message", error.__str__)().rstrip(".")
        usage_error = usage_error.replace("Value error, ", "")
        if problems := getattr(error.__cause__, "errors", None):  # of pydantic
            typed = f"{problems()[0]['input']!r:.60}"
            if typed not in usage_error:
                usage_error = f"{usage_error.partition(', unable')[0]}, not {typed}"
        # It is empty if no command was named: the help has been printed.
        end = "" if usage_error.endswith("?") else "."
        return usage_error and f"{usage_error}{end} Run with --help to see the options.", 2
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "Too many files are open. Allow more: ulimit -n 1024.", 1
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "Standard output cannot be written: no space is left. Free some space.", 4
    description = f"{type(error).__name__}: {error}".removesuffix(": ")
    modules = [
        frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    if isinstance(error, UnicodeDecodeError) and "matplotlib" in modules:
        return "matplotlibrc is not valid UTF-8. Save it as UTF-8, or remove it.", 2
    if "torch.nn.modules.module" in modules:  # a module of the model was being called
        return f"The model fails with {description}. Add --debug to see where.", 3
    advice = "This is a bug in attnviz or in a library. Report it with the output of --debug."
    if isinstance(error, ImportError):
        advice = "Run attnviz doctor to see what is not installed."
    return f"{description}. {advice}", 1


@contextlib.contextmanager
def _only_our_warnings(*, debug: bool) -> Iterator[None]:
    """Hide the logs and warnings of libraries, unless for debugging; print ours as one line."""
    disabled, level = logging.root.manager.disable, logging.getLogger("attnviz").level
    with warnings.catch_warnings():
        if debug:
            warnings.simplefilter("default")
            logging.getLogger("attnviz").setLevel(logging.DEBUG)
        else:
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", AttnvizWarning)
            warnings.showwarning = lambda one, *_, **__: (
                _print_error(str(one)) if isinstance(one, AttnvizWarning) else None
            )
            logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)
            logging.getLogger("attnviz").setLevel(level)


def _print_error(message: str) -> None:
    if message:
        with contextlib.suppress(OSError):  # standard error is full, or nobody reads it
            print(f"attnviz: {printable(message)}", file=sys.stderr, flush=True)
