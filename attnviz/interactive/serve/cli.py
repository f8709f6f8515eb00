"""The command `serve`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from attnviz.errors import InputError
from attnviz.terminal.options import Debug, ModelOptions, option_groups


@option_groups(without=["model", "device_map", "offload_folder"])
def serve(
    *,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Model to offer, a hub name or a local folder. Repeat it for several models.",
            show_default="the bundled all-MiniLM-L6-v2",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any other lets other machines connect.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on. 0 takes any free port.", min=0, max=65535)
    ] = 8765,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of a text.", min=1)] = 512,
    time_limit: Annotated[
        float, typer.Option(help="Most seconds that an answer may take.", min=0.1)
    ] = 30.0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page.")] = False,
    loading: ModelOptions,
    debug: Debug = False,
) -> int:
    """Serve a page on this machine: type a sentence, and see attention, senses and shifts at once.

    The command prints a link that opens the page once. Each use of it prints a new link. No text is
    stored. Ctrl-C stops the server.
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"Expected {' and '.join(missing)}, which serve the page, but they are not installed. "
            "Install them: pip install 'attnviz[serve]'."
        )
    from attnviz.interactive.serve.start import run

    run(
        models or [],
        host=host,
        port=port,
        max_tokens=max_tokens,
        time_limit=time_limit,
        open_browser=open_browser,
        device=loading.device.value,
        dtype=loading.dtype,
    )
    return 0


COMMANDS = (serve,)
