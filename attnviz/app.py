"""The command line: the commands, their errors as one line, and their exit codes."""

from __future__ import annotations

import contextlib
import errno
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated

import typer

from attnviz.commands import COMMANDS
from attnviz.errors import AttnvizError, AttnvizWarning, is_panic, own_stderr, printable

app = typer.Typer(
    name="attnviz",
    help="See, verify and explain attention in pretrained Hugging Face models.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # joins the lines of a docstring's paragraph
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, command in COMMANDS.items():
    app.command(name)(command)
_command_of = cache(typer.main.get_command)


@app.callback(invoke_without_command=True)
def _print_version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from attnviz.runtime import version_of

        print(f"attnviz {version_of('attnviz')}")
        raise typer.Exit


def run(arguments: Sequence[str]) -> int:
    """Run one command, print an error as one line on standard error, and return the exit code.

    0 done, 2 wrong usage or input, 3 the model cannot be used, 4 the output cannot be written,
    5 not verified; 1 for an unexpected error, a bug in attnviz or a library.
    """
    debug = "--debug" in arguments
    with own_stderr(ours=not debug), _only_our_warnings(debug=debug):
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
            warnings.showwarning = _show_warning
            logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)
            logging.getLogger("attnviz").setLevel(level)


def _show_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    if issubclass(category, AttnvizWarning):
        _print_error(str(message))


def _print_error(message: str) -> None:
    if message:
        with contextlib.suppress(OSError):  # standard error is full, or nobody reads it
            print(f"attnviz: {printable(message)}", file=sys.stderr, flush=True)
