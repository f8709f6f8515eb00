"""Run an expression. A run ends like a command, so that both are checked in the same way."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import attnviz


def call(called: str) -> int:
    """Evaluate the expression with the usual modules as names; return the exit code."""
    import numpy as np
    import torch
    import transformers

    warnings.showwarning = show_warning
    names = {
        "attnviz": attnviz, "np": np, "torch": torch, "transformers": transformers, "Path": Path,
        "formula": importlib.import_module("attnviz.formula.attention"),
    }  # fmt: skip
    try:
        result = eval(called, names)
    except attnviz.AttnvizError as error:
        print(f"attnviz: {error}", file=sys.stderr)
        return error.exit_code
    agreement = getattr(result, "agreement", result)
    return 0 if getattr(agreement, "verdict", "verified") == "verified" else 5


def show_warning(
    message: Warning | str, category: type[Warning], filename: str, *rest: Any
) -> None:
    """Print an attnviz warning; print others as Python does, which no case allows."""
    if not issubclass(category, attnviz.AttnvizWarning):
        message = warnings.formatwarning(message, category, filename, *rest[:1])
    print(f"attnviz: {message}", file=sys.stderr)
