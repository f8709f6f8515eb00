"""From what was typed to what the public functions take, and from their results to files.

What cannot be right is refused here, before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnviz.errors import InputError
from attnviz.io.files import is_file, read_text
from attnviz.terminal.options import Device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnviz.results import AttentionResult
    from attnviz.results.base import Result

_LONGEST = 2**26  # bytes of a text


def where(
    output: Path | None, default: str | None, *, force: bool, image: Path | None = None
) -> Path | None:
    """Return where to write, checked before anything slow is done; None where nothing is asked.

    image : the image that is read; it is never overwritten.
    """
    from attnviz.io.files import check_output

    chosen = output or (None if default is None else Path(default))
    if chosen is None:
        return None
    path = check_output(chosen, force=force)
    if image is not None and path.exists() and path.samefile(image):
        raise InputError(f"{path} is the image that is read. Name another file to write: -o FILE.")
    return path


def whole(output: Path | None, *, force: bool) -> Path | None:
    """Return where to keep a whole result, checked before anything slow is done."""
    from attnviz.io.files import check_output

    if output is None:
        return None
    return check_output(output, (".safetensors",), force=force)


def page(output: Path, *, force: bool) -> Path:
    """Return where to write a page, checked before anything slow is done."""
    from attnviz.io.files import PAGE_SUFFIXES, check_output

    return check_output(output, PAGE_SUFFIXES, force=force)


def given(
    text: str | None,
    image: Path | None,
    audio: Path | None,
    pair: str | None,
    target: str | None,
    generate: int | None,
    file: Path | None = None,
    saved: Path | None = None,
) -> dict[str, Any]:
    """Return what the model is to read, or a result to read; refuse both, and what is empty."""
    if saved is not None:
        if {text, image, audio, pair, target, generate, file} != {None}:
            raise InputError("Expected something to read or a --result, got both. Leave one out.")
        return {"saved": saved}
    if file is not None:
        if text is not None:
            raise InputError("Expected a text or a --file, got both. Leave one out.")
        text = read_text(file, "a text", most=_LONGEST)
    for name, words in (("text", text), ("--pair", pair), ("--target", target)):
        if words is not None and not words.strip():
            raise InputError(
                f"Expected a {name} with at least one word, got an empty one. Type a sentence."
            )
    for name, file in (("--image", image), ("--audio", audio)):
        if file is not None and not is_file(file):
            raise InputError(
                f"Expected a file for {name}, but there is no file {file}. Check its name."
            )
    if text is None and image is None and audio is None:
        raise InputError("Expected a text, an --image or an --audio file, got none. Give one.")
    read = {"text": text, "image": image, "audio": audio, "pair": pair, "target": target}
    return {**read, "generate": generate}


def part(typed: str | None, name: str) -> slice | None:
    """Return the slice of START:STOP, where either may be left out."""
    if typed is None:
        return None
    start, colon, stop = (at.strip() for at in typed.partition(":"))
    if not colon or not all(_counts(at) for at in (start, stop)):
        raise InputError(f"Expected {name} as START:STOP, got {typed!r}. For example: {name} 0:20.")
    return slice(*(int(at) if at else None for at in (start, stop)))


def _counts(at: str) -> bool:
    return at == "" or (at.isdecimal() and len(at) < 19)  # Python turns no 5,000 digits into an int


def patch(typed: str | None) -> tuple[int, int] | str | None:
    """Return (row, column) where a patch is given so, else the token."""
    row, comma, column = (part.strip() for part in (typed or "").partition(","))
    numbers = comma and row and column and _counts(row) and _counts(column)
    return (int(row), int(column)) if numbers else typed


def two_words(find: str) -> tuple[str, str]:
    """Return the query and the key of QUERY:KEY."""
    query, colon, key = (part.strip() for part in find.partition(":"))
    if not (query and colon and key):
        raise InputError(
            f"Expected two words as QUERY:KEY, got {find!r}. For example: --find train:station."
        )
    return query, key


def place(
    device: Device, dtype: str | None, device_map: str | None, offload_folder: Path | None
) -> dict[str, Any]:
    """Return what `attnviz.load` takes of where a model goes, and in what precision."""
    return {
        "device": device.value,
        "dtype": dtype,
        "device_map": device_map,
        "offload_folder": offload_folder,
    }


def attend(
    given: dict[str, Any],
    model: str | None,
    where: dict[str, Any],
    truncate: bool,
    **kept: Any,
) -> AttentionResult:
    """Load the model and run it.

    where : what `place` returns. kept : what `attnviz.attend` takes of long texts.
    """
    return attend_each([given], model, where, truncate, **kept)[0]


def attend_each(
    several: Sequence[dict[str, Any]],
    model: str | None,
    where: dict[str, Any],
    truncate: bool,
    **kept: Any,
) -> list[AttentionResult]:
    """Load the model and run it on each of several inputs, one after the other."""
    if path := several[0].get("saved"):
        usual = {"device": Device.auto.value, "truncate": False}
        for name, value in {"model": model, **where, "truncate": truncate}.items():
            if value != usual.get(name):
                raise InputError(
                    f"Expected a --result or --{name.replace('_', '-')}, got both. A result is of "
                    "a run that is over: leave one out."
                )
        return [read_result(path, kept["mode"])]
    from attnviz.pipeline.attend import attend, load
    from attnviz.terminal.progress import watched

    loaded = load(model, **where)
    with watched():
        return [attend(**given, model=loaded, truncate=truncate, **kept) for given in several]


def read_result(path: Path, mode: str) -> AttentionResult:
    """Return the result that a file holds, whose maps were kept as `mode` says."""
    from attnviz.io.result_file import load_result
    from attnviz.results import AttentionResult

    found = load_result(path)
    if not isinstance(found, AttentionResult):
        raise InputError(
            f"Expected a whole result in {path}, got {type(found).__name__}. Keep one: "
            "attnviz verify TEXT -o result.safetensors."
        )
    how = "streamed" if found.streamed else "full"
    if mode not in (how, "auto"):
        raise InputError(
            f"Expected a result with {mode} maps, got one with {how} maps in {path}. Run the model "
            "anew."
        )
    return found


def save(path: Path | None, drawn: Result, figure: Callable[[], Figure], *, force: bool) -> None:
    """Write the figure or the data, whichever the ending of `path` asks for."""
    from attnviz.io.files import DATA_SUFFIXES

    if path is None:
        return
    if path.suffix.lower() in DATA_SUFFIXES:
        from attnviz.io.export import save_result

        save_result(drawn, path, force=force)
    else:
        import matplotlib.pyplot as plt

        from attnviz.figures.save import save as save_figure

        drawing = figure()
        save_figure(drawing, path, force=force)
        plt.close(drawing)
