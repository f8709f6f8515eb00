"""Public functions as their source describes them, so that help loads no torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal

from attnviz.figures import documented

_PACKAGE = Path(__file__).parents[1]
_PLAIN: dict[str, type] = {each.__name__: each for each in (bool, str, float, int, Path)}
_LISTS = ("Sequence", "Many", "list", "Iterable")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function."""

    name: str
    annotation: ast.expr
    module: str  # where the names in the annotation are defined
    default: ast.expr | None
    positional: bool = False  # it may be given without its name
    description: str = ""  # the first paragraph about it in the docstring

    @property
    def annotated(self) -> str:
        """The annotation as it is written, without None."""
        return ast.unparse(self.annotation).removesuffix(" | None")

    @property
    def value(self) -> Any:
        """The default, if it is a constant or a tuple of them, else None."""
        try:
            return None if self.default is None else ast.literal_eval(self.default)
        except ValueError:  # the name of a constant
            return None

    @property
    def types(self) -> list[Any]:
        """The types that it takes and that can be typed: str, Path, list[int], Literal[…]."""
        return list(_types(self.annotation, self.module))


@dataclass(frozen=True)
class Function:
    """A public function: `summary` is its docstring up to the parameters."""

    module: str
    summary: str
    parameters: dict[str, Parameter]


@cache
def read_function(name: str) -> Function:
    """Read `attnviz.<name>` from its source, with the keys of a TypedDict in ``**inputs``."""
    home, _, name = f"attnviz.{name}".rpartition(".")
    module, statement = _find(home, name)
    (node,) = ast.parse(statement).body
    assert isinstance(node, ast.FunctionDef)
    docstring = ast.get_docstring(node) or ""
    described = _descriptions(documented(docstring)) | _descriptions(docstring)
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(plain) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    parameters = {}
    for each, default in zip([*plain, *given.kwonlyargs], defaults, strict=True):
        key, taken = each.arg, each.annotation or ast.Constant(None)
        about = described.get(key, "")
        parameters[key] = Parameter(key, taken, module, default, each in plain, about)
    match given.kwarg and given.kwarg.annotation:
        case ast.Subscript(value=ast.Name(id="Unpack"), slice=ast.Name(id=keywords)):
            parameters = {**keywords_of(module, keywords), **parameters}
    return Function(module, docstring.partition("\n\nParameters\n")[0], parameters)


def keywords_of(module: str, name: str) -> dict[str, Parameter]:
    """Return the keys of a TypedDict as parameters that are None, or False, by default."""
    module, statement = _find(module, name)
    if not statement.startswith("class "):
        return {}
    (node,) = ast.parse(statement).body
    assert isinstance(node, ast.ClassDef)
    keywords: dict[str, Parameter] = {}
    for base in node.bases:
        keywords |= keywords_of(module, ast.unparse(base))
    for line in node.body:
        match line:
            case ast.AnnAssign(target=ast.Name(id=key), annotation=annotation):
                default = ast.Constant(False if ast.unparse(annotation) == "bool" else None)
                keywords[key] = Parameter(key, annotation, module, default)
    return keywords


def _descriptions(docstring: str) -> dict[str, str]:
    """Return the first paragraph about each parameter of a numpy docstring."""
    section = re.search(r"^Parameters\n-+\n(.*?)(\n\n\S.*\n-+\n|\Z)", docstring, re.S | re.M)
    described: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", section[1] if section else ""):
        names, _, text = entry.partition("\n")
        paragraph = " ".join(text.strip().partition("\n\n")[0].split())
        described |= dict.fromkeys(names.partition(" : ")[0].split(", "), paragraph)
    return described


@cache
def _statements(module: str) -> dict[str, str]:
    """Return the source of the statement that defines each name of a module, not parsed."""
    path = _PACKAGE.joinpath(*module.split(".")[1:])
    files = (path / "__init__.pyi", path.with_suffix(".pyi"), path.with_suffix(".py"))
    file = next((file for file in files if file.is_file()), path / "__init__.py")
    text = re.sub(
        r"^if TYPE_CHECKING:\n((?: .*\n|\n)+)",
        lambda block: dedent(block[1]),
        file.read_text("utf-8"),
        flags=re.M,
    )
    named: dict[str, str] = {}
    for source in re.split(r"\n(?=[^\s)\]}#])", text):
        if found := re.match(r"from (\S+) import (\([^)]*|.*)", source):
            home, names = found.groups()
            named |= {name: f"from {home} import {name}" for name in re.findall(r"\w+", names)}
        elif found := re.match(r"(?:def |class )?(\w+)", source):
            named[found[1]] = source
    return named


def _find(module: str, name: str) -> tuple[str, str]:
    """Return the module that defines a name, and the statement; an empty one if it is not ours."""
    statement = _statements(module).get(name, "")
    if not statement.startswith("from "):
        return module, statement
    home = statement.split()[1]
    home = home if home[0] != "." else f"attnviz{home}"
    return _find(home, name) if home.startswith("attnviz.") else (home, "")


def _types(node: ast.expr | None, module: str) -> Iterator[Any]:
    """Yield the types in an annotation that a command can take."""
    match node:
        case ast.Constant(value=str(text)):
            yield from _types(ast.parse(text, mode="eval").body, module)
        case ast.BinOp(left=left, right=right):
            yield from _types(left, module)
            yield from _types(right, module)
        case ast.Attribute(attr="PathLike") | ast.Subscript(value=ast.Attribute(attr="PathLike")):
            yield Path
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            yield Literal[ast.literal_eval(values)]
        case ast.Subscript(value=ast.Name(id=name), slice=item) if name in _LISTS:
            yield from (list[each] for each in _types(item, module))  # type: ignore[valid-type]
        case ast.Name(id=name) if name in _PLAIN:
            yield _PLAIN[name]
        case ast.Name(id=name):
            home, statement = _find(module, name)
            if re.match(r"\w+(: TypeAlias)? = ", statement):
                yield from _types(ast.parse(statement).body[0].value, home)  # type: ignore[attr-defined]
