"""The options that commands share, each said once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    pass


class Special(StrEnum):
    """What becomes of special tokens such as [CLS] and [SEP]."""

    keep = "keep"
    hide = "hide"
    remove = "remove"


class Reading(StrEnum):
    """How the maps of a text are kept."""

    auto = "auto"
    full = "full"
    streamed = "streamed"


class Device(StrEnum):
    """Where the model runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class State(StrEnum):
    """What came of checking an architecture."""

    agrees = "agrees"
    differs = "differs"
    not_read = "not read"
    not_run = "not run"
    no_attention = "no attention"
    part = "part"
    not_checked = "not checked"


Text = Annotated[
    str | None, typer.Argument(help="The text that the model reads.", show_default=False)
]
File = Annotated[
    Path | None, typer.Option("--file", help="A file whose text the model reads, in UTF-8.")
]
Mode = Annotated[
    Reading,
    typer.Option(help="Keep maps whole, or stream them; auto streams what is long."),
]
Rows = Annotated[
    str | None,
    typer.Option(
        help="START:STOP, a part of the map, counted from 0: words, or tokens of a long text.",
        show_default="all",
    ),
]
Columns = Annotated[
    str | None, typer.Option("--cols", help="As --rows, of the columns.", show_default="all")
]
Image = Annotated[Path | None, typer.Option(help="An image that the model reads: .png, .jpg, …")]
Audio = Annotated[Path | None, typer.Option(help="A sound that the model reads: a .wav file.")]
Saved = Annotated[
    Path | None,
    typer.Option(
        "--result",
        help="A result that `verify -o` or save_result wrote, in place of a text and a model.",
    ),
]
Pair = Annotated[str | None, typer.Option(help="A second text, read as a sentence pair.")]
Target = Annotated[
    str | None,
    typer.Option(help="For an encoder-decoder: the text that its decoder is to say."),
]
Generate = Annotated[
    int | None,
    typer.Option(
        help="Let the model go on by itself for so many tokens, and show those too.", min=1
    ),
]
Stack = Annotated[
    str | None,
    typer.Option(
        help="encoder, decoder, cross, vision, text or audio, where a model has several.",
        show_default="cross, else the first",
    ),
]
Patch = Annotated[
    str | None,
    typer.Option(
        help="Over an image: whose weights to draw, a patch as ROW,COLUMN or a token.",
        show_default="[CLS], else the patch in the middle; the last token of a text",
    ),
]
Matrix = Annotated[
    bool, typer.Option("--matrix", help="Draw queries × keys also where keys are of an image.")
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A name on the Hugging Face hub or a local folder.",
        show_default="the bundled all-MiniLM-L6-v2",
    ),
]
Layer = Annotated[int | None, typer.Option(help="Layer, counted from 0.", show_default="chosen")]
Head = Annotated[
    int | None,
    typer.Option(
        help="Head, counted from 0.", show_default="the one that relates content words most"
    ),
]
Heads = Annotated[
    list[int] | None,
    typer.Option(
        "--head",
        help="Head, counted from 0; several are averaged.",
        show_default="the one that relates the content words most",
    ),
]
Words = Annotated[bool, typer.Option("--words/--pieces", help="Merge word pieces into words.")]
SpecialTokens = Annotated[
    Special,
    typer.Option(help="Keep special tokens, hide them, or remove them and renormalise the rows."),
]
Width = Annotated[float, typer.Option(help="Width of the figure in mm: 89 is one column.", min=40)]
Truncate = Annotated[bool, typer.Option(help="Cut a text that is too long for the model.")]
DeviceName = Annotated[Device, typer.Option(help="Where to run; auto takes CUDA if there is one.")]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        help="For a model too large for one device, in the place of --device: auto fills the GPUs, "
        "then memory, then the disk; or balanced, balanced_low_0, sequential, disk.",
        show_default="one device",
    ),
]
OffloadFolder = Annotated[
    Path | None,
    typer.Option(
        help="With --device-map: for weights that go to the disk, and lie in no file as they are."
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32, float16, bfloat16 or float64.", show_default="as the weights were saved"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print data for programs to standard output.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Overwrite existing data. Figures and pages are always overwritten."
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def output_file(default: str) -> Any:
    """Return the option -o, which says what is written without it."""
    return typer.Option(
        "--output",
        "-o",
        help="File to write: .png, .svg, .pdf; or data: .json, .npz, .safetensors, .parquet.",
        show_default=default,
    )


ColumnName = Annotated[str, typer.Option(help="The column, or key, that holds the text.")]


SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out what cannot be read, and say how many.")
]


Seed = Annotated[int, typer.Option(help="Of shuffles and resamples.", min=0)]
