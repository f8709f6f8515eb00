"""Whole maps by the formula, to which what is kept of a streamed one is compared."""

import torch
from torch.testing import assert_close

from attnviz.streaming import cpu, tiled

NEAR = {"atol": 1e-5, "rtol": 1e-5}


def whole(scoring):
    """The weights by the formula, (H, m, n), in float64, and 0 in rows that may read nothing."""
    H, m, n = scoring.shape
    K = scoring.key.double().repeat_interleave(H // scoring.key.shape[0], dim=0)
    scores = scoring.query.double() @ K.mT * scoring.scale
    if scoring.capped_bias is not None:
        scores = scores + scoring.capped_bias.double()
    if scoring.soft_cap is not None:
        scores = scoring.soft_cap * torch.tanh(scores / scoring.soft_cap)
    if scoring.bias is not None:
        scores = scores + scoring.bias.double()
    rule = scoring.visible
    distance = torch.arange(m)[:, None] + rule.offset - torch.arange(n)
    for i in range(m):
        for j in range(n):
            near = rule.after is None or distance[i, j] >= -rule.after
            near &= rule.before is None or distance[i, j] <= rule.before
            if not near or (rule.keys is not None and not rule.keys[j]):
                scores[:, i, j] = -torch.inf
    if scoring.sinks is not None:
        column = scoring.sinks.double().view(H, -1, 1).expand(H, m, 1)
        return torch.cat([scores, column], -1).softmax(-1)[..., :-1].nan_to_num(0)
    return scores.softmax(-1).nan_to_num(0)


def check(found, P, offset=0):
    """Compare every number of a summary with the same taken from the whole map."""
    H, m, n = P.shape
    cell = found.cell
    cells = [
        [P[:, i : i + cell, j : j + cell].flatten(1) for j in range(0, n, cell)]
        for i in range(0, m, cell)
    ]

    def pooled(reduce):
        return torch.stack([torch.stack([reduce(each) for each in row], -1) for row in cells], 1)

    i = torch.arange(m)[:, None] + offset
    expected = {
        "mean": pooled(lambda each: each.mean(1)),
        "largest": pooled(lambda each: each.amax(1)),
        "received": P.sum(1),
        "entropy": -(P * P.clamp(min=1e-300).log()).sum(-1),
        "distance": (P * (i - torch.arange(n)).abs()).sum(-1),
        "first": P[:, :, 0],
    }
    for name, at in (("itself", i), ("previous", i - 1)):
        inside = (at >= 0) & (at < n)
        taken = P.gather(2, at.clamp(0, n - 1).expand(H, m, 1)) * inside
        expected[name] = taken[..., 0]
    for name, values in expected.items():
        assert_close(
            getattr(found, name).double(), values, **NEAR, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert torch.equal(found.empty, P.sum((0, 2)) == 0)
    k = found.top_keys.shape[-1]
    assert_close(found.top_weights.double(), P.topk(k, -1).values, **NEAR)
    known = found.top_keys >= 0
    at = P.gather(2, found.top_keys.long().clamp(min=0)) * known
    assert_close(at, found.top_weights.double(), **NEAR)


def use_tiles(patch, rows, columns, chunk):
    """The reference, with tiles of a few rows and columns, so that short texts need many."""
    patch.setattr(cpu, "LEAST", 2**62)
    patch.setattr(tiled, "ROWS", rows)
    patch.setattr(tiled, "COLUMNS", columns)
    patch.setattr(tiled, "CHUNK", chunk)
    patch.setattr(tiled, "_GATHERED", 50 * chunk)  # a row or several at once


def use_loops(patch, rows, scores, keys=cpu.KEYS):
    """Loops that numba compiles, on blocks of a few rows, of one head or of several.

    keys : beyond this the log-sum-exp is found first, and blocks are cut into tiles.
    """
    patch.setattr(cpu, "LEAST", 0)
    patch.setattr(cpu, "ROWS", (rows, 2 * rows))
    patch.setattr(cpu, "SCORES", scores)
    patch.setattr(cpu, "KEYS", keys)
    # What the loops leave to the reference is to be seen.
    patch.setattr(tiled, "reduce_map", None)
