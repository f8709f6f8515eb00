"""Run an expression.

A run ends like a command, so that both are checked in the same way: an attnviz error is printed as
one line with its exit code; any other exception is printed with a traceback.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import attnviz


def call(called: str) -> int:
    """Evaluate the expression; return the exit code."""
    warnings.showwarning = show_warning
    try:
        result = evaluate(called)
    except attnviz.AttnvizError as error:
        print_message(str(error))
        return error.exit_code
    if result is False:
        print_message(f"{called} is False, not True.")
        return 1
    agreement = getattr(result, "agreement", result)
    return 0 if getattr(agreement, "verdict", "verified") == "verified" else 5


def print_message(message: str) -> None:
    """Print a message of attnviz unchanged: it must be a single printable line."""
    print(f"attnviz: {message}", file=sys.stderr)


def show_warning(
    message: Warning | str, category: type[Warning], filename: str, *rest: Any
) -> None:
    """Print an attnviz warning; print others as Python does, which no case allows."""
    if issubclass(category, attnviz.AttnvizWarning):
        print_message(str(message))
    else:
        print(warnings.formatwarning(message, category, filename, *rest[:1]), file=sys.stderr)


def evaluate(called: str) -> Any:
    """Evaluate an expression with the usual modules as names."""
    import numpy as np
    import torch
    import transformers

    names = {
        "attnviz": attnviz, "np": np, "torch": torch, "transformers": transformers,
        "formula": importlib.import_module("attnviz.formula.attention"),
    }  # fmt: skip
    return eval(called, {**names, "Path": Path})
