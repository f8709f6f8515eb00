"""Results on disk: one JSON line per architecture, and a Markdown table made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COLUMNS = ["architecture", "class", "attentions", "reached by", "largest difference", "state"]


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the latest result of each architecture; a line cut short by a crash is ignored."""
    found = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        try:
            result = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[result["architecture"]] = result
    return found


def append(path: Path, result: dict[str, Any]) -> None:
    """Add one result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def state(result: dict[str, Any], tolerance: float) -> str:
    """Return a word or two: what came of an architecture."""
    if "reason" in result:
        return "not run"
    if "unread" in result:
        return "not read"
    if not result["attentions"]:
        return "no attention"
    return "agrees" if result["difference"] <= tolerance else "differs"  # nan differs


def reason(result: dict[str, Any]) -> str:
    """Return why an architecture could not be run or read, empty where it could."""
    said = result.get("reason") or result.get("unread") or ""
    return str(said)


def table(results: list[dict[str, Any]], tolerance: float) -> str:
    """Return the Markdown table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for result in sorted(results, key=lambda result: result["architecture"]):
        said = state(result, tolerance)
        if "reason" in result:
            said += ": " + result["reason"].replace("|", "\\|").replace("\n", " ")
        cells = [
            result["architecture"],
            result.get("class", ""),
            str(result.get("softmaxes", "")),
            result.get("reached", ""),
            f"{result['difference']:.1e}" if "difference" in result else "",
            said,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
