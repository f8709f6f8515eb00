"""The gallery: a page of thumbnails, and one for each figure with its script."""

from __future__ import annotations

import ast
import html
import re
from pathlib import Path

from build_gallery import Entry, models_of

import attnviz
from attnviz.results import AttentionResult
from docs.text import frame, plain


def pages(entries: dict[str, Entry], scripts: dict[str, Path], views: set[str]) -> dict[str, str]:
    """Return the page of thumbnails and the page of each figure."""
    cards = [
        f'<a href="figures/{name}.html"><img src="thumbnails/{name}.webp" loading="lazy" '
        f'alt=""><span>{html.escape(entry.title)}</span></a>'
        for name, entry in entries.items()
    ]
    index = (
        "# Gallery\n\nEvery figure is drawn by the script on its page, "
        'which computes the numbers of its caption.\n\n<div class="thumbnails">\n'
        + "\n".join(cards) + "\n</div>\n"
    )  # fmt: skip
    written = {"gallery.md": index}
    for name, entry in entries.items():
        code = scripts[name].read_text(encoding="utf-8").split('"""', maxsplit=2)[2].strip()
        caption = "\n\n".join(plain(" ".join(part.split())) for part in entry.caption.split("\n\n"))
        number = int(re.findall(r"\d+", name)[0])
        needs = [f"`{model.name}`" for model in models_of(scripts[name])]
        parts = [
            f"# {number}. {plain(entry.title)}\n",
            f"[![{plain(entry.title)}](../images/{name}.png)](../images/{name}.svg)\n",
            caption + "\n",
            f"## Script\n\n[Download {name}.py](../files/gallery/{name}.py)\n",
        ]
        if needs:
            parts.append(f"It reads {', '.join(needs)} ([how to get it](../guides/models.md)).\n")
        parts.append(f"```python\n{code}\n```\n")
        if name in views:
            parts.append(
                "## Interactive\n\nThe same result as a page: `attnviz.view(result)`.\n\n"
                + frame(f"../views/{name}.html", f"Interactive: {entry.title}", 760)
            )
        written[f"figures/{name}.md"] = "\n".join(parts)
    return written


def result_of(script: Path) -> AttentionResult | None:
    """Run a script of the bundled model up to the result that it draws, if there is one."""
    source = script.read_text(encoding="utf-8")
    if models_of(script):
        return None
    statements = ast.parse(source).body
    for statement in statements:
        code = ast.unparse(statement)
        if code.startswith("result = attnviz.attend(") and "model=" not in code:
            break
    else:
        return None
    names: dict[str, object] = {"__file__": str(script), "__name__": "__main__"}
    module = ast.Module(statements[: statements.index(statement) + 1], type_ignores=[])
    exec(compile(module, str(script), "exec"), names)
    result = names["result"]
    assert isinstance(result, attnviz.AttentionResult)
    return result
