"""The reference in torch: one pass over tiles of a map, once the log-sum-exp of each row is known.

A tile is stored transposed, (heads, keys, rows). So the keys of a cell are contiguous and are
reduced fast, and all sums that are linear in the weights are one product from the left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from attnviz.runtime.progress import track
from attnviz.streaming.buffers import MapBuffers
from attnviz.streaming.scores import LOG2_E, NEVER, ScoreSpec

ROWS, COLUMNS = 512, 400  # of a tile: two tiles and their keys fit a core's cache
CHUNK = 25  # keys: few, so that little is computed again, yet enough that maxima take little memory
_SCORES = 2**17  # of a tile, over all heads that are computed together
_LANES = 32  # rows that are reduced at once; a remainder is reduced far more slowly
_GATHERED = 2**19  # numbers in the gathered keys of the chunks of some rows, which fit the cache


@torch.no_grad()
def log_sum_exp(spec: ScoreSpec) -> Tensor:
    """Return the log-sum-exp of each row of scores, sinks included, (H, m); -∞ for empty rows.

    Tile by tile, with the running maximum and sum of Milakov & Gimelshein 2018, arXiv:1805.02867.
    """
    H, m, n = spec.shape
    device = spec.query.device
    lse = torch.empty(H, m, device=device)
    for heads in track(list(_head_groups(spec, min(m, ROWS) * min(n, COLUMNS)))):
        tiles, h = _Tiles(spec, heads), heads.stop - heads.start
        workspace = torch.empty(h * min(m, ROWS) * COLUMNS, device=device)
        for block in _blocks(m, 1, ROWS):
            Q = tiles.queries(block.rows)
            top = torch.full((h, block.height), NEVER, device=device)
            total = torch.zeros_like(top)
            for tile in tiles.visible_to(block.rows):
                S = _view(workspace, h, tiles.columns[tile], block.height)
                tiles.fill(S, Q, block.rows, tile)
                new_top = torch.maximum(top, S.amax(1))
                total *= torch.exp2(top - new_top)
                total += S.sub_(new_top[:, None]).exp2_().sum(1)
                top = new_top
            row_lse = (top + total.log2()) * log(2)
            lse[heads, block.rows] = row_lse.masked_fill(top <= NEVER / 2, -torch.inf)
    sinks = spec.sinks_by_row
    return lse if sinks is None else torch.logaddexp(lse, sinks)


def reduce_map(spec: ScoreSpec, buffers: MapBuffers) -> None:
    """Fill the buffers tile by tile; `buffers.lse` is known."""
    _, m, n = spec.shape
    lse = buffers.lse.masked_fill(buffers.lse == -torch.inf, -NEVER)
    for heads in track(list(_head_groups(spec, min(m, ROWS) * min(n, COLUMNS)))):
        _Sweep(spec, heads, lse, buffers).run()
    buffers.fill_near(spec)


@dataclass(frozen=True)
class _Tile:
    """The workspace of one tile, (heads, keys, rows), and where its reductions go.

    Attributes
    ----------
    columns : slice
        Its keys.
    S, P : Tensor
        log₂ of the weights, and the weights.
    logs, powers : Tensor
        S and P with the rows padded to whole lanes.
    chunks : list of (Tensor, Tensor)
        The result of `ChunkMaxima.views` for `logs`.
    weights, by_row, linear, ones, received : Tensor
        Factors and results of products: P; P by rows; what is summed over the weights,
        (heads, sums, keys); ones, (heads, 1, keys); the mass that keys receive,
        (heads, cells of the block, keys). Without the head dimension where there is one head.
    """

    columns: slice
    chunks: list[tuple[Tensor, Tensor]]
    S: Tensor
    P: Tensor
    logs: Tensor
    powers: Tensor
    weights: Tensor
    by_row: Tensor
    linear: Tensor
    ones: Tensor
    received: Tensor


class _Sweep:
    """One pass over the tiles of some heads."""

    def __init__(self, spec: ScoreSpec, heads: slice, lse: Tensor, buffers: MapBuffers) -> None:
        self.spec, self.visible, self.heads = spec, spec.visible, heads
        self.buffers, self.cell, self.lse = buffers, buffers.cell, lse
        self.m, self.n = spec.shape[1:]
        h = heads.stop - heads.start
        self.h, self.device = h, lse.device
        chunk = min(self.cell, CHUNK) if buffers.top or self.cell > COLUMNS else self.cell
        self.tiles = _Tiles(spec, heads, lse, cell=self.cell, chunk=chunk)
        keys = self.tiles.columns[-1].stop
        self.maxima = ChunkMaxima(h, keys // self.cell, self.cell, chunk)
        widest = max(columns.stop - columns.start for columns in self.tiles.columns)
        padded = _pad_rows(min(self.m, ROWS))
        self.workspaces = torch.zeros(2, h * padded * widest, device=self.device)
        self.ones = torch.ones(h, 1, widest, device=self.device)
        # Summed over the weights of each row: the distance of the key from the first row of the
        # block, and the sign of that, written for each block; whether it is marked; 1, for the
        # total; its value.
        away = torch.arange(keys + self.m, device=self.device) - self.m - self.visible.offset
        self.away = torch.stack([away.abs(), torch.where(away < 0, 1, -1)]).float()
        self.linear = torch.zeros(h, 4 + buffers.attended.shape[2], keys, device=self.device)
        self.linear[:, 3] = 1
        if buffers.marks is not None:
            self.linear[:, 2, : self.n] = buffers.marks.float()
        if buffers.value is not None:
            self.linear[:, 4:, : self.n] = spec.expand_shared(heads, buffers.value).mT

    def run(self) -> None:
        """Reduce all blocks of rows."""
        shape = None
        for block in _blocks(self.m, self.cell, ROWS):
            if shape != (shape := (block.height, block.cells)):
                self._prepare(block)
            if tiles := self.tiles.visible_to(block.rows):
                self._reduce(block, tiles)

    def _prepare(self, block: Block) -> None:
        """Make the workspace of blocks of this shape; to make it for each tile would be slow."""
        h, height = self.h, block.height
        membership = torch.eye(block.cells, device=self.device)
        membership = membership.repeat_interleave(height // block.cells, dim=1)
        self.cell_of_row = _unbatch(membership.expand(h, -1, -1))
        last = self.tiles.columns[-1].stop
        self.received = torch.empty(h, block.cells, last, device=self.device)
        self.maxima.allocate(_pad_rows(height), self.device)
        self.workspace: list[_Tile] = []
        for columns in self.tiles.columns:
            logs, powers = (
                _view(workspace, h, columns, _pad_rows(height)) for workspace in self.workspaces
            )
            S, P = logs[..., :height], powers[..., :height]
            linear, ones = self.linear[..., columns], self.ones[..., : S.shape[1]]
            received = self.received[..., columns]
            factors = (_unbatch(factor) for factor in (P, P.mT, linear, ones, received))
            chunks = self.maxima.views(logs, columns)
            self.workspace.append(_Tile(columns, chunks, S, P, logs, powers, *factors))

    def _reduce(self, block: Block, tiles: range) -> None:
        """Reduce the tiles of a block: S = log₂ P, then P, then P · S in the place of P."""
        rows, height, Q = block.rows, block.height, self.tiles.queries(block.rows)
        row_key = rows.start + self.visible.offset
        self.linear[:, :2] = self.away.narrow(1, self.m - rows.start, self.linear.shape[2])
        sums = torch.zeros(self.h, self.linear.shape[1], height, device=self.device)
        entropy = torch.zeros(self.h, 1, height, device=self.device)
        correction = torch.zeros(self.h, height, device=self.device)
        sums_out, entropy_out = _unbatch(sums), _unbatch(entropy)
        multiply, add = (torch.mm, torch.addmm) if self.h == 1 else (torch.bmm, torch.baddbmm)
        for index in tiles:
            tile = self.workspace[index]
            columns = tile.columns
            self.tiles.fill(tile.S, Q, rows, index)
            for scores, maxima in tile.chunks:
                torch.amax(scores, 3, out=maxima)
            torch.exp2(tile.logs, out=tile.powers)
            add(sums_out, tile.linear, tile.weights, out=sums_out)
            multiply(self.cell_of_row, tile.by_row, out=tile.received)
            if columns.start < row_key + height and columns.stop > row_key:
                correction += _distance_correction(tile.P, row_key, columns)
            tile.powers.mul_(tile.logs)
            add(entropy_out, tile.ones, tile.weights, out=entropy_out)
        buffers, heads = self.buffers, self.heads
        row = torch.arange(height, device=self.device)
        buffers.entropy[heads, rows] = self._entropy(-entropy[:, 0], sums[:, 3])
        buffers.distance[heads, rows] = sums[:, 0] + row * sums[:, 1] + correction
        buffers.marked[heads, rows] = sums[:, 2]
        buffers.attended[heads, rows] = sums[:, 4:].mT
        first, last = self.workspace[tiles[0]], self.workspace[tiles[-1]]
        self._pool(block, slice(first.columns.start, last.columns.stop))

    def _entropy(self, entropy: Tensor, total: Tensor) -> Tensor:
        """Return the entropy of weights that sum to 1, from that of weights that sum to `total`.

        The rounding of a large log-sum-exp scales all weights of a row alike. Beside a sink the
        weights do not sum to 1.
        """
        if self.spec.sinks is not None:
            return entropy
        return torch.where(total > 0, entropy / total + total.log2(), 0)

    def _pool(self, block: Block, columns: slice) -> None:
        """Pool the cells of a block, and find its top keys."""
        buffers, heads, rows = self.buffers, self.heads, block.rows
        last = min(columns.stop, self.n)
        cells = slice(block.cell, block.cell + block.cells)
        across = slice(columns.start // self.cell, columns.stop // self.cell)
        received = self.received[..., columns]
        buffers.received[heads, columns.start : last] += received.sum(1)[
            ..., : last - columns.start
        ]
        buffers.mean[heads, cells, across] += _split(received, 2, self.cell).sum(-1)
        highest = self.maxima.of_cells(across).amax(2)[..., : block.height]  # (h, across, rows)
        largest = _split(highest, 2, block.height // block.cells).amax(-1).mT.exp2()
        pooled = buffers.largest[heads, cells, across]
        torch.maximum(pooled, largest, out=pooled)
        if buffers.top:
            scores, keys = self.maxima.largest(self.spec, heads, rows, across, highest, buffers.top)
            k = scores.shape[2]
            buffers.top_weights[heads, rows, :k] = (scores - self.lse[heads, rows, None]).exp()
            buffers.top_keys[heads, rows, :k] = keys.masked_fill(scores <= NEVER / 2, -1).int()


class ChunkMaxima:
    """The maxima of chunks of keys, for the rows of a block, and the exact top keys from them.

    The k chunks with the largest maxima hold the k largest scores: each of these is the maximum of
    its chunk, or comes after a larger one in it. Only the scores of these chunks are computed
    again; no row of scores is stored or sorted. The last chunk of a cell may be shorter.

    Parameters
    ----------
    heads, cells : int
        How many heads, and cells of keys, all of them whole.
    cell, chunk : int
        How many keys a cell and a chunk have.
    """

    def __init__(self, heads: int, cells: int, cell: int, chunk: int) -> None:
        self.heads, self.cells, self.cell, self.chunk = heads, cells, cell, chunk
        self.per_cell = -(-cell // chunk)

    def allocate(self, height: int, device: torch.device) -> None:
        """Allocate the maxima of so many rows."""
        self.maxima = torch.empty(self.heads, self.cells * self.per_cell, height, device=device)

    def views(self, S: Tensor, columns: slice) -> list[tuple[Tensor, Tensor]]:
        """Return views of S (h, keys, rows) to reduce along dim 3, each with its output."""
        inside = min(self.cell, S.shape[1])
        first = columns.start // self.cell * self.per_cell + columns.start % self.cell // self.chunk
        count, whole = -(-inside // self.chunk), inside // self.chunk
        S = _split(S, 1, inside)
        maxima = _split(self.maxima[:, first : first + S.shape[1] * count], 1, count)
        cut = whole * self.chunk
        views = [(_split(S[:, :, :cut], 2, self.chunk), maxima[:, :, :whole])]
        if cut < inside:
            views.append((S[:, :, None, cut:], maxima[:, :, whole:]))
        return views

    def of_cells(self, cells: slice) -> Tensor:
        """Return the maxima of the chunks of some cells, (h, cells, chunks of a cell, rows)."""
        return _split(self.maxima, 1, self.per_cell)[:, cells]

    def largest(
        self, spec: ScoreSpec, heads: slice, rows: slice, cells: slice, highest: Tensor, k: int
    ) -> tuple[Tensor, Tensor]:
        """Return the top scores and their keys, (h, rows, at most k), the largest first.

        highest : (h, cells, rows), the maxima of these cells. A hidden key has the score NEVER.
        """
        best_cells = highest.topk(min(k, highest.shape[1]), dim=1).indices
        maxima = self.of_cells(cells)[..., : highest.shape[2]].gather(
            1, best_cells[:, :, None].expand(-1, -1, self.per_cell, -1)
        )
        maxima = maxima.flatten(1, 2)
        best = maxima.topk(min(k, maxima.shape[1]), dim=1).indices
        cell = cells.start + best_cells.gather(1, best // self.per_cell)
        within = (best % self.per_cell * self.chunk).mT[..., None] + torch.arange(
            self.chunk, device=best.device
        )
        keys = (cell * self.cell).mT[..., None] + within
        keys = keys.masked_fill_(within >= self.cell, -1).flatten(2)
        step = max(1, _GATHERED // (keys[:, 0].numel() * spec.key.shape[2]))
        scores = [
            spec.scores_of(heads, slice(start, min(start + step, rows.stop)), row_keys)
            for start, row_keys in zip(
                range(rows.start, rows.stop, step), keys.split(step, dim=1), strict=True
            )
        ]
        top, index = torch.cat(scores, dim=1).topk(min(k, keys.shape[2]), dim=-1)
        return top, keys.gather(2, index)


@dataclass(frozen=True)
class Block:
    """Some rows of a map: `cells` whole cells of the pooled map from `cell` on, or part of one."""

    rows: slice
    cell: int
    cells: int

    @property
    def height(self) -> int:
        """How many rows it has."""
        return int(self.rows.stop - self.rows.start)


def _blocks(m: int, cell: int, most: int) -> Iterator[Block]:
    """Cut m rows into blocks of at most `most` rows, for cells of `cell` rows."""
    whole_cells = max(1, most // cell) * cell
    for start in range(0, m, whole_cells):
        stop = min(start + whole_cells, m)
        whole = start + (stop - start) // cell * cell
        if whole_cells > cell and whole > start:
            yield Block(slice(start, whole), start // cell, (whole - start) // cell)
            start = whole
        if start < stop:
            step = -(-(stop - start) // -(-(stop - start) // most))
            for first in range(start, stop, step):
                yield Block(slice(first, min(first + step, stop)), start // cell, 1)


def _head_groups(spec: ScoreSpec, scores: int) -> Iterator[slice]:
    """Yield the heads to compute together: several where maps are short, of one key head.

    scores : how many scores a tile of one head has.
    """
    H = spec.shape[0]
    shared = H // spec.key.shape[0]
    size = min(max(1, _SCORES // max(1, scores)), shared if shared > 1 else H)
    while shared % size and shared > 1:
        size -= 1
    for start in range(0, H, size):
        yield slice(start, min(start + size, H))


class _Tiles:
    """The tiles of some heads: log₂ of the weights, once the log-sum-exp of each row is known.

    Scale and log-sum-exp are folded into the product: with q′ = [q · scale · log₂e, -lse · log₂e]
    and k′ = [k, 1], k′ q′ᵀ = log₂ P.

    Parameters
    ----------
    lse : Tensor, optional
        (H, m), natural; without it a tile holds scores · log₂e.
    cell, chunk : int
        A tile has whole cells of keys, or else a part of one with whole chunks.

    Attributes
    ----------
    columns : list of slice
        The keys of each tile. Keys from n on pad the last cell.
    """

    def __init__(
        self,
        spec: ScoreSpec,
        heads: slice,
        lse: Tensor | None = None,
        *,
        cell: int = 1,
        chunk: int = 1,
    ) -> None:
        self.spec, self.heads, self.cell = spec, heads, cell
        self.lse = None if lse is None else lse[heads]
        self.folded = spec.plain and lse is not None
        n, d = spec.key.shape[1:]
        self.columns = _cut(-(-n // cell) * cell, cell, chunk)
        self.starts = [columns.start for columns in self.columns]
        K = spec.expand_shared(heads, spec.key)
        packed = K.new_zeros(len(K), self.columns[-1].stop, d + self.folded, dtype=torch.float32)
        packed[:, :n, :d] = K
        packed[..., d:] = 1
        h = heads.stop - heads.start
        self.keys = [_unbatch(packed[:, columns].expand(h, -1, -1)) for columns in self.columns]
        self.has_terms = not spec.plain or spec.bias is not None

    def visible_to(self, rows: slice) -> range:
        """Return the tiles in which some rows may read a key, and the others of the same cells."""
        first, end = self.spec.visible.columns(rows, self.spec.key.shape[1])
        if first >= end:
            return range(0)
        start, stop = first // self.cell * self.cell, -(-end // self.cell) * self.cell
        return range(bisect_right(self.starts, start) - 1, bisect_left(self.starts, stop))

    def queries(self, rows: slice) -> Tensor:
        """Return some rows of Q as they enter the product, (h, d or d + 1, rows)."""
        Q = self.spec.query[self.heads, rows].float() * self.spec.scale
        if self.folded:
            assert self.lse is not None
            Q = torch.cat([Q, -self.lse[:, rows, None]], dim=-1)
        return _unbatch((Q * LOG2_E if self.spec.plain else Q).mT.contiguous())

    def fill(self, out: Tensor, Q: Tensor, rows: slice, tile: int) -> None:
        """Compute a tile (h, keys, rows) into `out`, NEVER where it is hidden.

        Q : the result of `queries` for these rows.
        """
        spec, columns = self.spec, self.columns[tile]
        multiply = torch.mm if Q.dim() == 2 else torch.bmm
        multiply(self.keys[tile], Q, out=_unbatch(out))
        if self.has_terms:
            spec.add_terms(out.mT, self.heads, rows, columns)
        if self.lse is not None and not self.folded:
            out.sub_(self.lse[:, None, rows] * LOG2_E)
        visible, n = spec.visible, spec.key.shape[1]
        if visible.hides(rows, columns, n):
            i = torch.arange(rows.start, rows.stop, dtype=torch.int32, device=out.device)
            j = torch.arange(columns.start, columns.stop, dtype=torch.int32, device=out.device)
            distance = i + visible.offset - j[:, None]
            out.masked_fill_(visible.hidden(distance.mT, columns, n).mT, NEVER)


def _cut(n: int, cell: int, chunk: int) -> list[slice]:
    """Cut n keys into tiles of whole cells, or a cell that is too long into whole chunks."""
    size = max(1, COLUMNS // cell) * cell
    step = -(-size // -(-size // COLUMNS))
    step = -(-step // chunk) * chunk
    cuts = []
    for start in range(0, n, size):
        stop = min(start + size, n)
        cuts += [slice(first, min(first + step, stop)) for first in range(start, stop, step)]
    return cuts


def _distance_correction(P: Tensor, row_key: int, columns: slice) -> Tensor:
    """Return what to add to the mean distance of rows, for keys that lie among them, (h, rows).

    A block sums i - j = (i - row_key) - (j - row_key), which has the wrong sign for keys behind
    a row from `row_key` on.
    """
    low, high = max(row_key, columns.start), min(row_key + P.shape[2], columns.stop)
    i = torch.arange(row_key, row_key + P.shape[2], device=P.device)
    j = torch.arange(low, high, device=P.device)
    twice = 2.0 * (i - j[:, None]).clamp(min=0)
    return (P[:, low - columns.start : high - columns.start] * twice).sum(1)


def _pad_rows(rows: int) -> int:
    return -(-rows // _LANES) * _LANES


def _view(workspace: Tensor, h: int, columns: slice, height: int) -> Tensor:
    """Return a part of the workspace as a contiguous tile, (h, keys, rows)."""
    width = columns.stop - columns.start
    return workspace[: h * width * height].view(h, width, height)


def _unbatch(matrices: Tensor) -> Tensor:
    """Return the only matrix of a batch of one, whose product is faster than that of the batch."""
    return matrices[0] if len(matrices) == 1 else matrices


def _split(tensor: Tensor, dim: int, size: int) -> Tensor:
    """Return a view with one dimension as two, the second of that size."""
    shape = tensor.shape
    return tensor.view(*shape[:dim], -1, size, *shape[dim + 1 :])
