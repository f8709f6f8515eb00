"""The command `doctor`."""

from __future__ import annotations

import json
import sys

from attnviz.errors import ModelError
from attnviz.terminal.options import ConsoleOptions, option_groups

_WIDTH_OF_FILES = 100  # columns of output that goes to a file or a pipe


@option_groups()
def doctor(*, printing: ConsoleOptions) -> int:
    """Say what works on this machine, what is missing, and how to install it.

    Lists the versions, the device, the models, the fonts, the browser, and the extras of attnviz.

    Exit code 3 means that attnviz cannot work here.
    """
    from rich.console import Console

    from attnviz.analyses.doctor.compute import doctor as examine

    result = examine()
    if printing.json:
        sys.stdout.write(json.dumps(result.about(), ensure_ascii=False, indent=1) + "\n")
    else:
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_WIDTH_OF_FILES)
        console.print(result)
    return 0 if result.works else ModelError.exit_code


COMMANDS = (doctor,)
