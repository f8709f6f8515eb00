"""Where a result comes from: what was read, by which weights, with what."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

from attnviz.inputs import Batch, Inputs
from attnviz.models.checkpoint import Checkpoint
from attnviz.results import AgreementReport, Provenance


def versions() -> dict[str, str]:
    """Return the versions of what runs."""
    return {name: _version(name) for name in ("attnviz", "torch", "transformers")}


_version = cache(version)  # a file is read for each


def provenance(
    checkpoint: Checkpoint,
    given: Inputs,
    batch: Batch,
    n: int,
    proof: AgreementReport,
    generated: str | None,
) -> Provenance:
    """Return the origin of what came of input n of a batch."""
    return Provenance(
        model=checkpoint.name,
        weights_sha256=proof.weights_sha256,
        text=given.texts[n] if given.texts else None,
        pair=given.pairs[n] if given.pairs else None,
        dtype=proof.dtype,
        device=proof.device,
        versions=proof.versions,
        target=given.targets[n] if given.targets else None,
        cut_from=batch.cut_from[n],
        image=given.pictures[0].name if given.pictures else None,
        audio=batch.sound,
        generated=generated,
    )
