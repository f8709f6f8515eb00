"""The scores of an attention, and the reference in torch that reduces their maps by blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isqrt, log, prod
from typing import Any

import torch
from torch import Tensor

from attnviz.formula.attention import repeat_heads
from attnviz.results import AttentionRecord, MapSummary, MaskRule, cell_sizes
from attnviz.runtime import track
from attnviz.runtime.compat import fill_with_zeros

NEVER = -1e30  # used for -∞ where 0 · -∞ would be NaN
LOG2_E = 1.4426950408889634
ALL = slice(None)
SCORES = {"cpu": 2**18, "cuda": 2**25}  # of a block: what fits a core's cache; what fills a GPU
_TILE = 128  # rows of a tile of the GPU kernels
_FEWEST_ROWS = 64  # of a block: with fewer, products are slow


@dataclass(frozen=True, eq=False)
class ScoreSpec:
    """One attention before its softmax: cap(Q Kᵀ · scale + capped_bias) + bias, where visible."""

    query: Tensor  # (H, m, d)
    key: Tensor  # (G, n, d), each for H / G heads
    scale: float  # the factor on Q Kᵀ
    visible: MaskRule = field(default_factory=MaskRule)  # which keys each query may read
    soft_cap: float | None = None  # the bound of the scaled scores
    capped_bias: Tensor | None = None  # (1 or H, m, n), added before the cap
    bias: Tensor | None = None  # and after it
    sinks: Tensor | None = None  # (H,) or (H, m), a score beside those of the keys

    @classmethod
    def of(cls, record: AttentionRecord) -> ScoreSpec:
        """Return the spec of a record; a mask that follows a rule becomes a `MaskRule`."""
        bias = record.bias
        visible = record.visible or MaskRule(offset=len(record.key_axis) - len(record.query_axis))
        if record.mask is not None:
            rule = MaskRule.of(record.mask[0]) if len(record.mask) == 1 else None
            visible = rule or visible
            if rule is None:
                mask = record.mask.float().clamp(min=NEVER)
                bias = mask if bias is None else bias + mask
        names = "query", "key", "scale", "soft_cap", "capped_bias", "sinks"
        terms: dict[str, Any] = {name: getattr(record, name) for name in names}
        return cls(visible=visible, bias=bias, **terms)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of heads, queries and keys: H, m, n."""
        return self.query.shape[0], self.query.shape[1], self.key.shape[1]

    @property
    def plain(self) -> bool:
        """Whether the scores are the scaled product, with at most a bias added after it."""
        return self.soft_cap is None and self.capped_bias is None

    @property
    def sinks_by_row(self) -> Tensor | None:
        """The sinks as (H, m or 1), float32."""
        if self.sinks is None:
            return None
        return (self.sinks if self.sinks.dim() == 2 else self.sinks[:, None]).float()

    def columns(self, rows: slice) -> slice:
        """Return the keys that some rows may read: at least one, which may be hidden."""
        rule, n = self.visible, self.shape[2]
        first = 0 if rule.before is None else max(0, rows.start + rule.offset - rule.before)
        stop = n if rule.after is None else rows.stop + rule.offset + rule.after
        first = min(first, n - 1)
        return slice(first, min(n, max(stop, first + 1)))

    def select_heads(self, heads: Sequence[int]) -> ScoreSpec:
        """Return the attention of some of the heads; each has a key head for itself."""
        index: slice | list[int] = list(heads)
        if isinstance(heads, range) and heads.step == 1:
            index = slice(heads.start, heads.stop)  # a view

        def select(term: Tensor | None) -> Tensor | None:
            return term if term is None or len(term) == 1 else term[index]

        return replace(
            self,
            query=self.query[index],
            key=self.of_heads(self.key, heads),
            capped_bias=select(self.capped_bias),
            bias=select(self.bias),
            sinks=None if self.sinks is None else self.sinks[index],
        )

    def of_heads(self, tensor: Tensor, heads: Sequence[int]) -> Tensor:
        """Return the keys or values (G, n, d) of some query heads, (heads, n, d)."""
        shared = len(self.query) // len(self.key)
        if len(heads) == 1:
            return tensor[heads[0] // shared :][:1]  # a view
        return tensor[[head // shared for head in heads]]

    def add_terms(
        self, products: Tensor, rows: slice, columns: slice, heads: slice = ALL, unit: float = 1
    ) -> None:
        """Turn a tile of q · scale · kᵀ, (heads, rows, columns), into scores · unit in place.

        If the spec is `plain`, the products contain the factor `unit` already.
        """

        def add(term: Tensor | None, factor: float) -> None:
            if term is not None:
                tile = (term if len(term) == 1 else term[heads])[:, rows, columns]
                products.add_(tile, alpha=factor)

        if not self.plain:
            add(self.capped_bias, 1)
            self.cap(products)
            if unit != 1:
                products.mul_(unit)
        add(self.bias, unit)

    def cap(self, scores: Tensor) -> Tensor:
        """Bound scores by the soft cap, in place, and return them."""
        if self.soft_cap is not None:
            scores.div_(self.soft_cap).tanh_().mul_(self.soft_cap)
        return scores

    def scores(self, rows: slice, columns: slice, out: Tensor) -> Tensor:
        """Fill `out` (H, rows, columns) with a part of the scores, NEVER where it is hidden."""
        K = repeat_heads(self.key[:, columns].float(), len(self.query))
        torch.matmul(self.query[:, rows].float() * self.scale, K.mT, out=out)
        self.add_terms(out, rows, columns)
        if self.bias is not None:
            out.clamp_(min=NEVER)
        rule, start = self.visible, columns.start
        if rule.before is None and rule.keys is None and rule.after is not None:
            # Only keys behind the first query can be hidden.
            start = max(start, min(columns.stop, rows.start + rule.offset + rule.after + 1))
        if start < columns.stop and rule.hides(rows, slice(start, columns.stop)):
            i = torch.arange(rows.start, rows.stop, device=out.device)
            j = torch.arange(start, columns.stop, device=out.device)
            out[..., start - columns.start :].masked_fill_(rule.hidden_at(i, j), NEVER)
        return out


class MapBuffers:
    """The numbers of a `MapSummary`, for all heads, and the attention vectors.

    Each engine fills them: `mean` and `received` with sums, `entropy` in bits.

    cells, top, marked : as in `attnviz.streaming.attend`. On a GPU the size of a cell is rounded
    up to a power of two or a multiple of 128, so that the tiles of the kernels hold whole cells.
    value : (G, n, d_v), to compute the attention vectors too; None without them.
    """

    def __init__(
        self, spec: ScoreSpec, cells: int, top: int, marked: Tensor | None, value: Tensor | None
    ) -> None:
        H, m, n = spec.shape
        self.value, self.marks = value, marked
        self.cell, self.top = -(-max(m, n) // cells), min(top, n)
        if spec.query.is_cuda:
            power = 1 << (self.cell - 1).bit_length()
            self.cell = power if power <= _TILE else -(-self.cell // _TILE) * _TILE

        def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(H, *shape, dtype=dtype, device=spec.query.device)

        rows, columns = -(-m // self.cell), -(-n // self.cell)
        self.mean, self.largest = (numbers(rows, columns) for _ in range(2))
        self.received = numbers(n, dtype=torch.float64)
        self.lse, self.entropy, self.distance, self.marked = (numbers(m) for _ in range(4))
        self.near = numbers(3, m)  # the weights of each row for itself, the previous, the first key
        self.top_keys = numbers(m, self.top, dtype=torch.int32).fill_(-1)
        self.top_weights = numbers(m, self.top)
        width = 0 if value is None else value.shape[-1]
        attended = torch.empty(m, H, width, device=spec.query.device)
        self.attended = attended.transpose(0, 1)  # row after row, as the model continues with it
        fill_with_zeros(
            self.mean, self.largest, self.received, self.lse, self.entropy, self.distance,
            self.marked, self.near, self.top_weights, attended,
        )  # fmt: skip

    def summary(self, empty: Tensor) -> MapSummary:
        """Return the summary; `empty` (m,) says which rows read nothing. Call it once."""
        m, n = self.entropy.shape[1], self.received.shape[1]
        heights, widths = (cell_sizes(size, self.cell) for size in (m, n))
        itself, previous, first = self.near.unbind(1)
        names = "cell", "largest", "distance", "marked", "lse", "top_keys", "top_weights"
        same: dict[str, Any] = {name: getattr(self, name) for name in names}
        return MapSummary(
            mean=self.mean.div_((heights[:, None] * widths).to(self.mean.device)),
            received=self.received.float(),
            entropy=self.entropy * log(2),
            itself=itself,
            previous=previous,
            first=first,
            empty=empty.to(self.mean.device),
            **same,
        )


def reduce_map(spec: ScoreSpec, buffers: MapBuffers) -> None:
    """Fill the buffers, block by block."""
    groups, blocks, work = _blocks(spec, buffers.cell)
    for heads in track(groups):
        index, value = range(heads.start, heads.stop), buffers.value
        selected = spec.select_heads(index)
        if value is not None:
            value = spec.of_heads(value, index).float()
        for rows in blocks:
            _reduce_rows(selected, value, buffers, heads, rows, work)
    if buffers.top:
        find_top(spec, buffers)


def attend(spec: ScoreSpec, value: Tensor, lse: Tensor) -> Tensor:
    """Return the attention vectors (H, m, d_v), from the log-sum-exp (H, m) of each row."""
    H, m, _ = spec.shape
    output = torch.zeros(m, H, value.shape[-1], device=lse.device).transpose(0, 1)
    for heads, rows, columns, log_P in _log_weights(spec, lse):
        V = spec.of_heads(value, range(heads.start, heads.stop)).float()
        output[heads, rows] = log_P.exp_() @ V[:, columns]
    return output


def find_top(spec: ScoreSpec, buffers: MapBuffers) -> None:
    """Fill the top keys of each row and their weights, from the log-sum-exp in the buffers."""
    for heads, rows, columns, log_P in _log_weights(spec, buffers.lse):
        found, keys = log_P.topk(k := min(buffers.top, log_P.shape[-1]))
        keys = (keys + columns.start).masked_fill_(found <= NEVER / 2, -1)
        buffers.top_keys[heads, rows, :k] = keys.int()
        buffers.top_weights[heads, rows, :k] = found.exp_()


def _log_weights(spec: ScoreSpec, lse: Tensor) -> Iterator[tuple[slice, slice, slice, Tensor]]:
    """Yield the heads, rows and keys of each block, and the logarithms of its weights."""
    level = lse.masked_fill(lse == -torch.inf, 0)[..., None]
    groups, blocks, work = _blocks(spec)
    for heads in track(groups):
        selected = spec.select_heads(range(heads.start, heads.stop))
        for rows in blocks:
            columns, S = _scores(selected, rows, work)
            yield heads, rows, columns, S.sub_(level[heads, rows])


def _blocks(spec: ScoreSpec, cell: int = 1) -> tuple[list[slice], list[slice], Tensor]:
    """Return the heads and the rows of the blocks, and memory for two blocks.

    A block has some rows of one head, or of several if a map is short. Fresh memory for each
    would cost more than a pass over it. `cell` columns more may be in a block than are visible.
    """
    H, m, n = spec.shape
    scores = SCORES.get(spec.query.device.type, SCORES["cuda"])
    before, after = spec.visible.before, spec.visible.after
    rows, width = max(_FEWEST_ROWS, scores // n), n
    if before is not None and after is not None:  # rows · (rows + window) scores are in a block
        window = max(0, before + after)
        rows = max(rows, min(window, (isqrt(window**2 + 4 * scores) - window) // 2))
        width = min(n, min(m, rows) + window)
    rows = min(m, rows)
    count = min(H, max(1, scores // (rows * width)))
    size = count * rows * (min(n, width + cell) + cell)
    work = torch.empty(2, size, device=spec.query.device)
    return _slices(H, count), _slices(m, rows), work


def _slices(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _scores(spec: ScoreSpec, rows: slice, work: Tensor, cell: int = 1) -> tuple[slice, Tensor]:
    """Return the keys that some rows may read, from the start of a cell on, and their scores."""
    columns = spec.columns(rows)
    columns = slice(columns.start // cell * cell, columns.stop)
    shape = spec.shape[0], rows.stop - rows.start, columns.stop - columns.start
    return columns, spec.scores(rows, columns, work[0, : prod(shape)].view(shape))


def _reduce_rows(
    spec: ScoreSpec, value: Tensor | None, into: MapBuffers, heads: slice, rows: slice, work: Tensor
) -> None:
    """Reduce some rows of some heads; `spec` and `value` are those of these heads.

    The weights are P = E / Σ E with E = exp(S - max S). Only sums of E are divided, because every
    pass over a block takes about as long as its product.
    """
    cell, device = into.cell, spec.query.device
    columns, S = _scores(spec, rows, work, cell)
    first, (H, m, n) = columns.start, S.shape
    highest = S.amax(-1)
    sinks = spec.sinks_by_row
    if sinks is not None:
        sinks = sinks[:, rows] if sinks.shape[1] > 1 else sinks
        highest = torch.maximum(highest, sinks)
    log_E = S.sub_(highest[..., None])
    by_cell = work[1, : H * m * (n + -n % cell)].view(H, m, -1, cell)
    padded = by_cell.flatten(2)
    padded[..., n:] = 0
    E = torch.exp(log_E, out=padded[..., :n])
    empty = highest <= NEVER / 2
    E.masked_fill_(empty[..., None], 0)
    mass = E.sum(-1)  # of the keys
    total = mass if sinks is None else mass + (sinks - highest).exp()
    inverse = 1 / total.clamp(min=1)  # the largest score adds 1, so only empty rows have less
    mass = mass * inverse
    log_total = total.log()
    into.lse[heads, rows] = highest + log_total
    # The entropy of P is log Σ E - Σ E log E / Σ E, where the weights sum to 1.
    entropy = log_total * mass - log_E.mul_(E).sum(-1) * inverse
    into.entropy[heads, rows] = entropy.masked_fill_(empty, 0) / log(2)

    i = torch.arange(rows.start, rows.stop, device=device)
    j = torch.arange(columns.start, columns.stop, device=device)
    position = i + spec.visible.offset  # of the queries among the keys
    if spec.visible.after is not None and spec.visible.after <= 0:  # |i - j| = (i - i₀) + (i₀ - j)
        distance = (E @ (position[0] - j).float()) * inverse + (position - position[0]) * mass
    else:
        far = torch.sub(position[:, None].float(), j, out=log_E[0])
        distance = (E * far.abs_()).sum(-1) * inverse
    into.distance[heads, rows] = distance
    if into.marks is not None:
        into.marked[heads, rows] = E @ into.marks[columns].float() * inverse
    if value is not None:
        into.attended[heads, rows] = E @ value[:, columns] * inverse[..., None]
    near = torch.stack([position, position - 1, torch.zeros_like(position)]) - first
    inside = (near >= 0) & (near < n)
    near = near.clamp(0, n - 1).mT.expand(H, -1, -1)
    into.near[heads, :, rows] = (E.gather(2, near) * inverse[..., None]).mT * inside

    # Pool the columns of each cell, then its rows.
    into.received[heads, columns] += (inverse[:, None] @ E)[:, 0]
    across = slice(first // cell, first // cell + by_cell.shape[2])
    down = slice(rows.start // cell, (rows.stop - 1) // cell + 1)
    index = i // cell - down.start
    in_cell = (index == torch.arange(down.stop - down.start, device=device)[:, None]).float()
    into.mean[heads, down, across] += in_cell @ (by_cell.sum(-1) * inverse[..., None])
    largest = by_cell.amax(-1) * inverse[..., None]
    index = index[:, None].expand_as(largest)
    into.largest[heads, down, across].scatter_reduce_(1, index, largest, "amax")
