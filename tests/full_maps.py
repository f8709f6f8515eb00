"""Full maps by the formula, as the reference for streamed summaries."""

import torch
from torch.testing import assert_close

from attnviz.streaming import cpu, reference

NEAR = {"atol": 1e-5, "rtol": 1e-5}


def whole(scoring):
    """Return the weights by the formula, (H, m, n), in float64; 0 in rows without visible keys."""
    scores = scores_by_formula(scoring)
    H, m, _ = scoring.shape
    if scoring.sinks is not None:
        column = scoring.sinks.double().view(H, -1, 1).expand(H, m, 1)
        return torch.cat([scores, column], -1).softmax(-1)[..., :-1].nan_to_num(0)
    return scores.softmax(-1).nan_to_num(0)


def log_sum_exp(scoring):
    """Return the log-sum-exp of each row of scores, with the sinks, (H, m), in float64."""
    lse = scores_by_formula(scoring).logsumexp(-1)
    if scoring.sinks is not None:
        lse = torch.logaddexp(lse, scoring.sinks.double().view(len(lse), -1))
    return lse


def scores_by_formula(scoring):
    """Return the scores by the formula, (H, m, n), in float64; -inf where they are hidden."""
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
    visible = torch.ones(m, n, dtype=torch.bool) if rule.keys is None else rule.keys.expand(m, n)
    if rule.after is not None:
        visible = visible & (distance >= -rule.after)
    if rule.before is not None:
        visible = visible & (distance <= rule.before)
    return scores.masked_fill(~visible, -torch.inf)


def check(summary, P, offset=0):
    """Compare every number of a summary with the full map."""
    H, m, n = P.shape
    cell = summary.cell
    M, N = -(-m // cell), -(-n // cell)
    filled = torch.full((H, M * cell, N * cell), torch.nan, dtype=P.dtype)
    filled[:, :m, :n] = P
    cells = filled.view(H, M, cell, N, cell).transpose(2, 3).flatten(3)
    i = torch.arange(m)[:, None] + offset
    expected = {
        "mean": cells.nanmean(-1),
        "largest": cells.nan_to_num(0).amax(-1),
        "received": P.sum(1),
        "entropy": -(P * P.clamp(min=1e-300).log()).sum(-1),
        "distance": (P * (i - torch.arange(n)).abs()).sum(-1),
        "first": P[:, :, 0],
    }
    for name, column in (("itself", i), ("previous", i - 1)):
        inside = (column >= 0) & (column < n)
        expected_weights = P.gather(2, column.clamp(0, n - 1).expand(H, m, 1)) * inside
        expected[name] = expected_weights[..., 0]
    for name, values in expected.items():
        assert_close(
            getattr(summary, name).double(), values, **NEAR, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert torch.equal(summary.empty, P.sum((0, 2)) == 0)
    k = summary.top_keys.shape[-1]
    assert_close(summary.top_weights.double(), P.topk(k, -1).values, **NEAR)
    valid = summary.top_keys >= 0
    column = P.gather(2, summary.top_keys.long().clamp(min=0)) * valid
    assert_close(column, summary.top_weights.double(), **NEAR)


def use_reference(patch, scores):
    """Use the torch reference on blocks of a few rows, so that short texts need many of them."""
    patch.setattr(cpu, "LEAST", 2**62)
    patch.setitem(reference.SCORES, "cpu", scores)
    patch.setattr(reference, "_FEWEST_ROWS", 1)


def use_loops(patch, rows, scores):
    """Use the numba loops on blocks of a few rows, of one head or several."""
    patch.setattr(cpu, "LEAST", 0)
    patch.setattr(cpu, "ROWS", (rows, 2 * rows))
    patch.setattr(cpu, "SCORES", scores)
    patch.setattr(reference, "reduce_map", None)  # make fallbacks to it visible
