"""Results on disk: one JSON line per architecture; the catalogue and docs page built from them."""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

from architectures.overrides import NOT_SHOWN, REASONS
from attnviz.models import Architecture, read_catalogue, summary
from attnviz.results.text import shortened

COLUMNS = ["name", "model_class", "attentions", "softmaxes", "reached", "stages", "difference",
           "state", "reason", "linear", "use"]  # fmt: skip
CALLS = ("float32", "bfloat16", "float16", "generate", "shift", "explain", "survey")
USE_STATES = (
    "verified", "not proven", "random", "eager differs", "overflow", "failed", "refused", "crash",
    "no attention", "not run",
)  # fmt: skip
# What is said where it is the model that is not the same in two runs, or returns no numbers.
BY_THE_MODEL = {"it draws random numbers": "random", "its eager attention": "eager differs",
                "some numbers are not finite": "overflow"}  # fmt: skip
TITLES = {
    "architecture": "The bare model of each architecture",
    "setting": "Settings that are not the default",
    "head": "Classes with a head, of the families most in use",
}
USE = "## What a user calls\n"
USE_HEADER = """
The table below is about what is captured. This one is about what a user gets. Each model is saved,
loaded from its folder, and given to `attend`; the result is saved and loaded, and one map is drawn,
in three precisions. (Where transformers does not load what it saved, the model is given as it is.)
Models of texts also generate three tokens, and go through `shift`, `explain` and `survey` if they
run on a text and nothing else.
"not proven": the weights agree, and a small fault would go unnoticed. "random": two runs of the
model differ. "eager differs": the model's own eager attention gives another output than its fused
one, and the verdict says how to load it. "overflow": the model itself returns NaN in this
precision, and the verdict names another. "failed": not verified for another reason; of `shift` and
`explain`, that the parts miss the whole. "refused": one line says why. "not run": the model itself
fails, needs a package, or is not built by transformers.
Settings that are not the default are position types, rotary variants, shared
layers, gates and windows (`VARIANTS` in `scripts/architectures/overrides.py`).
"""
HIDDEN = "not shown:"  # begins the note on layers that mix tokens and are not shown
FOLDER = re.compile(r"\btmp\w{8}\b")  # from which a model was loaded
MISSING = re.compile(r"requires the (\S+) library but it was not found")
INITIALS = {"query": "Q", "key": "K", "value": "V", "scores": "S", "weights": "A",
            "head output": "H", "output": "O"}  # fmt: skip
HEADER = """\
# Every architecture of transformers {transformers}

{summary}.

Written by `scripts/check_architectures.py`, which builds a tiny random model of each architecture
from its own configuration classes (nothing is downloaded), runs it on the CPU in float32, and
compares every attention that it executes with the model's own. "agrees": the weights of all of them
differ by at most {tolerance:.0e}, over all texts, heads, queries and keys, padded ones too, and no
other stage that is compared differs, nor the output of the model. "random": the model draws random
numbers, so that two of its runs differ.

- **Sharp on purpose.** With the default initialization of transformers, tiny models attend nearly
  uniformly, and almost any fault would pass. So every parameter is redrawn: matrices with a gain of
  1 over the square root of their inputs, the query and key projections with 1.5; biases, norms and
  position tables are moved away from 0 and 1. The largest weight of a row is then
  {sharpness:.1f} times the uniform one (the median over all architectures;
  {flattest:.1f} in the flattest tenth).
- **Stress settings.** Sliding windows of 4 tokens in texts of 16; fewer key heads than query heads;
  one layer of each kind; batches of two, the second text padded by 4; two different images, with
  different shapes if the model accepts them; two audio clips, one of them padded.
- **Nothing hidden.** A separate run counts the softmaxes. If there are more softmaxes than
  attentions, the modules that execute the extra ones are listed at the end: routers, detector
  heads, pooling, weights that are not computed from queries and keys, or unused weights.

Reached: through transformers' attention interface, or among the operators that torch executes.
Linear attention is reached at the functions of the model, or in the code of its modules
([guide](guides/linear-attention.md)). Its largest difference is that of the matrix times the values
from the layer's own output, relative to its largest number.
Stages compared in every attention: Q, K, V from the module's input; S scores; A weights; H each
head's output; O the module's output. transformers {transformers}, torch {torch}.
"""


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the latest result of each architecture; skip lines truncated by a crash."""
    latest = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        try:
            result = json.loads(line)
        except json.JSONDecodeError:
            continue
        latest[result["architecture"]] = result
    return latest


def append(path: Path, result: dict[str, Any]) -> None:
    """Append one result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def state(result: dict[str, Any], tolerance: float) -> str:
    """Return the state of an architecture in one or two words."""
    if "reason" in result:
        return "not run"
    if "unread" in result:
        return "not read"
    if not result["attentions"] and not result.get("linear"):
        return "no attention"
    if "random" in result:
        return "random"
    agrees = result["difference"] <= tolerance and result["verdict"] != "failed"  # nan differs
    return "agrees" if agrees else "differs"


def reason(result: dict[str, Any]) -> str:
    """Return why an architecture was not run or read, or which stage does not agree."""
    message = result.get("reason", "")
    if message and result["architecture"] in REASONS:
        return REASONS[result["architecture"]]
    if missing := MISSING.search(message):
        return f"needs the package {missing[1]}, which was not installed"
    if "random" in result:
        return str(result["random"])
    if result.get("verdict", "verified") != "verified":
        return str(result["why"])
    if not result.get("attentions") and not result.get("linear"):
        return str(message or result.get("unread") or NOT_SHOWN.get(result["architecture"], ""))
    hidden = [note for note in result.get("notes", []) if note.startswith(HIDDEN)]
    return str(message or result.get("unread", "") or "; ".join(hidden))


def row(result: dict[str, Any], tolerance: float) -> list[Any]:
    """Return the row of an architecture in the catalogue."""
    return [
        result["architecture"],
        result.get("class", ""),
        result.get("attentions", 0),
        result.get("softmaxes", 0),
        result.get("reached", ""),
        result.get("stages", []),
        float(f"{result['difference']:.2g}") if "difference" in result else None,
        state(result, tolerance),
        reason(result),
        result.get("linear", 0),
        {},
    ]


def catalogue(
    results: list[dict[str, Any]], parts: dict[str, str], tolerance: float
) -> dict[str, Any]:
    """Return the catalogue that ships with the package: one row per architecture."""
    ordered = sorted(results, key=lambda result: result["architecture"])
    rows = [row(result, tolerance) for result in ordered]
    versions = {name: version(name).partition("+")[0] for name in ("transformers", "torch")}
    return versions | {"columns": COLUMNS, "architectures": rows, "parts": parts}


def to_json(data: dict[str, Any]) -> str:
    """Return the catalogue as JSON with one line per row, to keep diffs readable."""
    lines = [f" {json.dumps(name)}: {json.dumps(data[name])}" for name in data if name not in
             ("architectures", "parts")]  # fmt: skip
    rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in data["architectures"])
    lines.append(f' "architectures": [\n{rows}\n ]')
    lines.append(f' "parts": {json.dumps(data["parts"])}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def page(
    results: list[dict[str, Any]],
    heads: list[dict[str, Any]],
    data: dict[str, Any],
    tolerance: float,
) -> str:
    """Return the Markdown page for the docs.

    heads : the results of classes with a head, which are listed where they do not agree.
    """
    catalogue_data = read_catalogue(data)
    rows = list(catalogue_data.architectures.values())
    sharp = sorted(result["flattest"] for result in results if result.get("attentions") and
                   result.get("flattest"))  # fmt: skip
    median = sorted(result["sharpness"] for result in results if result.get("attentions") and
                    result.get("sharpness"))  # fmt: skip
    header = HEADER.format(
        transformers=catalogue_data.transformers,
        torch=catalogue_data.torch,
        summary=summary(rows, catalogue_data),
        tolerance=tolerance,
        sharpness=median[len(median) // 2],
        flattest=sharp[len(sharp) // 10],
    )
    sections = [
        header,
        USE,
        *_lists(rows),
        *(["\n## Classes with a head\n", _heads(heads, tolerance)] if heads else []),
        "\n## Softmaxes beside attention\n",
        _others([*results, *heads]),
    ]
    return "\n".join(sections) + "\n"


def update(
    text: str, data: dict[str, Any], results: list[dict[str, Any]], tolerance: float
) -> tuple[str, dict[str, Any]]:
    """Return the page and the catalogue with new rows; all else on the page stays."""
    named = (dict(zip(data["columns"], entry, strict=True)) for entry in data["architectures"])
    old = {entry["name"]: entry for entry in named}
    new = {result["architecture"]: row(result, tolerance) for result in results}
    rows = {name: [one.get(column, 0) for column in COLUMNS] for name, one in old.items()} | new
    data = data | {"columns": COLUMNS, "architectures": [rows[name] for name in sorted(rows)]}
    catalogue_data = read_catalogue(data)
    listed = list(catalogue_data.architectures.values())
    start, end = text.index("## Exceptions"), text.index("## Classes with a head")
    header = text[:start].split("\n", 3)
    header[2] = f"{summary(listed, catalogue_data)}."
    return "\n".join([*header, *_lists(listed)]) + "\n\n" + text[end:], data


def with_use(
    text: str, data: dict[str, Any], results: list[dict[str, Any]]
) -> tuple[str, dict[str, Any]]:
    """Return the page and the catalogue with the outcome of what a user calls."""
    outcomes = {result["architecture"]: result for result in results}
    rows = []
    for entry in data["architectures"]:
        row = dict(zip(data["columns"], entry, strict=True))
        result = outcomes.get(row["name"], {})
        row["use"] = {call: use_state(*result[call]) for call in CALLS if call in result}
        rows.append([row[column] for column in COLUMNS])
    start = text.index(USE)
    end = text.index("## Exceptions")
    section = "\n".join([USE, *_use(results), "\n"])
    return text[:start] + section + text[end:], data | {"columns": COLUMNS, "architectures": rows}


def _use(results: list[dict[str, Any]]) -> list[str]:
    """Return the tables of what a user calls, and a list of what is not verified."""
    groups: dict[str, list[dict[str, Any]]] = {"architecture": [], "setting": [], "head": []}
    for result in results:
        name = result["architecture"]
        groups["setting" if "?" in name else "head" if "/" in name else "architecture"].append(
            result
        )
    lines = [USE_HEADER.strip("\n"), ""]
    for group, title in TITLES.items():
        counts = {
            c: Counter(use_state(*one[c]) for one in groups[group] if c in one) for c in CALLS
        }
        lines += [
            f"| {title} | " + " | ".join(USE_STATES) + " |",
            "|---" * (1 + len(USE_STATES)) + "|",
        ]
        lines += [
            f"| {call} | " + " | ".join(str(counts[call][state]) for state in USE_STATES) + " |"
            for call in CALLS
        ]
        lines.append("")
    for result in sorted(results, key=lambda one: one["architecture"]):
        lines += exceptions(result)
    return lines


def use_state(state: str, why: str) -> str:
    """Return the state of a call, where the model itself is the reason."""
    return next((name for text, name in BY_THE_MODEL.items() if text in why), state)


def exceptions(result: dict[str, Any]) -> list[str]:
    """Return a line for each reason why calls of an architecture are not verified."""
    calls: dict[tuple[str, str], list[str]] = {}
    for call in CALLS:
        state, why = result.get(call, ("verified", ""))
        state = use_state(state, why)
        if state not in ("verified", "no attention"):
            why = FOLDER.sub("the model", why.partition(": ")[2] or why)
            calls.setdefault((state, shortened(why, 240)), []).append(call)
    name = result["architecture"].replace("|", "\\|")
    if "reason" in result:
        return [f"- `{name}` (not run): {reason(result)}"]
    return [f"- `{name}` ({', '.join(of)}: {state}): {why}" for (state, why), of in calls.items()]


def _lists(rows: list[Architecture]) -> list[str]:
    """Return the sections of exceptions, of notes and of all architectures."""
    exceptions = [row for row in rows if row.state in ("differs", "not read", "not run", "random")]
    noted = [row for row in rows if row.state in ("agrees", "no attention") and row.reason]
    return [
        "## Exceptions\n",
        *(f"- `{row.name}` ({row.state}): {row.reason}" for row in exceptions),
        "\n## Notes on some architectures\n",
        *(f"- `{row.name}`: {row.reason}" for row in noted),
        "\n## All\n",
        _table(rows),
    ]


def _table(rows: list[Architecture]) -> str:
    heads = ["architecture", "class", "attentions", "linear", "softmaxes", "reached", "compared",
             "largest difference", "state"]  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        numbers = row.attentions, row.linear, row.softmaxes
        counts = [str(number) if row.state != "not run" else "" for number in numbers]
        difference = "" if row.difference is None else f"{row.difference:.1e}"
        compared = " ".join(INITIALS[stage] for stage in row.stages)
        cells = [f"`{row.name}`", row.model_class, *counts, row.reached, compared, difference,
                 row.state]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _heads(heads: list[dict[str, Any]], tolerance: float) -> str:
    states = {result["architecture"]: state(result, tolerance) for result in heads}
    counts = Counter(states.values()).most_common()
    lines = [", ".join(f"{count} {name}" for name, count in counts) + ".", ""]
    for result in sorted(heads, key=lambda result: result["architecture"]):
        if (name := states[result["architecture"]]) in ("differs", "not read", "not run", "random"):
            lines.append(f"- `{result['architecture']}` ({name}): {reason(result)}")
    return "\n".join(lines)


def _others(results: list[dict[str, Any]]) -> str:
    lines = ["| architecture | softmaxes | attentions | executed by |", "|---|---|---|---|"]
    for result in sorted(results, key=lambda result: result["architecture"]):
        if others := Counter(result.get("others", {})):
            by = ", ".join(f"{count} × {name}" for name, count in others.most_common())
            counts = f"{result['softmaxes']} | {result.get('attentions', 0)}"
            lines.append(f"| `{result['architecture']}` | {counts} | {by} |")
    return "\n".join(lines)
