"""Plant faults in records, and count those that the comparison with the call notices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from attnviz import AttentionRecord
from attnviz.agreement.compare import model_values, prove
from attnviz.capture.recorder import AttentionCall
from attnviz.results import Reference

_LEAST = 1e-4  # of a weight that a fault moves; a smaller one is no fault


def planted(pairs: Sequence[tuple[AttentionCall, AttentionRecord]]) -> tuple[int, int]:
    """Return how many faults were planted in calls of one input, and how many were noticed."""
    count = caught = 0
    for call, record in pairs:
        of = call.attention
        outputs = None if of.head_output is None else of.head_output[0]
        reference = Reference(of.weights[0], None if of.scores is None else of.scores[0], outputs)
        expected = model_values(record, reference)
        for wrong in _faults(record):
            if (wrong.weights() - record.weights()).abs().max() < _LEAST:
                continue
            count += 1
            (proof,) = prove([(wrong, expected)])
            caught += not all(check.passed for check in proof.checks)
    return count, caught


def _faults(record: AttentionRecord) -> Iterator[AttentionRecord]:
    """Yield the record with a wrong scale, a wrong mask, and its heads in another order."""
    yield replace(record, scale=record.scale * 1.02)
    (m, n), lowest = record.size, torch.finfo(record.query.dtype).min
    if n > 1:
        hidden = torch.zeros(1, m, n, dtype=record.query.dtype)
        hidden[:, m // 2, n // 2] = lowest
        yield replace(record, mask=hidden if record.mask is None else record.mask.minimum(hidden))
    if record.heads == record.key_heads > 1:
        yield replace(record, query=record.query.roll(1, 0), key=record.key.roll(1, 0))
