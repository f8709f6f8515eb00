"""Commands made of public functions: a parameter is an option, and its docstring the help.

Functions are read from their source, so that help loads no torch. `attnviz/app.py` declares what no
signature says.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import typer

import attnviz
from attnviz.errors import AttnvizWarning, InputError, expect_words, is_unicode
from attnviz.figures import documented
from attnviz.io import DATA_SUFFIXES, FIGURE_SUFFIXES, check_output, is_file, read_text
from attnviz.runtime import say
from attnviz.terminal import (
    ADVANCED,
    FURTHER,
    SYNTAX,
    console,
    option,
    parse_index,
    print_json,
    print_verdict,
    progress_bar,
    typed,
)

if TYPE_CHECKING:
    from attnviz.pipeline.attend import Model
    from attnviz.results import AgreementReport, AttentionResult

_PACKAGE = Path(__file__).parents[1]
_PLAIN: dict[str, type] = {each.__name__: each for each in (bool, str, float, int, Path)}
_LISTS = ("Sequence", "Many", "list", "Iterable")
_MAX_TEXT_BYTES = 2**26  # of a text file
_TEXTS = ("text", "texts")
_CHOSEN = ("layers", "heads", "exact")  # of `attend`: they follow from the --layer of a map
# The panel of a group of parameters, and of a parameter that is not in that of its group.
_PANELS = {
    "inputs": "Input",
    "loads": "Model",
    "truncate": "Model",
    **dict.fromkeys(("cells", "mode", "positions", "sampling_rate", "top"), ADVANCED),
    **dict.fromkeys(("device_map", "offload_folder"), ADVANCED),
    **dict.fromkeys(("processor", "special_tokens", "tokenizer"), ADVANCED),
}
COMMANDS: dict[str, Callable[..., int]] = {}  # in the order of the help


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


@dataclass(frozen=True)
class Command:
    """What the signature of a function does not say about its command.

    Several names are one text, with blanks between them.
    """

    function: str  # the public function
    output: str | None = None  # the file that is written without --output
    offers: str = "output force width caption json"  # the options of `FURTHER` that it has
    suffixes: tuple[str, ...] = FIGURE_SUFFIXES + DATA_SUFFIXES  # that --output may have
    doing: str = "computing"  # what the progress bar shows
    arguments: str | None = None  # typed without a name; by default the positional ones
    without: str = ""  # parameters that are no options
    defaults: Mapping[str, Any] = field(default_factory=dict)  # other than those of the function
    first: Callable[[dict[str, Any]], object] | None = None  # a check before torch is loaded
    loads: bool = False  # loads models though the function takes no `model`

    def __call__(self, body: Callable[[Call], int] | None = None) -> Callable[..., int]:
        """Return what typer makes a command of, and add it to `COMMANDS`: it runs `body`.

        By default the command has the name of its function, and computes, saves and prints.
        """
        declared = {
            group: [self._declare(parameter, group) for parameter in parameters.values()]
            for group, parameters in self.groups.items()
        }
        own_first = [*declared["own"], *declared["inputs"]]
        panels = [None, "Input", "Output", "Model", ADVANCED]
        listed = [*own_first, *self._further(), *declared["loads"]]
        listed.sort(key=lambda one: panels.index(get_args(one.annotation)[1].rich_help_panel))
        options = {each.name: each for each in reversed(listed)}  # the first of a name
        order = (*(self.arguments or "").split(), *(each.name for each in listed))
        options = {name: options[name] for name in order}

        def run(**values: Any) -> int:
            call = Call(self, values)
            return body(call) if body else call.report(call.compute())

        run.__doc__ = body.__doc__ if body else read_function(self.function).summary
        run.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
        run.__annotations__ = {name: each.annotation for name, each in options.items()}
        COMMANDS[body.__name__ if body else self.function] = run
        return run

    @cached_property
    def subject(self) -> str | None:
        """The parameter that takes what `attend` returns."""
        taking = (p for p in self.parameters.values() if "AttentionResult" in p.annotated)
        return next((p.name for p in taking if p.positional), None)

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters of the function; none where there is no function."""
        return read_function(self.function).parameters if self.function else {}

    @cached_property
    def groups(self) -> dict[str, dict[str, Parameter]]:
        """The parameters that may be options, by the function that takes them."""
        attend = read_function("attend")
        keywords = keywords_of(attend.module, "OneInput")
        inputs: dict[str, Parameter] = {}
        if self.subject is not None:
            inputs = {"text": attend.parameters["text"]} | {
                name: replace(key, default=attend.parameters[name].default)
                for name, key in keywords.items()
                if name not in _CHOSEN
            }
        own = {
            name: parameter
            for name, parameter in self.parameters.items()
            if name not in ("model", self.subject)
            and (parameter.description or name not in (*inputs, *_CHOSEN))
        }
        loads: dict[str, Parameter] = {}
        if self.loads or self.subject or "model" in self.parameters:
            first, *others = read_function("load").parameters.values()
            loads = {each.name: each for each in (replace(first, name="model"), *others)}
        groups = {"own": own, "inputs": inputs, "loads": loads}
        without = self.without.split()
        return {
            group: {name: each for name, each in parameters.items() if name not in without}
            for group, parameters in groups.items()
        }

    def _declare(self, parameter: Parameter, group: str) -> inspect.Parameter:
        """Return a parameter as typer reads it."""
        name, syntax = parameter.name, SYNTAX.get(parameter.annotated)
        kind = syntax.kind if syntax else _kind(name, parameter.types)
        default, described = self.defaults.get(name, parameter.value), _description(parameter)
        form = "<path>" if Path in parameter.types and group != "loads" else None
        how: dict[str, Any] = {"metavar": syntax.form if syntax else form}
        if kind in (int, list[int]):
            how = {"parser": parse_index, "metavar": "<int>" if kind is int else "<list[int]>"}
        if get_origin(kind) is list:
            shown = isinstance(default, tuple) and ", ".join(default)
            how["show_default"], default = shown or False, None
        by_place = parameter.positional and name != "model"
        if by_place if self.arguments is None else name in self.arguments.split():
            is_needed = parameter.default is None and name not in self.texts
            default = inspect.Parameter.empty if is_needed else None
            return typed(name, kind, typer.Argument(help=described, show_default=False), default)
        if get_origin(kind) is list:
            described += " Repeat the option for several."
        panel = _PANELS.get(name, _PANELS.get(group))
        if group == "own" and not parameter.description:  # a keyword of `attend`
            panel = panel or "Input"
        return option(name, kind, described, panel, default, **how)

    def _further(self) -> list[inspect.Parameter]:
        """Return the options that belong to no function."""
        inputs = {"result": self.subject, "file": self.texts}
        names = [*(name for name, has in inputs.items() if has), *self.offers.split(), "debug"]
        suffixes, shown = ", ".join(self.suffixes), self.output or "no file"
        output = option("output", Path, f"File to write: {suffixes}.", "Output", show_default=shown)
        return [output if name == "output" else FURTHER[name] for name in names]

    @cached_property
    def texts(self) -> list[str]:
        """The parameters that take the text of --file."""
        given = {**self.groups["inputs"], **self.groups["own"]}
        return [name for name in _TEXTS if name in given and Path not in given[name].types]


def _kind(name: str, types: Sequence[Any]) -> Any:
    """Return the type of an option whose parameter takes these types; None for no option."""
    if name == "text":
        return str
    choices = [kind for kind in types if get_origin(kind) is Literal]
    scalar = next((kind for kind in (bool, str, float, int) if kind in types), None)
    if scalar in (bool, str) and (scalar is bool or Path in types):
        return scalar
    if scalar is None and choices:
        return choices[0]
    lists = [list[each] for each in ((str, int) if scalar is None else (scalar,))]  # type: ignore[valid-type]
    return next((kind for kind in lists if kind in types), scalar)


def _description(parameter: Parameter) -> str:
    """Return what is said about a parameter, or about the one that its docstring refers to."""
    text, name = parameter.description, parameter.name
    if not text:  # a keyword of `attend`
        text = read_function("attend").parameters[name].description
    if found := re.match(r"As in `(\w+)`[.;]", text):
        return _description(read_function(found[1]).parameters[name])
    return text


def _of(names: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _expect_text(text: str, subject: str) -> None:
    """Raise InputError for a text that is blank, or typed in another encoding."""
    encoding = sys.getfilesystemencoding()
    if not is_unicode(text) and sys.flags.utf8_mode == 0 and encoding != "utf-8":
        raise InputError(
            f"{subject} is not {encoding}, the encoding of this locale. Set another one: "
            "LC_ALL=C.UTF-8."
        )
    expect_words(text, subject)


class Call:
    """One run of a command: its values by what they are for, checked before anything slow.

    given : all that was typed. values : arguments of the function; inputs, loads and look : of
    `attend`, `load` and the drawing function.
    """

    def __init__(self, command: Command, typed: dict[str, Any]) -> None:
        self.command, groups = command, command.groups
        given = {name: value for name, value in typed.items() if value not in (None, [], ())}
        self.given = given
        fixed = _of(command.without.split(), command.defaults)
        own, self.inputs = _of(groups["own"], given), fixed | _of(groups["inputs"], given)
        self.loads = _of(groups["loads"], given)
        self.look = _of(("width", "caption"), given)
        # What a function loads the model with, once it has checked its other arguments.
        self.loader: Any = partial(getattr, self, "model")
        self.json, self.force = given.get("json", False), given.get("force", False)
        self.result: Path | None = given.get("result")
        if self.result is not None:
            self._refuse_beside_a_result()
        elif "file" in given and "file" not in own:
            self._read_file(own, given["file"])
        for name in command.texts:
            if name in groups["own"] and groups["own"][name].default is None and name not in own:
                raise InputError("There is nothing to read. Give a text, or a --file with one.")
        for name, value in (own | self.inputs).items():
            if name in ("text", "pair", "target") and isinstance(value, str):
                _expect_text(value, "The text" if name == "text" else f"The --{name}")
        self.values = {name: self._parse(name, value) for name, value in own.items()}
        self.path = self._find_path()
        if command.first is not None:
            command.first(self.values)

    def _refuse_beside_a_result(self) -> None:
        """Raise InputError for options that a saved result makes useless."""
        groups = self.command.groups
        for name, parameter in {"file": None, **groups["inputs"], **groups["loads"]}.items():
            default = parameter and self.command.defaults.get(name, parameter.value)
            if name == "mode" or self.given.get(name) in (None, default):
                continue
            if name in _PANELS or name in groups["loads"]:
                raise InputError(
                    f"--result runs no model, so --{name.replace('_', '-')} does nothing. Leave "
                    "one out."
                )
            raise InputError("--result replaces all other inputs. Leave one of them out.")

    def _read_file(self, own: dict[str, Any], file: Path) -> None:
        name = self.command.texts[0]
        home = own if name in self.command.groups["own"] else self.inputs
        if name in home:
            raise InputError("A text and a --file exclude each other. Leave one out.")
        home[name] = read_text(file, most=_MAX_TEXT_BYTES)

    def _parse(self, name: str, value: Any) -> Any:
        """Return the value of what was typed; a list of one as this one where both are taken."""
        parameter = self.command.groups["own"][name]
        if syntax := SYNTAX.get(parameter.annotated):
            return syntax.parse(value, f"--{name.replace('_', '-')}")
        is_one = isinstance(value, list | tuple) and len(value) == 1
        return value[0] if is_one and type(value[0]) in parameter.types else value

    def _find_path(self) -> Path | None:
        """Return the file to write, which can be written and is none of those that are read."""
        output = self.given.get("output") or (None if self.json else self.command.output)
        if output is None:
            return None
        path = check_output(output, self.command.suffixes, force=self.force)
        groups = self.command.groups
        files = {"text": self.given.get("file"), "result": self.result}
        for name, parameter in (groups["own"] | groups["inputs"]).items():
            if Path in parameter.types:
                files["text" if name == "file" else name] = self.given.get(name)
        for name, file in files.items():
            if file is not None and is_file(file) and path.exists() and path.samefile(file):
                raise InputError(
                    f"{path} is the {name} to read. Name another file to write: -o FILE."
                )
        return path

    def load(self, name: str | None = None) -> Model:
        """Load the model, or the model called `name` with the same options."""
        name = name or self.loads.get("model")
        with progress_bar(f"loading {name or 'the bundled model'}"):
            from attnviz.pipeline.attend import load

            model = load(name, **{key: self.loads[key] for key in self.loads if key != "model"})
        say(self.command.doing)
        return model

    @cached_property
    def model(self) -> Model:
        """The model, loaded once."""
        return self.load()

    def attend(self, text: str | None = None, **streaming: Any) -> AttentionResult:
        """Run the model on the inputs, or read the saved result.

        text : read alone, with the same settings. streaming : further arguments of `attend`.
        """
        inputs = self.inputs
        if text is not None:
            inputs = {"text": text} | _of((*_PANELS, "generate"), inputs)
        with progress_bar("starting"):
            if self.result is not None:
                result = read_result(self.result, inputs.get("mode", "auto"))
            else:
                from attnviz.pipeline import IfStreamed
                from attnviz.pipeline.attend import attend

                for name in {*_CHOSEN} & streaming.keys():
                    if (one := streaming[name]) is not None:
                        streaming[name] = IfStreamed([one] if isinstance(one, int) else one)
                say("reading the text, verifying the attention")
                result = attend(**inputs, **streaming, model=self.loader)
        for note in result.notes:
            warnings.warn(f"Note: {note}.", AttnvizWarning, stacklevel=2)
        return result.stack(self.given.get("stack")) if "stack" in self.command.offers else result

    def compute(self) -> Any:
        """Return the result of the function."""
        values = dict(self.values)
        if self.command.subject is not None:
            values[self.command.subject] = self.attend()
        elif "model" in self.command.parameters:
            values["model"] = self.loader
        with progress_bar(self.command.doing):
            return getattr(attnviz, self.command.function)(**values)

    def save_page(self, page: Any, folder: str | None = None) -> int:
        """Save a page, open it if asked to, and print the verdict; return the exit code."""
        with progress_bar("writing the page"):
            if folder is None:
                page.save(self.path, force=self.force)
            else:
                page.save_live(folder)
                self.path = Path(folder, "index.html")
        code = print_verdict(page.checked_agreement, self.path, json=False)
        if self.given["open"]:
            typer.launch(str(self.path))
        return code

    def report(
        self,
        result: Any,
        *shown: Any,
        draw: Callable[[], Any] | None = None,
        written: Path | None = None,
    ) -> int:
        """Save a result, print it, and return the exit code: 5 if it is not verified or disagrees.

        shown : what is printed for people: by default the result. draw : draws the figure, if it is
        not that of the result. written : the path that is printed, if it is not that of the figure.
        """
        from attnviz.io.export import save_result, to_data

        if self.path is not None and self.path.suffix.lower() in DATA_SUFFIXES:
            save_result(result, self.path, force=self.force)
        elif self.path is not None:
            with progress_bar("drawing"):
                import matplotlib.pyplot as plt

                from attnviz.figures.layout import save

                figure = result.plot(**self.look) if draw is None else draw()
                save(figure, self.path, force=self.force)
                plt.close(figure)
        if self.json:
            print_json(to_data(result))
        else:
            for renderable in shown or (result,):
                console.print(renderable)
        agreement: AgreementReport | None = getattr(result, "checked_agreement", None)
        agrees = getattr(result, "agrees", None)  # of a comparison, which prints its verdict
        told = None if agrees is not None and not self.json else agreement
        print_verdict(told, written or self.path, json=self.json)
        verified = agreement is None or agreement.verdict == "verified"
        return 0 if verified and agrees is not False else 5


def read_result(path: Path, mode: str | None) -> AttentionResult:
    """Return the result of `attend` in a file; raise InputError for maps of another mode."""
    from attnviz.agreement import load_result
    from attnviz.results import AttentionResult

    result = load_result(path, AttentionResult)
    stored = "streamed" if result.streamed else "full"
    if mode not in (stored, "auto"):
        raise InputError(f"{path} holds {stored} maps, not {mode} maps. Run the model again.")
    return result
