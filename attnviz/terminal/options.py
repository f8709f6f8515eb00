"""The options that commands share, each declared once, and what a command does with them.

An option group is a dataclass whose annotated fields are options; `option_groups` gives them to
Typer. The checks here need neither torch nor a model: wrong input is refused in a moment.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    get_args,
    get_origin,
    get_type_hints,
)
from unicodedata import combining, normalize

import typer
from typer.models import ArgumentInfo

from attnviz.errors import AttnvizWarning, InputError, did_you_mean, expect_words, is_unicode
from attnviz.io.files import check_output, is_file, read_text

if TYPE_CHECKING:
    from attnviz.pipeline.attend import Model
    from attnviz.results import AttentionResult

_MAX_TEXT_BYTES = 2**26  # of a text file
_MAX_SENTENCE_BYTES = 10_000_000  # of a file of sentences


MapMode = Literal["auto", "full", "streamed"]


def parse_index(value: str) -> int:
    """Return the number of a layer or of a head; typer reads 0-3 as -3."""
    try:
        return int(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r:.60} is not a whole number, such as 3") from None


# --- single options that several commands share

Stack = Annotated[
    str | None,
    typer.Option(
        help="Attention to show if the model has several kinds: encoder, decoder, cross, vision, "
        "text, audio or linear.",
        show_default="cross if there is one, else the first",
    ),
]
Layer = Annotated[
    int | None,
    typer.Option(
        help="Layer, counted from 0.", show_default="chosen", parser=parse_index, metavar="<int>"
    ),
]
Head = Annotated[
    int | None,
    typer.Option(
        help="Head, counted from 0.",
        show_default="the one that relates content words most",
        parser=parse_index,
        metavar="<int>",
    ),
]
Words = Annotated[bool, typer.Option("--words/--pieces", help="Merge word pieces into words.")]
SpecialTokens = Annotated[
    Literal["keep", "hide", "remove"],
    typer.Option(help="Keep special tokens, hide them, or remove them and renormalize the rows."),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Overwrite existing data. Figures and pages are always overwritten."
    ),
]
_ADVANCED = "Advanced"
Width = Annotated[
    float, typer.Option(help="Width of the figure in mm. One journal column is 89.", min=40)
]
Caption = Annotated[
    Literal["short", "full"],
    typer.Option(help="short: two lines. full: also how everything was measured."),
]
Column = Annotated[str, typer.Option(help="Column or key that holds the text.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Skip texts that cannot be read, and report how many.")
]
Seed = Annotated[int, typer.Option(help="Random seed of the shuffles and resamples.", min=0)]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=_ADVANCED),
]


# --- groups of options


@dataclass(frozen=True)
class InputOptions:
    """What the model reads, or a saved result in its place."""

    panel: ClassVar[str] = "Input"

    text: Annotated[
        str | None, typer.Argument(help="Text for the model to read.", show_default=False)
    ] = None
    file: Annotated[
        Path | None, typer.Option(help="UTF-8 file with the text for the model to read.")
    ] = None
    image: Annotated[
        Path | None, typer.Option(help="Image for the model to read: .png, .jpg, …")
    ] = None
    audio: Annotated[
        Path | None, typer.Option(help="Audio for the model to read: a .wav file.")
    ] = None
    pair: Annotated[str | None, typer.Option(help="Second text of a sentence pair.")] = None
    target: Annotated[
        str | None, typer.Option(help="Text fed to the decoder of an encoder-decoder model.")
    ] = None
    generate: Annotated[
        int | None,
        typer.Option(help="Generate this many tokens greedily and include them.", min=1),
    ] = None
    result: Annotated[
        Path | None,
        typer.Option(
            help="Saved result (verify -o or save_result) to use instead of a text and a model."
        ),
    ] = None

    source: Path | None = None  # the file that `text` was read from

    def checked(self) -> InputOptions:
        """Return the inputs, with the text of --file as `text`; raise InputError if unusable."""
        if self.result is not None:
            if replace(self, result=None) != InputOptions():
                raise InputError("--result replaces all other inputs. Leave one of them out.")
            return self
        if self.file is not None:
            if self.text is not None:
                raise InputError("A text and a --file exclude each other. Leave one out.")
            text = read_text(self.file, most=_MAX_TEXT_BYTES)
            return replace(self, file=None, text=text, source=self.file).checked()
        for name, words in (("text", self.text), ("--pair", self.pair), ("--target", self.target)):
            if words is not None and not is_unicode(words) and sys.flags.utf8_mode == 0:
                encoding = sys.getfilesystemencoding()
                if encoding != "utf-8":
                    raise InputError(
                        f"The {name} is not {encoding}, the encoding of this locale. Set another "
                        "one: LC_ALL=C.UTF-8."
                    )
            if words is not None:
                expect_words(words, f"The {name}")
        for kind, path in (("image", self.image), ("audio", self.audio)):
            if path is not None and not is_file(path):
                raise InputError(f"There is no {kind} file {path}: check the path.")
        if self.text is None and self.image is None and self.audio is None:
            raise InputError(
                "There is nothing to read. Give a text, an --image or an --audio file."
            )
        return self

    def refuse_overwriting(self, path: Path) -> None:
        """Raise InputError if a file to write is one of the files to read."""
        files = {
            "text": self.source, "image": self.image, "audio": self.audio, "result": self.result
        }  # fmt: skip
        for kind, file in files.items():
            refuse_overwriting(path, file, kind)


def refuse_overwriting(path: Path, file: Path | None, kind: str) -> None:
    """Raise InputError if a file to write is one to read, of some kind."""
    if file is not None and file.exists() and path.exists() and path.samefile(file):
        raise InputError(f"{path} is the {kind} to read. Name another file to write: -o FILE.")


@dataclass(frozen=True)
class ModelOptions:
    """Which model to load, where and in which precision."""

    panel: ClassVar[str] = "Model"

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Model name on the Hugging Face hub or a local folder.",
            show_default="the bundled all-MiniLM-L6-v2",
        ),
    ] = None
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE",
            help="Device to run on: cpu, cuda, cuda:N, or auto, which is CUDA if available.",
        ),
    ] = "auto"
    device_map: Annotated[
        str | None,
        typer.Option(
            help="Spread a model that is too large for one device, instead of --device: auto fills "
            "the GPUs, then memory, then disk; or balanced, balanced_low_0, sequential, disk.",
            show_default="one device",
            rich_help_panel=_ADVANCED,
        ),
    ] = None
    offload_folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the weights that --device-map puts on disk and that have to be "
            "converted first.",
            rich_help_panel=_ADVANCED,
        ),
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, float16, bfloat16 or float64.", show_default="as the weights were saved"
        ),
    ] = None

    special_tokens: Annotated[
        Literal["split", "parse"],
        typer.Option(
            help="Read special tokens typed in a text ([MASK], chat markers) as plain text (split) "
            "or as the tokens that they name (parse).",
            rich_help_panel=_ADVANCED,
        ),
    ] = "split"

    def load(self, name: str | None = None) -> Model:
        """Load the model, or the model called `name` with the same options."""
        from attnviz.terminal.console import progress_bar

        with progress_bar(f"loading {name or self.model or 'the bundled model'}"):
            return self._load(name)

    def _load(self, name: str | None) -> Model:
        from attnviz.pipeline.attend import load

        return load(
            name or self.model,
            device=self.device,
            dtype=self.dtype,
            device_map=self.device_map,
            offload_folder=self.offload_folder,
            special_tokens=self.special_tokens,
        )


@dataclass(frozen=True)
class RunOptions(ModelOptions):
    """A model, and how to run it."""

    truncate: Annotated[bool, typer.Option(help="Cut a text that is too long for the model.")] = (
        False
    )
    mode: Annotated[
        MapMode,
        typer.Option(
            help="Store whole maps (full), or reduce them while the model runs (streamed). auto "
            "streams long texts.",
            rich_help_panel=_ADVANCED,
        ),
    ] = "auto"

    @cached_property
    def loaded(self) -> Model:
        """The model, loaded once."""
        return self.load()

    def expect_heads(
        self,
        inputs: InputOptions,
        layers: Sequence[int | None],
        heads: Sequence[int | None] = (),
    ) -> None:
        """Raise InputError for what the model cannot have, before its weights are read."""
        asked = [[number for number in of if number is not None] for of in (layers, heads)]
        if any(asked) and inputs.result is None:
            from attnviz.models.checkpoint import expect_heads

            expect_heads(self.model, *asked)

    def attend(self, inputs: InputOptions, **streaming: Any) -> AttentionResult:
        """Run the model on the inputs, or read the saved result.

        streaming : options of `attnviz.attend` for long texts.
        """
        if inputs.result is not None:
            result = self._read_result(inputs.result)
        else:
            result = self._run(inputs, streaming)
        for note in result.notes:
            warnings.warn(f"Note: {note}.", AttnvizWarning, stacklevel=2)
        return result

    def _run(self, inputs: InputOptions, streaming: dict[str, Any]) -> AttentionResult:
        from attnviz.pipeline.attend import attend
        from attnviz.pipeline.run import IfStreamed
        from attnviz.terminal.console import progress_bar

        model = self.loaded
        for name in {"layers", "heads", "exact"} & streaming.keys():
            streaming[name] = streaming[name] and IfStreamed(streaming[name])
        with progress_bar("reading the text, verifying the attention"):
            return attend(
                inputs.text,
                image=inputs.image,
                audio=inputs.audio,
                pair=inputs.pair,
                target=inputs.target,
                generate=inputs.generate,
                model=model,
                truncate=self.truncate,
                mode=self.mode,
                **streaming,
            )

    def _read_result(self, path: Path) -> AttentionResult:
        """Return the result of a file; refuse the options of a run."""
        for option in fields(self):
            if option.name != "mode" and getattr(self, option.name) != option.default:
                name = option.name.replace("_", "-")
                raise InputError(
                    f"--result runs no model, so --{name} does nothing. Leave one out."
                )
        from attnviz.io.result_file import load_result
        from attnviz.results import AttentionResult

        result = load_result(path)
        if not isinstance(result, AttentionResult):
            raise InputError(
                f"{path} holds {type(result).__name__}, not a whole result. Save one: attnviz "
                "verify TEXT -o result.safetensors."
            )
        mode = "streamed" if result.streamed else "full"
        if self.mode not in (mode, "auto"):
            raise InputError(
                f"{path} holds {mode} maps, not {self.mode} maps. Run the model again."
            )
        return result


@dataclass(frozen=True)
class FigureOptions:
    """Where to write the figure or its data.

    default_output : the figure that is written without --output; None writes no file.
    """

    panel: ClassVar[str] = "Output"

    default_output: str | None = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write: .png, .svg, .pdf; or data: .json, .npz, .safetensors, .parquet.",
            show_default="{0.described_default}",
        ),
    ] = None
    force: Force = False
    width: Width = 183.0
    caption: Caption = "short"

    @property
    def appearance(self) -> dict[str, Any]:
        """The width of the figure and the length of its caption."""
        return {"width": self.width, "caption": self.caption}

    @property
    def described_default(self) -> str:
        """The default of --output in the help."""
        return self.default_output or "no file"

    def path(self, *, json: bool, inputs: InputOptions | None = None) -> Path | None:
        """Return the file to write, checked before anything slow; None to write no file.

        json : the data are printed, so only a file that was asked for is written.
        inputs : what is read, which is never overwritten.
        """
        output = self.output
        if output is None and self.default_output is not None and not json:
            output = Path(self.default_output)
        if output is None:
            return None
        path = check_output(output, force=self.force)
        if inputs is not None:
            inputs.refuse_overwriting(path)
        return path


@dataclass(frozen=True)
class ConsoleOptions:
    """What is printed."""

    panel: ClassVar[str] = "Output"

    json: Annotated[
        bool, typer.Option("--json", help="Print the data as JSON to standard output.")
    ] = False
    debug: Debug = False


def option_groups(
    *, without: Collection[str] = ()
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Let Typer see the fields of a command's option groups as options of the command.

    A group is a parameter whose type is a dataclass, and its default is an instance that holds the
    defaults of the fields. The command gets an instance of each group. `{0.name}` in `show_default`
    stands for an attribute of the default instance. `panel` is where the help lists its options.

    without : fields of the groups that the command does not offer.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        groups: dict[str, Any] = {}
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if is_dataclass(parameter.annotation):
                group: Any = parameter.default
                if group is parameter.empty:
                    group = parameter.annotation()  # type: ignore[operator]
                groups[parameter.name] = group
                parameters += _group_parameters(group, without)
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @wraps(command)
        def run(**values: Any) -> int:
            instances = {}
            for name, group in groups.items():
                names = [field.name for field in fields(group) if field.name in values]
                instances[name] = replace(group, **{name: values.pop(name) for name in names})
            return command(**values, **instances)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {option.name: option.annotation for option in parameters}
        return run

    return decorate


def _group_parameters(group: Any, without: Collection[str]) -> list[inspect.Parameter]:
    """Return a parameter for each field of a group that is an option."""
    parameters = []
    hints = get_type_hints(type(group), include_extras=True)
    for field in fields(group):
        if get_origin(hints[field.name]) is not Annotated or field.name in without:
            continue
        kind, option = get_args(hints[field.name])
        option = copy(option)
        option.rich_help_panel = option.rich_help_panel or getattr(group, "panel", None)
        if isinstance(option, ArgumentInfo):
            option.rich_help_panel = None
        if isinstance(option.show_default, str):
            option.show_default = option.show_default.format(group)
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(group, field.name),
                annotation=Annotated[kind, option],
            )
        )
    return parameters


# --- values with a syntax


def parse_slice(value: str | None, option: str) -> slice | None:
    """Return the slice of START:STOP, where either may be left out."""
    if value is None:
        return None
    start, colon, stop = (number.strip() for number in value.partition(":"))
    if not colon or not all(number == "" or _is_index(number) for number in (start, stop)):
        raise InputError(f"{option} must be START:STOP, not {value!r}. For example: {option} 0:20.")
    return slice(*(int(number) if number else None for number in (start, stop)))


def parse_patch(value: str | None) -> tuple[int, int] | str | None:
    """Return (row, column) of ROW,COLUMN, and anything else as the token that it is."""
    row, _, column = (number.strip() for number in (value or "").partition(","))
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


def expect_in_text(words: Sequence[str], inputs: InputOptions) -> None:
    """Raise InputError for a word that cannot be in the text, before a model is loaded.

    Other words than those of the text may come from an image, a decoder or a generation.
    """
    if inputs.text is None or inputs.target is not None or inputs.generate is not None:
        return
    text = f"{inputs.text} {inputs.pair or ''}"
    for word in words:
        name = word.partition("#")[0]
        if name.isalnum() and _without_accents(name) not in _without_accents(text):
            hint = did_you_mean(name, text.split()) or f"Its words are {text.strip():.60}."
            raise InputError(f"{name!r:.60} is not a word of the text. {hint}")


def _without_accents(text: str) -> str:
    """Return a text in small letters without accents, as some tokenizers read it."""
    letters = normalize("NFKD", text.casefold())
    return "".join(letter for letter in letters if not combining(letter))


def parse_named_sentences(values: Sequence[str], option: str) -> dict[str, list[str]] | None:
    """Return the sentences by name of NAME=SENTENCE or NAME=FILE; None without any.

    A file holds one sentence per line. A name may be used several times.
    """
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
    return sentences or None
