"""What `--json` prints: the schema of each type, from the outputs that the tests compare."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from docs.text import table

OUTPUTS = Path(__file__).parents[2] / "tests" / "golden" / "data" / "commands"
_ARRAY = re.compile(r"@(\w+) ([\d×]+) sum ")
_ABOUT = """# JSON

`--json` prints one JSON object to standard output, and `-o NAME.json` writes the same. In Python,
`result.save("name.json")` does. NaN and infinity are null.

`schema` is the type and the version of its form, `attnviz/ShiftResult/1`. Within a version keys are
added, never removed or changed ([Stability](stability.md)). Read it first:

```python
import json

data = json.load(open("shift.json"))
assert data["schema"] == "attnviz/ShiftResult/1"
```

Numbers are nested lists, with the outer dimension first. `agreement` holds the verdict, which a
program should read before the numbers: `data["agreement"]["verdict"] == "verified"`. A command also
ends with [an exit code](guides/models.md#exit-codes-and-messages).

| exit code | meaning |
|---|---|
| 0 | done, and verified where a model ran |
| 2 | wrong usage or input |
| 3 | the model cannot be used |
| 4 | the output cannot be written |
| 5 | printed, and not verified |

"""


def page() -> str:
    """Return the page of all schemas. A key that only some outputs have is optional."""
    outputs: dict[str, list[dict[str, Any]]] = {}
    commands: dict[str, set[str]] = {}
    for file in sorted(OUTPUTS.glob("*.json")):
        data = json.loads(file.read_text(encoding="utf-8"))["data"]
        if data:
            outputs.setdefault(data["schema"], []).append(data)
            commands.setdefault(data["schema"], set()).add(_command(data["schema"], file.stem))
    parts = [_ABOUT]
    for schema, several in sorted(outputs.items()):
        keys = dict.fromkeys(key for data in several for key in data)
        rows = [
            (
                f"`{key}`" + ("" if all(key in data for data in several) else " (optional)"),
                " or ".join(sorted({_kind(data[key]) for data in several if key in data})),
            )
            for key in sorted(keys, key=lambda key: (key != "schema", key))
        ]
        names = ", ".join(f"[`attnviz {name}`](commands/{name}.md)" for name in commands[schema])
        parts.append(f"## {schema}\n\nOf {names}.\n\n{table(['key', 'value'], rows)}")
    return "\n".join(parts)


def _command(schema: str, output: str) -> str:
    """Return the command that prints a type."""
    name = {"AttentionMap": "heatmap", "HeadMaps": "heads", "AgreementReport": "verify"}
    return name.get(schema.split("/")[1]) or output.partition("-")[0].replace("decoder", "steps")


def _kind(value: Any) -> str:
    """Return what a value is, in words."""
    if isinstance(value, str) and (array := _ARRAY.match(value)):
        what = {"bool": "flags", "int": "whole numbers"}.get(array[1].rstrip("3264"), "numbers")
        return f"{what} in {array[2].count('×') + 1} dimensions"
    if isinstance(value, list):
        return "list of " + (" or ".join(sorted({_kind(one) for one in value})) or "anything")
    if isinstance(value, dict):
        return "object"
    kinds = {bool: "flag", int: "whole number", float: "number", str: "text", type(None): "null"}
    return kinds[type(value)]
