"""The command line: each command parses, calls the public function of its name, and writes."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Sequence

import typer

from attnviz.cli.commands import app
from attnviz.errors import AttnvizError, printable


def run(arguments: Sequence[str]) -> int:
    """Run one command; print what went wrong as one line on standard error.

    Returns
    -------
    The exit code: 0 done, 2 wrong usage or input, 3 model cannot be used, 4 output cannot be
    written, 5 agreement failed.
    """
    # What must be said is said in our words, on one line.
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        code = app(list(arguments), standalone_mode=False, prog_name="attnviz")
    except AttnvizError as error:
        if "--debug" in arguments:
            traceback.print_exc()
        return _say(str(error), error.exit_code)
    except typer.TyperException as error:
        wrong = getattr(error, "format_message", error.__str__)().rstrip(".")
        # It is empty where no command was given: then the help was printed already.
        return _say(f"{wrong}. Run with --help to see what there is.", 2) if wrong else 2
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        if isinstance(error, OSError):
            raise  # standard output cannot be written
        what = f"{type(error).__name__}: {error}"
        return _say(f"Expected the model to run, got {what}. Add --debug to see where.", 3)
    return code if isinstance(code, int) else 0


def _show_warning(message: Warning | str, *_: object) -> None:
    _say(str(message), 0)


def _say(message: str, code: int) -> int:
    print(f"attnviz: {printable(message)}", file=sys.stderr)
    return code
