"""What commands share: options that no signature has, values with a syntax, and output.

Results go to standard output, progress to standard error. Nothing here loads torch.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress, SpinnerColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from attnviz.errors import InputError
from attnviz.io import is_file, read_text
from attnviz.runtime import is_listened, listening, say

if TYPE_CHECKING:
    from attnviz.models import Architecture
    from attnviz.results import AgreementReport

_MAX_SENTENCE_BYTES = 10_000_000  # of a file of sentences
ADVANCED = "Advanced"
# Other spellings than the name of the parameter.
_FLAGS = {
    "model": ("--model", "-m"),
    "output": ("--output", "-o"),
    "out": ("--out", "--output", "-o"),
    "words": ("--words/--pieces",),
    "columns": ("--columns", "--cols"),
    "methods": ("--methods", "--method"),
    "groups": ("--groups", "--group"),
    "sentences": ("--sentences", "--sense"),
    "open_browser": ("--open",),
}


def option(
    name: str, kind: Any, help: str, panel: str | None = None, default: Any = None, **how: Any
) -> inspect.Parameter:
    """Return an option as typer reads it; without a default it is None, or False, if not typed."""
    default = False if kind is bool and default is None else default
    word = f"--{name.replace('_', '-')}"
    flags = _FLAGS.get(name) or (f"{word}/--no-{word[2:]}" if default is True else word,)
    return typed(name, kind, typer.Option(*flags, help=help, rich_help_panel=panel, **how), default)


def typed(name: str, kind: Any, declared: Any, default: Any) -> inspect.Parameter:
    """Return a parameter of a command that is declared as an option or an argument of typer."""
    annotation: Any = Annotated[kind | None if default is None else kind, declared]
    by_name = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, by_name, default=default, annotation=annotation)


_FURTHER = (
    option(
        "stack",
        str,
        "Attention to show if the model has several kinds: encoder, decoder, cross, vision, text, "
        "audio or linear.",
        show_default="cross if there is one, else the first",
    ),
    option("file", Path, "UTF-8 file with the text for the model to read.", "Input"),
    option(
        "result",
        Path,
        "Saved result (verify -o or save_result) to use instead of a text and a model.",
        "Input",
    ),
    option(
        "force",
        bool,
        "Overwrite existing data. Figures and pages are always overwritten.",
        "Output",
    ),
    option(
        "width",
        float,
        "Width of the figure in mm. One journal column is 89.",
        "Output",
        min=40,
        show_default="183; 89 for a heatmap of one head and up to 12 words",
    ),
    option(
        "caption",
        Literal["short", "full"],
        "short: two lines. full: also how everything was measured.",
        "Output",
        "short",
    ),
    option("json", bool, "Print the data as JSON to standard output.", "Output"),
    option("open", bool, "Open the page in the browser.", "Output"),
    option("debug", bool, "Show the traceback of an error.", ADVANCED),
    # Those of one command: heatmap, view and serve
    option(
        "find", str, "Two words. Rank the heads by the weight between them.", metavar="QUERY:KEY"
    ),
    option("compare", str, "Second text to compare with, word by word."),
    option(
        "explain", bool, "Explain each generated token by the words before it. Needs --generate."
    ),
    option(
        "measure",
        bool,
        "Compare each explanation with the effects of changing the words, measured in separate "
        "runs.",
    ),
    option(
        "live",
        str,
        "Folder to write instead: its page runs the bundled model in the browser, on any text.",
        "Output",
        metavar="<path>",
    ),
    option(
        "model",
        list[str],
        "Model to offer, a hub name or a local folder. Repeat it for several models.",
        show_default="the bundled all-MiniLM-L6-v2",
    ),
    option(
        "port", int, "Port to listen on. 0 takes any free port.", default=8765, min=0, max=65535
    ),
    option("max_tokens", int, "Most tokens of a text.", default=512, min=1),
    option("time_limit", float, "Most seconds that an answer may take.", default=30.0, min=0.1),
    option("open_browser", bool, "Open the page."),
)
FURTHER = {each.name: each for each in _FURTHER}  # options that belong to no function


def parse_index(value: str) -> int:
    """Return a whole number; typer reads 0-3 as -3."""
    try:
        return int(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r:.60} is not a whole number, such as 3") from None


def parse_slice(value: str, option: str) -> slice:
    """Return the slice of START:STOP, where either may be left out."""
    start, colon, stop = (number.strip() for number in value.partition(":"))
    if not colon or not all(number == "" or _is_index(number) for number in (start, stop)):
        raise InputError(f"{option} must be START:STOP, not {value!r}. For example: {option} 0:20.")
    return slice(*(int(number) if number else None for number in (start, stop)))


def parse_patch(value: str, option: str = "--patch") -> tuple[int, int] | str:
    """Return (row, column) of ROW,COLUMN, and anything else as the token that it is."""
    row, _, column = (number.strip() for number in value.partition(","))
    return (int(row), int(column)) if _is_index(row) and _is_index(column) else value


def _is_index(number: str) -> bool:
    return number.isdecimal() and len(number) < 19  # Python converts at most 4,300 digits


def parse_word_pair(value: str) -> tuple[str, str]:
    """Return the query word and the key word of QUERY:KEY."""
    query, colon, key = (word.strip() for word in value.partition(":"))
    if not (query and colon and key):
        raise InputError(
            f"--find must be two words as QUERY:KEY, not {value!r}. For example: --find "
            "train:station."
        )
    return query, key


def parse_named_sentences(values: Sequence[str], option: str) -> dict[str, list[str]]:
    """Return the sentences by name of NAME=SENTENCE or NAME=FILE, which has one on each line."""
    sentences: dict[str, list[str]] = {}
    for value in values:
        name, equals, content = (side.strip() for side in value.partition("="))
        if not (equals and name and content):
            raise InputError(
                f"{option} must be NAME=SENTENCE or NAME=FILE, not {value[:60]!r}. Write {option} "
                'river="We sat on the bank.", for example.'
            )
        if is_file(content):
            text = read_text(Path(content), most=_MAX_SENTENCE_BYTES)
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if not lines:
                raise InputError(f"{content} has no sentences for {name!r}. Add some.")
        else:
            is_one_word = len(content.split()) == 1
            looks_like_a_file = is_one_word and ("/" in content or Path(content).suffix)
            if looks_like_a_file and content[-1] not in ".!?…":
                raise InputError(f"For {name!r} there is no file {content}. Check its name.")
            lines = [content]
        sentences.setdefault(name, []).extend(lines)
    return sentences


def parse_heads(values: Sequence[str], option: str) -> list[list[tuple[int, int]]]:
    """Return the sets of heads that are written as 17.5,18.6."""
    sets = []
    for value in values:
        heads = []
        for name in map(str.strip, value.split(",")):
            layer, _, head = name.partition(".")
            if not (_is_index(layer) and _is_index(head)):
                raise InputError(
                    f"{option}: {name!r:.60} is not a head. Write its layer and head, such as 17.5."
                )
            heads.append((int(layer), int(head)))
        sets.append(heads)
    return sets


class Syntax(NamedTuple):
    """How values of a type are typed: the type of an option, its form in the help, its parser."""

    kind: Any
    form: str
    parse: Callable[[Any, str], Any]


# By the annotation of the parameter, without None.
SYNTAX = {
    "slice": Syntax(str, "START:STOP", parse_slice),
    "Patch": Syntax(str, "ROW,COLUMN|TOKEN", parse_patch),
    "Mapping[str, str | Sequence[str]]": Syntax(
        list[str], "NAME=TEXT|NAME=FILE", parse_named_sentences
    ),
    "Literal['all'] | Sequence[Head | Sequence[Head]]": Syntax(
        list[str], "LAYER.HEAD,…", parse_heads
    ),
}


class LiteralConsole(Console):
    """A console that shows control characters, and wraps lines in a terminal only."""

    def __init__(self, **how: Any) -> None:
        super().__init__(highlight=False, **how)
        self.soft_wrap = not self.is_terminal

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Render, with control characters made visible."""
        from attnviz.results.text import literal

        for text, style, control in super().render(renderable, options):
            lines = text.split("\n")
            shown = text if control else "\n".join(literal(line, len(line)) for line in lines)
            yield Segment(shown, style, control)


_STAGES = "query", "key", "value", "scores", "weights", "head output", "output"
_LEGEND = (
    "attn: how many attentions were executed, linear ones among them; compared in each: Q, K, V "
    "from the input, S scores, A weights, H each head's output, O output; largest: difference of "
    "weights"
)
_COLORS = {"agrees": "green", "differs": "bold red", "not read": "red", "random": "yellow"}

console = LiteralConsole()


def print_verdict(agreement: AgreementReport | None, path: Path | None, *, json: bool) -> int:
    """Print whether the attention is verified and which file was written; return the exit code."""
    verified = agreement is None or agreement.verdict == "verified"
    errors = LiteralConsole(stderr=True)
    output = errors if json else console
    if agreement is not None and not (json and verified):
        verdict = Text(agreement.summary(), style="green" if verified else "bold red")
        (output if verified else errors).print(verdict)
    if path is not None:
        output.print(Text(f"wrote {path}"), soft_wrap=True)
    return 0 if verified else 5


def print_json(data: dict[str, Any]) -> None:
    """Print data as one JSON object."""
    from attnviz.io.export import to_json

    sys.stdout.write(to_json(data) + "\n")


@contextmanager
def progress_bar(name: str) -> Iterator[None]:
    """Show in a terminal what the code inside does, and its progress where it is known."""
    stderr = Console(stderr=True)
    if is_listened() or not stderr.is_terminal:  # a bar is shown already, or nobody sees one
        say(name)
        yield
        return
    bar = Progress(
        SpinnerColumn(),
        *Progress.get_default_columns(),
        console=stderr,
        transient=True,
    )
    task = bar.add_task(name, total=None)

    def update(name: str, share: float) -> None:
        bar.update(task, description=name, total=1.0, completed=share)

    with bar, listening(update):
        yield


def wide_console() -> Console:
    """Return a console that is wide enough for tables where nobody sees them."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=100)


def print_models(models: Sequence[Architecture]) -> None:
    """Print a row for each model, the reasons of some states, and how many models agree."""
    from attnviz.models import last_check, summary
    from attnviz.runtime import version_of

    console = wide_console()
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), collapse_padding=True)
    table.add_column("model", overflow="fold")
    for name in ("attn", "reached", "compared", "largest", "state"):
        justify: Literal["left", "right"] = "right" if name in ("attn", "largest") else "left"
        table.add_column(name, justify=justify, no_wrap=True)
    for model in models:
        stages = [x if s in model.stages else "·" for s, x in zip(_STAGES, "QKVSAHO", strict=True)]
        table.add_row(
            Text(model.name),
            str(model.attentions + model.linear or ""),
            model.reached,
            "".join(stages) if model.stages else "",
            "" if model.difference is None else f"{model.difference:.0e}",
            Text(model.state, _COLORS.get(model.state, "dim")),
        )
    if models:
        console.print(table)
        console.print(Text(_LEGEND, "dim"))
    for model in models:
        if model.reason:
            console.print(Text(f"{model.name}: {model.reason}"))
    console.print(Text(summary(models), "bold"))
    if version_of("transformers") != last_check().transformers:
        console.print(Text(f"installed is transformers {version_of('transformers')}"))
