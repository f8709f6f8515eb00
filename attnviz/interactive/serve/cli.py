"""The command `serve`: the interactive view as a page, where sentences are typed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from attnviz.errors import InputError
from attnviz.terminal.options import (
    Debug,
    Device,
    DeviceName,
    Dtype,
)


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="A model that may be asked, a hub name or a local folder; several may be named.",
            show_default="the bundled all-MiniLM-L6-v2",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; any other than this machine lets others in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any that is free.", min=0, max=65535)] = 8765,
    max_tokens: Annotated[int, typer.Option(help="The most tokens of a text.", min=1)] = 512,
    time_limit: Annotated[
        float, typer.Option(help="The most seconds that an answer may take.", min=0.1)
    ] = 30.0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page.")] = False,
    device: DeviceName = Device.auto,
    dtype: Dtype = None,
    debug: Debug = False,
) -> int:
    """Serve a page on this machine: type a sentence, and see attention, senses and shifts at once.

    It prints a link that opens the page once; each use prints a new one. Nothing that is typed is
    stored. Ctrl-C ends it.
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"Expected {' and '.join(missing)}, which serve the page, but they are not installed. "
            "Install them: pip install 'attnviz[serve]'."
        )
    from attnviz.interactive.serve.start import run

    run(
        model or [],
        host=host,
        port=port,
        max_tokens=max_tokens,
        time_limit=time_limit,
        open_browser=open_browser,
        device=device.value,
        dtype=dtype,
    )
    return 0
