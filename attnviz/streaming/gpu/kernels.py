"""The kernels, in Triton: the map pass, and the log-sum-exp where no fast attention has told it.

Rows and columns are cut alike. A tile holds `CELLS` whole cells of the pooled map, each in a power
of two of lanes, or one of `parts` parts of a single larger cell: see `cuts.Cut`. Scores are in
units of log₂, so that a weight is exp2(score - lse). Sums are made in one order only, without
atomics: the same numbers come out of every run. Without Triton this module can be imported, but
nothing in it runs.
"""
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

try:
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from triton import jit  # type: ignore[import-not-found,import-untyped,unused-ignore]

    NEVER = tl.constexpr(-1e30)  # stands for -∞, so that 0 · NEVER is 0
except ImportError:

    def jit(function):
        """Leave a function as it is."""
        return function


@jit
def _places(tile, cell, span, parts, SIZE: tl.constexpr, CELLS: tl.constexpr):
    """Return the position of each lane of a tile, and which lanes have one."""
    lane = tl.arange(0, SIZE)
    within = lane % (SIZE // CELLS)
    part = tile % parts
    start = tile // parts * (CELLS * cell) + part * span
    return start + lane // (SIZE // CELLS) * cell + within, within < min(span, cell - part * span)


@jit
def _tile_of(position, cell, span, parts, CELLS: tl.constexpr):
    """Return the tile that a position falls into."""
    group = position // (CELLS * cell)
    return group * parts + (position - group * CELLS * cell) // span


@jit
def _vectors(base, at, there, row, D: tl.constexpr, d: tl.constexpr, ALL: tl.constexpr):
    """Load the vectors at some positions, (positions, D), 0 beyond d and where there is none."""
    feature = tl.arange(0, D)
    place = base + at[:, None].to(tl.int64) * row + feature[None, :]
    if ALL and D == d:
        vectors = tl.load(place)
    elif ALL:
        vectors = tl.load(place, mask=(feature < d)[None, :], other=0.0)
    else:
        vectors = tl.load(place, mask=there[:, None] & (feature < d)[None, :], other=0.0)
    return vectors


@jit
def _hidden(i, j, offset, before, after):
    """Return what the rule hides of a tile, (rows, columns)."""
    gap = i[:, None] + offset - j[None, :]
    return (gap > before) | (gap < -after)


@jit
def log_sum_exp(
    q, k, keys, lse,
    q_head, q_row, k_head, k_row, shared, m, n, offset, before, after, scale,
    D: tl.constexpr, d: tl.constexpr, KEYS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Find the log-sum-exp of the rows of scores, online (Milakov & Gimelshein 2018)."""
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM  # the longest of a causal map first
    head = tl.program_id(1).to(tl.int64)
    i = start + tl.arange(0, BM)
    Q = _vectors(q + head * q_head, i, i < m, q_row, D, d, False)
    k += head // shared * k_head
    last = min(start + BM, m) - 1
    begin = max(0, start + offset - before) // BN
    end = tl.cdiv(max(min(n, last + offset + after + 1), begin * BN), BN)
    clear = min(max(tl.cdiv(max(0, last + offset - before), BN), begin), end)
    cloudy = min(max(max(0, min(n, start + offset + after + 1)) // BN, clear), end)
    top = tl.full((BM,), NEVER, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for phase in tl.static_range(1 if KEYS else 3):
        low = begin if phase == 0 else clear if phase == 1 else cloudy
        high = end if KEYS or phase == 2 else clear if phase == 0 else cloudy
        for tile in range(low, high):
            j = tile * BN + tl.arange(0, BN)
            K = _vectors(k, j, j < n, k_row, D, d, phase == 1)
            S = tl.dot(Q, tl.trans(K), input_precision=PRECISION) * scale
            if phase != 1:
                hidden = _hidden(i, j, offset, before, after) | (j >= n)[None, :]
                if KEYS:
                    hidden |= (tl.load(keys + j, mask=j < n, other=0) == 0)[None, :]
                S = tl.where(hidden, NEVER, S)
            higher = tl.maximum(top, tl.max(S, 1))
            total = total * tl.exp2(top - higher) + tl.sum(tl.exp2(S - higher[:, None]), 1)
            top = higher
    found = (top + tl.log2(total)) * 0.6931471805599453
    found = tl.where(top > NEVER / 2, found, -float("inf"))
    tl.store(lse + head * m + i, found, mask=i < m)


@jit
def map_pass(
    q, k, lse, keys, marks, received, sums, tops, entropy, distance, marked,
    q_head, q_row, k_head, k_row, shared, m, n, offset, before, after, scale,
    row_cell, row_span, row_parts, first_tile, row_tiles, cell, span, parts, width,
    D: tl.constexpr, d: tl.constexpr, KEYS: tl.constexpr, MARKS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, ROW_CELLS: tl.constexpr, CELLS: tl.constexpr,
    WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Reduce the weights of some rows of one head, tile by tile.

    lse : in units of log₂, and so large where a row is empty that nothing is left of it.
    received : of each head and program, what each key is given. sums, tops : of each part of a cell
        of the pooled maps, the sum of the weights and the largest logarithm.
    WHOLE : whether every lane of a tile within the map has a column.
    """
    strip, strips, head = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    q += head * q_head
    k += head // shared * k_head
    received += (head * strips + strip) * n
    PLAIN: tl.constexpr = WHOLE and not KEYS
    for turn in range(tl.cdiv(row_tiles, strips)):
        # To and fro, so that each program gets as much of a causal map as the others.
        block = turn * strips + (strip if turn % 2 == 0 else strips - 1 - strip)
        if block < row_tiles:
            row_tile = first_tile + block
            i, lane = _places(row_tile, row_cell, row_span, row_parts, BM, ROW_CELLS)
            there = lane & (i < m)
            Q = _vectors(q, i, there, q_row, D, d, False)
            level = tl.load(lse + head * m + i, mask=there, other=1e30)
            here = i.to(tl.float32) + offset
            start = row_tile // row_parts * (ROW_CELLS * row_cell) + row_tile % row_parts * row_span
            rows = min(row_span, ROW_CELLS * row_cell - row_tile % row_parts * row_span)
            last = min(start + rows, m) - 1
            first_key = min(max(0, start + offset - before), n)
            end_key = max(min(n, last + offset + after + 1), first_key)
            begin = _tile_of(first_key, cell, span, parts, CELLS)
            end = begin
            if end_key > first_key:
                end = _tile_of(end_key - 1, cell, span, parts, CELLS) + 1
            clear, cloudy = end, end
            if PLAIN:
                free = max(0, last + offset - before)
                if free > 0:
                    free = _tile_of(free - 1, cell, span, parts, CELLS) + 1
                clear = min(max(free, begin), end)
                free = max(0, min(n, start + offset + after + 1))
                cloudy = min(max(_tile_of(free, cell, span, parts, CELLS), clear), end)
            E = tl.zeros((BM,), tl.float32)
            F = tl.zeros((BM,), tl.float32)
            M = tl.zeros((BM,), tl.float32)
            for phase in tl.static_range(3 if PLAIN else 1):
                low = begin if phase == 0 else clear if phase == 1 else cloudy
                high = clear if phase == 0 else cloudy if phase == 1 else end
                for tile in range(low, high):
                    j, lane = _places(tile, cell, span, parts, BN, CELLS)
                    if phase == 1:
                        given = tl.load(received + j)
                    else:
                        seen = lane & (j < n)
                        given = tl.load(received + j, mask=seen, other=0.0)
                    K = _vectors(k, j, j < n, k_row, D, d, phase == 1)
                    S = tl.dot(Q, tl.trans(K), input_precision=PRECISION) * scale - level[:, None]
                    if phase != 1:
                        hidden = _hidden(i, j, offset, before, after) | (seen == 0)[None, :]
                        if KEYS:
                            hidden |= (tl.load(keys + j, mask=seen, other=0) == 0)[None, :]
                        S = tl.where(hidden, NEVER, S)
                    P = tl.exp2(S)
                    E += tl.sum(P * S, 1)
                    F += tl.sum(P * tl.abs(here[:, None] - j.to(tl.float32)[None, :]), 1)
                    if MARKS:
                        mark = tl.load(marks + j, mask=j < n, other=0.0)
                        M += tl.sum(P * mark[None, :], 1)
                    if ROW_CELLS == 1 and CELLS == 1:
                        column = tl.sum(P, 0)
                        at = block.to(tl.int64) * width + tile
                        tl.store(sums + (head * row_tiles * width + at), tl.sum(column, 0))
                        tl.store(tops + (head * row_tiles * width + at), tl.max(tl.max(S, 1), 0))
                    else:
                        summed = tl.sum(tl.reshape(P, (ROW_CELLS, BM // ROW_CELLS, BN)), 1)
                        highest = tl.max(tl.reshape(S, (ROW_CELLS, BM // ROW_CELLS, BN)), 1)
                        column = tl.sum(summed, 0)
                        summed = tl.reshape(summed, (ROW_CELLS, CELLS, BN // CELLS))
                        highest = tl.reshape(highest, (ROW_CELLS, CELLS, BN // CELLS))
                        at = (head * row_tiles + block) * ROW_CELLS + tl.arange(0, ROW_CELLS)
                        at = at[:, None] * width + tile * CELLS + tl.arange(0, CELLS)[None, :]
                        tl.store(sums + at, tl.sum(summed, 2))
                        tl.store(tops + at, tl.max(highest, 2))
                    if phase == 1:
                        tl.store(received + j, given + column)
                    else:
                        tl.store(received + j, given + column, mask=seen)
            tl.store(entropy + head * m + i, E * -0.6931471805599453, mask=there)
            tl.store(distance + head * m + i, F, mask=there)
            if MARKS:
                tl.store(marked + head * m + i, M, mask=there)
            tl.debug_barrier()  # what was received is read again by the next rows
