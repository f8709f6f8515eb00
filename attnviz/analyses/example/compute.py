"""Worked examples: what a book prints, replayed stage by stage from its own numbers.

Three come along, and a file of your own has the same format: a JSON object in which `X`, `W_q`,
`W_k`, `W_v` (or a later stage) are given and `printed` holds what the book makes of them. Nothing
heavy is loaded before a file has been read and found sound.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from attnviz.analyses.example.reading import NAMES, read_bundled, read_file
from attnviz.errors import InputError

if TYPE_CHECKING:
    from attnviz.analyses.example.result import ExampleResult


def example(
    name: str | None = None, *, file: str | os.PathLike[str] | None = None
) -> ExampleResult:
    """Replay a worked example: every stage from the inputs, and from the printed stages before it.

    A printed cell follows where ours is within half a unit of the matrix's last digit and the most
    that the rounding of the printed cells before it can do, in float64. A stage slips where a cell
    does not follow from the nearest printed stages; or not from the inputs, although they do.

    Parameters
    ----------
    name : of an example that comes along: "cat", "likes" or "phones".
    file : of your own, in JSON. Given are `X` (T, d_model), `W_q`, `W_k` (d_model, h·d_k), `W_v`
        (d_model, h·d_v), `W_o` (h·d_v, d_out), with `heads` (1), `scale` (1/√d_k) and `mask`
        ("causal", or (T, T) of 1 for visible and 0 for hidden); or a later stage instead: `Q` and
        `K`, `scores` or `weights`, and `V`. With several heads, each of these is a list of one
        matrix per head. `printed` holds matrices by stage: Q, K, V, scores, scaled scores, weights,
        head output, concatenated, output. `title`, `tokens`, `queries` (labels of the rows, where
        they are not the tokens) and `notes` (a sentence by stage) say what is what.

    Returns
    -------
    The stages in order, each with what is printed, what we compute, and what follows.

    Raises
    ------
    InputError : no such example, or a file that cannot be read or does not fit together.

    Examples
    --------
    >>> example("cat").stages[-1].from_inputs
    tensor([[0.3800, 0.4800]], dtype=torch.float64)
    """
    if (name is None) == (file is None):
        listed = ", ".join(NAMES)
        got = "neither" if name is None else "both"
        raise InputError(f"Expected the name of an example ({listed}) or a file, got {got}.")
    given = read_file(file) if file is not None else read_bundled(str(name))

    from attnviz.analyses.example.replay import replay

    return replay(given)
