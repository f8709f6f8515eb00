"""The reference of the commands, from the app itself."""

from __future__ import annotations

import re
from pathlib import Path

import typer

import attnviz
from attnviz.app import app
from docs.text import plain, table

ROOT = Path(__file__).parents[2]
_DRAWS = {"heatmap", "heads"}  # commands of functions that draw what `attend` returns


def summaries() -> dict[str, str]:
    """Return the first line of the help of each command."""
    return {name: (command.help or "").partition("\n")[0] for name, command in _commands().items()}


def pages() -> dict[str, str]:
    """Return the page of each command, and of all of them."""
    written = {f"commands/{name}.md": _page(name, one) for name, one in _commands().items()}
    rows = [(f"[`attnviz {name}`]({name}.md)", plain(line)) for name, line in summaries().items()]
    index = (
        "# Commands\n\nA command calls the function of the same name. The ending of `-o` chooses "
        "the format of the file, and `--json` prints the data. "
        "[The cheat sheet](../cheat-sheet.md) lists them by task.\n\n"
        + table(["command", "what it does"], rows)
    )
    return {"commands/index.md": index, **written}


def function_of(name: str) -> str:
    """Return the public function of a command, or nothing."""
    if name in _DRAWS:
        return f"plot.{name}"
    return name if name in attnviz.__all__ else {"models": "architectures"}.get(name, "")


def _commands() -> dict[str, typer.core.TyperCommand]:
    return typer.main.get_command(app).commands  # type: ignore[attr-defined]


def _page(name: str, command: typer.core.TyperCommand) -> str:
    context = typer.Context(command, info_name=f"attnviz {name}")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"# attnviz {name}\n", plain(command.help or ""), f"\n```text\n{usage}\n```\n"]
    if function := function_of(name):
        parts.append(f"In Python: [`attnviz.{function}`](../api/{function}.md).\n")
    if examples := _examples(name):
        parts.append("```bash\n" + "\n".join(examples) + "\n```\n")
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        if getattr(parameter, "hidden", False):
            continue
        flags, text = parameter.get_help_record(context) or (parameter.name, "")
        panel = "Arguments" if isinstance(parameter, typer.core.TyperArgument) else None
        title = getattr(parameter, "rich_help_panel", None) or panel or "Options"
        panels.setdefault(title, []).append((f"`{flags}`", plain(text)))
    for title in sorted(panels, key=lambda title: title != "Arguments"):
        parts.append(f"## {title}\n\n{table(['option', 'meaning'], panels[title])}")
    return "\n".join(parts)


def _examples(name: str) -> list[str]:
    """Return the lines of the guides, which the tests run, that call the command."""
    files = [ROOT / "README.md", *sorted((ROOT / "gallery" / "guides").glob("*.md"))]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    blocks = "\n".join(re.findall(r"```(?:bash|text)\b[^\n]*\n(.*?)```", text, re.DOTALL))
    return list(dict.fromkeys(re.findall(rf"^attnviz {name}\b.*$", blocks, re.MULTILINE)))[:4]
