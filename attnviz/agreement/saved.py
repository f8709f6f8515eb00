"""Results that are read from a file, and whether they hold what was verified."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from attnviz.agreement.compare import compare
from attnviz.io.export import read_result
from attnviz.results import AgreementReport, AttentionResult
from attnviz.results.arguments import checked_scalars
from attnviz.results.base import Savable


@checked_scalars
def load_result(path: str | os.PathLike[str]) -> Savable:
    """Read a result that `save_result` wrote as .safetensors: the same, bit for bit, on the CPU.

    Q, K and V of whole maps are recomputed. If the numbers are not those that were verified when
    the result was saved, its agreement says so.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    Savable
        The result, of the type that was saved.

    Raises
    ------
    InputError
        There is no such file, it holds no result, it changed since it was written, or a newer
        version of attnviz wrote it.

    Examples
    --------
    >>> import attnviz
    >>> from tempfile import TemporaryDirectory
    >>> moved = attnviz.shift("bank", "We sat on the bank of the river.")
    >>> with TemporaryDirectory() as folder:
    ...     moved.save(f"{folder}/bank.safetensors")
    ...     again = attnviz.load_result(f"{folder}/bank.safetensors")
    >>> again.headline == moved.headline
    True
    """
    result = read_result(Path(path))
    if isinstance(result, AttentionResult) and not result.agreement.given:
        report = verify_saved(result)
        if report.verdict != result.agreement.verdict:
            result = replace(result, agreement=replace(report, recomputed=()))
    return result


def verify_saved(result: AttentionResult) -> AgreementReport:
    """Recompute Q, K and V of every record from what the result holds, and return the new report.

    The model's own values of the other stages are not part of a result: their checks stay, and the
    digests say whether Q and K, from which the weights follow, are those that were checked.
    """
    report = result.checked_agreement
    made = ("query", "key", "value")
    again = {
        (record.path, record.layer, check.stage): check
        for record in result.records
        for check in compare(record, {stage: getattr(record, stage).double() for stage in made})
    }
    recomputed = tuple(stage for stage in made if any(key[-1] == stage for key in again))
    checks = [again.pop((c.path, c.layer, c.stage), c) for c in report.checks]
    return replace(report, checks=(*checks, *again.values()), recomputed=recomputed)
