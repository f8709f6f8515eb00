"""How what was typed is shown in a message, and what it comes near to."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def shown(text: str) -> str:
    """Return a text in quotes, a very long one clipped."""
    return repr(text if len(text) <= 40 else text[:39] + "…")


def near(text: str, known: Sequence[str]) -> str:
    """Return "Did you mean …?" with the names that come near, or nothing."""
    by_case = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(text.casefold()[:40], by_case, n=3)
    return f"Did you mean {' or '.join(by_case[name] for name in found)}?" if found else ""
