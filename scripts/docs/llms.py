"""llms.txt: what a language model needs to write code with attnviz."""

from __future__ import annotations

import re

from docs import api, commands
from docs.examples import docstring


def text(cheat_sheet: str, pages: dict[str, str]) -> str:
    """Return the file. `pages` are titles by address."""
    tables = re.sub(r"^# .*?(?=^## )", "", cheat_sheet, flags=re.DOTALL | re.MULTILINE)
    parts = [
        "# attnviz\n",
        "> See, verify and explain attention in pretrained Hugging Face models. attnviz recomputes "
        "every attention weight from the formula in float64, compares it with the model's own, and "
        "prints the verdict on every figure.\n",
        "- Install: `pip install attnviz` (Python 3.11 or newer). `import attnviz`.\n"
        "- `attnviz.attend(text, model=…)` runs a model and returns an `AttentionResult`. Without "
        "`model` it is the bundled all-MiniLM-L6-v2 (6 layers of 12 heads). A model is a name on "
        "the Hugging Face hub, a folder, or a transformers model: `attnviz.load(model, "
        "tokenizer=tokenizer)`.\n"
        "- Functions of `attnviz` compute and return a result; functions of `attnviz.plot` draw "
        'it, and so does `result.plot()`. `attnviz.plot.save(figure, "a.pdf")` writes a figure '
        "(`axes.figure` of axes). Only the first argument is positional, mostly.\n"
        "- Every result has `.to_frame()` (pandas), `.save(path)`, `.agreement` (`.verdict`, "
        "`.summary()`) and `numpy.asarray(result)`.\n"
        '- Layers and heads count from 0. `words=True` merges word pieces; `special="remove"` '
        "removes special tokens and renormalizes rows.\n"
        "- Errors are `attnviz.InputError`, `ModelError` and `OutputError`, of `AttnvizError`. "
        "Exit codes: 0 done, 2 input, 3 model, 4 output, 5 not verified.\n",
        "# Tasks\n",
        tables,
        "# Functions\n",
    ]
    for group, names in api.GROUPS.items():
        parts.append(f"## {group}\n")
        parts += [_entry(name) for name in names]
    parts.append("# Commands\n")
    parts += [f"- `attnviz {name}`: {line}" for name, line in commands.summaries().items()]
    parts.append("\n# Pages\n")
    parts += [f"- [{title}]({address})" for address, title in pages.items()]
    return "\n".join(parts) + "\n"


def _entry(name: str) -> str:
    """Return a name with its signature, its summary and its example."""
    example = re.findall(r"^(?:>>>|\.\.\.) ?(.*)$", docstring(name), re.MULTILINE)
    code = "\n".join(line for line in example if line != "import attnviz")
    return f"### {api.signature(name)}\n\n{api.summary(name)}\n\n```python\n{code}\n```\n"
