"""The options that commands share, each declared once, and what a command does with them.

An option group is a dataclass whose annotated fields are options; `option_groups` gives them to
Typer. The checks here need neither torch nor a model: wrong input is refused in a moment.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from attnviz.errors import InputError, expect_words
from attnviz.io.files import check_output, is_file, read_text

if TYPE_CHECKING:
    from attnviz.pipeline.attend import Model
    from attnviz.results import AttentionResult

_MOST_BYTES = 2**26  # of a text file
_MOST_SENTENCE_BYTES = 10_000_000  # of a file of sentences


class Special(StrEnum):
    """How to show special tokens such as [CLS] and [SEP]."""

    keep = "keep"
    hide = "hide"
    remove = "remove"


class MapMode(StrEnum):
    """How the attention maps of a run are stored."""

    auto = "auto"
    full = "full"
    streamed = "streamed"


class Device(StrEnum):
    """Where the model runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


# --- single options that several commands share

Stack = Annotated[
    str | None,
    typer.Option(
        help="Attention to show if the model has several kinds: encoder, decoder, cross, vision, "
        "text or audio.",
        show_default="cross if there is one, else the first",
    ),
]
Layer = Annotated[int | None, typer.Option(help="Layer, counted from 0.", show_default="chosen")]
Head = Annotated[
    int | None,
    typer.Option(
        help="Head, counted from 0.", show_default="the one that relates content words most"
    ),
]
Words = Annotated[bool, typer.Option("--words/--pieces", help="Merge word pieces into words.")]
SpecialTokens = Annotated[
    Special,
    typer.Option(help="Keep special tokens, hide them, or remove them and renormalize the rows."),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Overwrite existing data. Figures and pages are always overwritten."
    ),
]
Width = Annotated[
    float, typer.Option(help="Width of the figure in mm. One journal column is 89.", min=40)
]
Column = Annotated[str, typer.Option(help="Column or key that holds the text.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Skip texts that cannot be read, and report how many.")
]
Seed = Annotated[int, typer.Option(help="Random seed of the shuffles and resamples.", min=0)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


# --- groups of options


@dataclass(frozen=True)
class InputOptions:
    """What the model reads, or a saved result in its place."""

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

    def checked(self) -> InputOptions:
        """Return the inputs, with the text of --file as `text`.

        Raises
        ------
        InputError
            Nothing to read, an empty text, a file that is missing, or options that exclude each
            other.
        """
        if self.result is not None:
            if replace(self, result=None) != InputOptions():
                raise InputError(
                    "Expected something to read or a --result, got both. Leave one out."
                )
            return self
        if self.file is not None:
            if self.text is not None:
                raise InputError("Expected a text or a --file, got both. Leave one out.")
            text = read_text(self.file, "a text", most=_MOST_BYTES)
            return replace(self, file=None, text=text).checked()
        for name, words in (("text", self.text), ("--pair", self.pair), ("--target", self.target)):
            if words is not None:
                expect_words(words, name)
        for name, path in (("--image", self.image), ("--audio", self.audio)):
            if path is not None and not is_file(path):
                raise InputError(
                    f"Expected a file for {name}, but there is no file {path}. Check its name."
                )
        if self.text is None and self.image is None and self.audio is None:
            raise InputError("Expected a text, an --image or an --audio file, got none. Give one.")
        return self


@dataclass(frozen=True)
class ModelOptions:
    """Which model to load, where and in which precision."""

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
        Device, typer.Option(help="Device to run on. auto uses CUDA if available.")
    ] = Device.auto
    device_map: Annotated[
        str | None,
        typer.Option(
            help="Spread a model that is too large for one device, instead of --device: auto fills "
            "the GPUs, then memory, then disk; or balanced, balanced_low_0, sequential, disk.",
            show_default="one device",
        ),
    ] = None
    offload_folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the weights that --device-map puts on disk and that have to be "
            "converted first."
        ),
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, float16, bfloat16 or float64.", show_default="as the weights were saved"
        ),
    ] = None

    def load(self, name: str | None = None) -> Model:
        """Load the model, or the model called `name` with the same options."""
        from attnviz.pipeline.attend import load

        return load(
            name or self.model,
            device=self.device.value,
            dtype=self.dtype,
            device_map=self.device_map,
            offload_folder=self.offload_folder,
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
            "streams long texts."
        ),
    ] = MapMode.auto

    @cached_property
    def loaded(self) -> Model:
        """The model, loaded once."""
        return self.load()

    def attend(self, inputs: InputOptions, **streaming: Any) -> AttentionResult:
        """Run the model on the inputs, or read the saved result.

        streaming : options of `attnviz.attend` for long texts.
        """
        if inputs.result is not None:
            return self._read_result(inputs.result)
        from attnviz.pipeline.attend import attend
        from attnviz.terminal.console import progress_bar

        model = self.loaded
        with progress_bar():
            return attend(
                inputs.text,
                image=inputs.image,
                audio=inputs.audio,
                pair=inputs.pair,
                target=inputs.target,
                generate=inputs.generate,
                model=model,
                truncate=self.truncate,
                mode=self.mode.value,
                **streaming,
            )

    def _read_result(self, path: Path) -> AttentionResult:
        """Return the result of a file. Options of a run are refused: there is none."""
        for option in fields(self):
            if option.name != "mode" and getattr(self, option.name) != option.default:
                raise InputError(
                    f"Expected a --result or --{option.name.replace('_', '-')}, got both. No model "
                    "runs for a saved result: leave one out."
                )
        from attnviz.io.result_file import load_result
        from attnviz.results import AttentionResult

        result = load_result(path)
        if not isinstance(result, AttentionResult):
            raise InputError(
                f"Expected a whole result in {path}, got {type(result).__name__}. Save one: "
                "attnviz verify TEXT -o result.safetensors."
            )
        mode = MapMode.streamed if result.streamed else MapMode.full
        if self.mode not in (mode, MapMode.auto):
            raise InputError(
                f"Expected a result with {self.mode} maps, got one with {mode} maps in {path}. Run "
                "the model again."
            )
        return result


@dataclass(frozen=True)
class FigureOptions:
    """Where to write the figure or its data.

    default_output : the figure that is written without --output; None writes no file.
    """

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

    @property
    def described_default(self) -> str:
        """What the help says of the default of --output."""
        return self.default_output or "no file"

    def path(self, *, json: bool, image: Path | None = None) -> Path | None:
        """Return the file to write, checked before anything slow; None to write no file.

        json : the data are printed, so only a file that was asked for is written.
        image : the input, which is never overwritten.
        """
        output = self.output
        if output is None and self.default_output is not None and not json:
            output = Path(self.default_output)
        if output is None:
            return None
        path = check_output(output, force=self.force)
        if image is not None and path.exists() and path.samefile(image):
            raise InputError(
                f"{path} is the image that is read. Name another file to write: -o FILE."
            )
        return path


@dataclass(frozen=True)
class ConsoleOptions:
    """What is printed."""

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
    stands for an attribute of the default instance.

    Parameters
    ----------
    without : collection of str
        Fields of the groups that the command does not offer.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        groups: dict[str, Any] = {}
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if not is_dataclass(parameter.annotation):
                parameters.append(parameter)
                continue
            group = parameter.default
            if group is parameter.empty:
                group = parameter.annotation()  # type: ignore[operator]
            groups[parameter.name] = group
            parameters += [each for each in _group_parameters(group) if each.name not in without]

        @wraps(command)
        def run(**values: Any) -> int:
            instances = {
                name: replace(
                    group,
                    **{
                        field.name: values.pop(field.name)
                        for field in fields(group)
                        if field.name in values
                    },
                )
                for name, group in groups.items()
            }
            return command(**values, **instances)

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        )
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _group_parameters(group: Any) -> list[inspect.Parameter]:
    """Return a parameter for each field of a group that is an option."""
    parameters = []
    hints = get_type_hints(type(group), include_extras=True)
    for field in fields(group):
        if get_origin(hints[field.name]) is not Annotated:
            continue
        kind, option = get_args(hints[field.name])
        if isinstance(option.show_default, str):
            option = copy(option)
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


# --- values that are written in a syntax of their own


def parse_slice(value: str | None, option: str) -> slice | None:
    """Return the slice of START:STOP, where either may be left out."""
    if value is None:
        return None
    start, colon, stop = (number.strip() for number in value.partition(":"))
    if not colon or not all(number == "" or _is_index(number) for number in (start, stop)):
        raise InputError(
            f"Expected {option} as START:STOP, got {value!r}. For example: {option} 0:20."
        )
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
            f"Expected two words as QUERY:KEY, got {value!r}. For example: --find train:station."
        )
    return query, key


def parse_named_sentences(values: Sequence[str], option: str) -> dict[str, list[str]] | None:
    """Return the sentences by name of NAME=SENTENCE or NAME=FILE; None without any.

    A file holds one sentence per line. A name may be used several times.

    Raises
    ------
    InputError
        No "=", no name, nothing after it, or a file that is missing, empty or not text.
    """
    sentences: dict[str, list[str]] = {}
    for value in values:
        name, equals, content = (side.strip() for side in value.partition("="))
        if not (equals and name and content):
            raise InputError(
                f"Expected {option} as NAME=SENTENCE or NAME=FILE, got {value[:60]!r}. "
                f'For example: {option} river="We sat on the bank."'
            )
        path, from_file = Path(content), is_file(content)
        is_one_word = len(content.split()) == 1
        looks_like_a_file = is_one_word and ("/" in content or path.suffix)
        if not from_file and looks_like_a_file and content[-1] not in ".!?…":
            raise InputError(
                f"Expected sentences or a file for {name!r}, but there is no file {content}. "
                "Check its name."
            )
        sentences.setdefault(name, []).extend(_read_lines(path, name) if from_file else [content])
    return sentences or None


def _read_lines(path: Path, name: str) -> list[str]:
    """Return the lines of a file of sentences that are not empty."""
    text = read_text(path, "a file of sentences", most=_MOST_SENTENCE_BYTES)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"Expected sentences for {name!r} in {path}, but it is empty. Add some.")
    return lines
