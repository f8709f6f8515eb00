"""Every message of attnviz, from its source: what is wrong, and what helps."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnviz import errors
from docs.text import filter_line, plain

PACKAGE = Path(errors.__file__).parent
# The first that fits the path of a module: its title, and where to read more.
TOPICS = {
    "inputs/": ("Texts, images and sounds", "guides/inputs.md"),
    "models/|runtime/": ("Finding and loading a model", "guides/models.md"),
    "capture/|pipeline/|streaming/": ("Running a model", "concepts/capture.md"),
    "analyses/check|analyses/example": (
        "Numbers from elsewhere", "guides/data.md",
    ),
    "analyses/senses": ("Senses of a word", "guides/senses.md"),
    "attribution/|analyses/(shift|explain|ablate)": ("Explanations", "concepts/splits.md"),
    "analyses/(survey|explore|compare)": ("Corpora and checkpoints", "guides/survey.md"),
    "interactive/": ("Pages and the server", "guides/page-and-server.md"),
    "figures/": ("Figures", "guides/heatmaps.md"),
    "io/": ("Files", "guides/page-and-server.md"),
    "terminal/|app": ("The command line", "commands/index.md"),
    "": ("Layers, heads and words", "guides/heatmaps.md"),
}  # fmt: skip


@dataclass(frozen=True)
class Message:
    """A message, with … where it names what a user gave; `what` and `fix` are its two parts."""

    kind: str
    what: str
    fix: str
    module: str


def messages() -> Iterator[Message]:
    """Yield all messages in the source of the package that a user can meet."""
    kinds = {"InputError", "ModelError", "OutputError", "AttnvizWarning"}
    for file in sorted(PACKAGE.rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            name = ast.unparse(call.func)
            if name == "warnings.warn":
                name = ast.unparse(call.args[1]) if len(call.args) > 1 else ""
            text = _text(call.args[0])
            if name not in kinds or not text.endswith((".", "?", "…")):
                continue  # a part of another message
            what, fix = _parts(text)
            if len(re.findall(r"[A-Za-z]{2,}", what)) >= 3:
                yield Message(name, what, fix, file.relative_to(PACKAGE).as_posix())


def page() -> str:
    """Return the page of all messages by topic."""
    topics = defaultdict(dict)
    for message in messages():
        (title, more) = next(
            topic for pattern, topic in TOPICS.items() if re.match(pattern, message.module)
        )
        topics[title, more].setdefault(message.what, message)
    count = sum(map(len, topics.values()))
    parts = [
        "# Errors\n\nAn error is one line: what is wrong, "
        f"then how to fix it. These are the {count} messages in the source of attnviz; "
        "… stands for what you typed, or for a number. In Python they are "
        "[exceptions](api/AttnvizError.md); a command ends with an exit code:\n",
        "| exception | exit code | what cannot be used |\n|---|---|---|\n"
        "| [`InputError`](api/InputError.md) | 2 | the text, a selection or an option |\n"
        "| [`ModelError`](api/ModelError.md) | 3 | the model |\n"
        "| [`OutputError`](api/OutputError.md) | 4 | the file to write |\n"
        "| – | 5 | none: the attention does not agree "
        "([what verified means](concepts/verified.md)) |\n"
        "| [`AttnvizWarning`](api/AttnvizWarning.md) | – | none: the result is computed |\n",
        "A message that says “This is a bug” is one: please report it with the output of "
        "`--debug`.\n",
        filter_line("Filter the messages", ".message"),
    ]
    for title, more in dict.fromkeys(TOPICS.values()):
        if not (found := topics.get((title, more))):
            continue
        parts.append(f"## {title}\n\nSee [{_title(more)}]({more}).\n")
        parts += [
            f'<div class="message" markdown>\n### {plain(one.what)}\n\n{plain(one.fix)} '
            f"<small>{one.kind}</small>\n\n</div>\n"
            for one in sorted(found.values(), key=lambda one: one.what.strip("… ").lower())
        ]
    return "\n".join(parts)


def _title(page: str) -> str:
    return Path(page).stem.replace("-", " ").replace("index", "commands")


def _text(node: ast.expr) -> str:
    """Return a text with … in place of what is formatted into it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "…" if isinstance(node, ast.FormattedValue) else ""


def _parts(text: str) -> tuple[str, str]:
    """Split a message into what is wrong and how to fix it."""
    text = re.sub(r"…[ …]*…", "…", " ".join(text.split()))
    what, end, fix = text.partition(". ")
    if end:
        return f"{what}.", _helpful(fix)
    if ": " in what:
        what, _, fix = what.partition(": ")
        return f"{what}.", _helpful(fix[0].upper() + fix[1:])
    if match := re.search(r"\b(must|should) be (.*?)(, not ….*)?\.?$", what):
        return what, _helpful("" if "…" in match[2] else f"Use {match[2]}.")
    return what, _helpful("")


def _helpful(fix: str) -> str:
    """Return the advice of a message, where it is not computed as a whole."""
    return fix if re.search("[a-z]", fix) else "The message names what helps."
