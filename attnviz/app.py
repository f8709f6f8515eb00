"""The commands. Heavy rooms are imported inside them, so that help comes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.analyses.compare.cli import compare
from attnviz.analyses.example.cli import example
from attnviz.analyses.maps.cli import heads, heatmap
from attnviz.analyses.senses.cli import senses
from attnviz.analyses.shift.cli import shift
from attnviz.analyses.survey.cli import survey
from attnviz.interactive.cli import view
from attnviz.interactive.serve.cli import serve
from attnviz.terminal.models import models

if TYPE_CHECKING:
    pass


import contextlib
import errno
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import TextIO

from attnviz.analyses.steps.cli import steps
from attnviz.analyses.verify.cli import verify
from attnviz.errors import (
    AttnvizError,
    AttnvizWarning,
    is_panic,
    printable,
)

app = typer.Typer(
    name="attnviz",
    help="See, verify and explain attention in pretrained Hugging Face models.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # paragraphs, not the lines of the source
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


app.command()(heatmap)
app.command()(heads)
app.command()(view)
app.command()(steps)
app.command()(verify)


app.command()(senses)
app.command()(shift)
app.command()(survey)
app.command()(compare)
app.command()(example)
app.command()(models)
app.command()(serve)


def run(arguments: Sequence[str]) -> int:
    """Run one command; print what went wrong as one line on standard error.

    Returns
    -------
    The exit code: 0 done, 2 wrong usage or input, 3 model cannot be used, 4 output cannot be
    written, 5 agreement failed; 1 what nobody foresaw, a fault of attnviz or of a library.
    """
    debug = "--debug" in arguments
    with _in_our_words(debug=debug):
        try:
            command = typer.main.get_command(app)
            with command.make_context("attnviz", list(arguments)) as context:
                code = command.invoke(context)
            sys.stdout.flush()
        except typer.Exit as done:
            code = done.exit_code
        except BaseException as error:
            if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
                raise BrokenPipeError from None  # rich turns it into SystemExit
            # A library may want to end the program.
            if not (isinstance(error, Exception | SystemExit) or is_panic(error)):
                raise
            if debug:
                traceback.print_exc()
            message, code = _told(error)
            _say(message)
    return code if isinstance(code, int) else 0


def _told(error: BaseException) -> tuple[str, int]:
    """Return what a user is told of an error, and the exit code."""
    if isinstance(error, AttnvizError):
        return str(error), error.exit_code
    if isinstance(error, typer.TyperException):
        wrong = getattr(error, "format_message", error.__str__)().rstrip(".")
        # It is empty where no command was given: then the help was printed already.
        return wrong and f"{wrong}. Run with --help to see what there is.", 2
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "Standard output cannot be written: no space is left. Free some space.", 4
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    places = [
        frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    if isinstance(error, UnicodeDecodeError) and "matplotlib" in places:
        return "matplotlibrc is not valid UTF-8. Save it as UTF-8, or remove it.", 2
    if "torch.nn.modules.module" in places:  # that is where each part of a model is called
        return f"Expected the model to run, got {what}. Add --debug to see where.", 3
    todo = "This is a fault of attnviz or of a library: report it, with what --debug shows."
    return f"Expected to finish, got {what}. {todo}", 1


@contextlib.contextmanager
def _in_our_words(*, debug: bool) -> Iterator[None]:
    """Say in our words what must be said; what libraries say is shown only for debugging."""
    disabled, shown = logging.root.manager.disable, logging.getLogger("attnviz").level
    with warnings.catch_warnings():
        if debug:
            warnings.simplefilter("default")
            logging.getLogger("attnviz").setLevel(logging.DEBUG)
        else:
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", AttnvizWarning)
            warnings.showwarning = _show_warning
            logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)
            logging.getLogger("attnviz").setLevel(shown)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, AttnvizWarning):
        _say(str(message))


def _say(message: str) -> None:
    if message:
        with contextlib.suppress(OSError):  # standard error is full, or nobody reads it
            print(f"attnviz: {printable(message)}", file=sys.stderr, flush=True)
