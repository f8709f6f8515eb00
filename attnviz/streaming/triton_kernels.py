"""The kernels in Triton: the map pass, and the log-sum-exp if no fused attention returned it.

Rows and columns are cut alike. A tile holds `CELLS` whole cells of the pooled map, each in a power
of two of lanes, or one of `parts` parts of a single larger cell: see `gpu.Cut`. Scores are in units
of log₂, so that a weight is exp2(score - lse). Sums are made in one order, without atomics: every
run gives the same numbers. Without Triton this module can be imported, but nothing in it runs.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

try:
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from triton import jit  # type: ignore[import-not-found,import-untyped,unused-ignore]

    NEVER = tl.constexpr(-1e30)  # in the place of -∞, so that 0 · NEVER is 0
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
def _vectors(base, index, there, row, D: tl.constexpr, d: tl.constexpr, ALL: tl.constexpr):
    """Load the vectors at some positions, (positions, D), with 0 beyond d and where none is."""
    feature = tl.arange(0, D)
    place = base + index[:, None].to(tl.int64) * row + feature[None, :]
    if ALL and d == D:
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
    result = (top + tl.log2(total)) * 0.6931471805599453
    result = tl.where(top > NEVER / 2, result, -float("inf"))
    tl.store(lse + head * m + i, result, mask=i < m)


@jit
def _halves(tile, BN: tl.constexpr):
    """Split a tile (BN, …) into two of half its keys; no thread exchanges data."""
    apart = tl.reshape(tile, (BN // 16, 2, 8, tile.shape[1]))
    return tl.split(tl.permute(apart, (0, 2, 3, 1)))


@jit
def _add(sums, P, factor, BN: tl.constexpr):
    """Add P · factor to sums over the keys that a thread holds, (BN // 16, 8, BM)."""
    P0, P1 = _halves(P, BN)
    factor0, factor1 = _halves(tl.broadcast_to(factor, P.shape), BN)
    sums += P0 * factor0
    sums += P1 * factor1
    return sums


@jit
def _pool(
    P, S, sums, tops, block, tile, width, ROW_CELLS: tl.constexpr, CELLS: tl.constexpr
):  # fmt: skip
    """Store what a tile adds to the cells of the pooled maps; return what its keys receive."""
    BN: tl.constexpr = P.shape[0]
    BM: tl.constexpr = P.shape[1]
    if ROW_CELLS == 1 and CELLS == 1:
        by_key = tl.sum(P, 1)
        index = block.to(tl.int64) * width + tile
        tl.store(sums + index, tl.sum(by_key, 0))
        tl.store(tops + index, tl.max(S))
    else:
        summed = tl.sum(tl.reshape(P, (BN, ROW_CELLS, BM // ROW_CELLS)), 2)
        highest = tl.max(tl.reshape(S, (BN, ROW_CELLS, BM // ROW_CELLS)), 2)
        by_key = tl.sum(summed, 1)
        summed = tl.reshape(summed, (CELLS, BN // CELLS, ROW_CELLS))
        highest = tl.reshape(highest, (CELLS, BN // CELLS, ROW_CELLS))
        index = block.to(tl.int64) * ROW_CELLS + tl.arange(0, ROW_CELLS)
        index = index[None, :] * width + tile * CELLS + tl.arange(0, CELLS)[:, None]
        tl.store(sums + index, tl.sum(summed, 1))
        tl.store(tops + index, tl.max(highest, 1))
    return by_key


@jit
def _used(
    start, last, n, before, after, cell, span, parts,
    BN: tl.constexpr, CELLS: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Return between which tiles queries at start … last read some keys, all keys, some keys.

    Keys of the tiles from the first number on to the second are read by some of these queries, on
    to the third by all, on to the fourth by some.
    """
    first_key = min(max(0, start - before), n)
    end_key = max(min(n, last + after + 1), first_key)
    begin = _tile_of(first_key, cell, span, parts, CELLS)
    end = begin
    if end_key > first_key:
        end = _tile_of(end_key - 1, cell, span, parts, CELLS) + 1
    clear, cloudy = end, end
    if PLAIN:  # tiles of BN keys each
        clear = min(max(tl.cdiv(max(0, last - before), BN), begin), end)
        cloudy = min(max(max(0, min(n, start + after + 1)) // BN, clear), end)
    return begin, clear, cloudy, end


@jit
def map_pass(
    q, k, lse, keys, marks, received, sums, tops, entropy, distance, marked,
    q_head, q_row, k_head, k_row, shared, m, n, offset, before, after, scale,
    row_cell, row_span, row_parts, first_tile, row_tiles, cell, span, parts, width,
    D: tl.constexpr, d: tl.constexpr, KEYS: tl.constexpr, MARKS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, ROW_CELLS: tl.constexpr, CELLS: tl.constexpr,
    WHOLE: tl.constexpr, BACKWARDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Reduce the weights of some rows of one head, tile by tile.

    Tiles are transposed, (keys, queries): a thread then holds few keys and many queries, so that
    the mass that keys receive needs hardly any exchange between threads, and the sums of a row are
    exchanged only once, after its last tile.

    lse : in units of log₂; in an empty row so large that every weight is 0.
    received : for each head and program, the mass that each key receives. sums, tops : for each
        part of a cell of the pooled maps, the sum of the weights and the largest logarithm.
    WHOLE : whether every lane of a tile within the map has a key. BACKWARDS : whether no query
        reads a later key.
    """
    program, programs, head = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    q += head * q_head
    k += head // shared * k_head
    received += (head * programs + program) * n
    sums += head * row_tiles * ROW_CELLS * width
    tops += head * row_tiles * ROW_CELLS * width
    PLAIN: tl.constexpr = WHOLE and not KEYS
    for turn in range(tl.cdiv(row_tiles, programs)):
        # Back and forth, so that all programs get the same share of a causal map.
        block = turn * programs + (program if turn % 2 == 0 else programs - 1 - program)
        if block < row_tiles:
            group, part = (first_tile + block) // row_parts, (first_tile + block) % row_parts
            start = group * (ROW_CELLS * row_cell) + part * row_span
            last = min(start + min(row_span, ROW_CELLS * row_cell - part * row_span), m) - 1
            i, there = _places(first_tile + block, row_cell, row_span, row_parts, BM, ROW_CELLS)
            there &= i < m
            Q = tl.trans(_vectors(q, i, there, q_row, D, d, False))
            level = tl.load(lse + head * m + i, mask=there, other=1e30)
            i += offset  # as they stand among the keys
            start += offset
            begin, clear, cloudy, end = _used(
                start, last + offset, n, before, after, cell, span, parts, BN, CELLS, PLAIN
            )
            E = tl.zeros((BN // 16, 8, BM), tl.float32)
            F = tl.zeros((BN // 16, 8, BM), tl.float32)
            M = tl.zeros((BN // 16, 8, BM), tl.float32)
            for phase in tl.static_range(3 if PLAIN else 1):
                low = begin if phase == 0 else clear if phase == 1 else cloudy
                high = clear if phase == 0 else cloudy if phase == 1 else end
                for tile in range(low, high):
                    if phase == 1:
                        j = tile * BN + tl.arange(0, BN)
                        valid = j >= 0
                        received_sum = tl.load(received + j)
                    else:
                        j, valid = _places(tile, cell, span, parts, BN, CELLS)
                        valid &= j < n
                        received_sum = tl.load(received + j, mask=valid, other=0.0)
                    K = _vectors(k, j, valid, k_row, D, d, phase == 1)
                    S = tl.dot(K, Q, input_precision=PRECISION) * scale - level[None, :]
                    if phase != 1:
                        read = tl.load(keys + j, mask=valid, other=0) != 0 if KEYS else valid
                        gap = i[None, :] - j[:, None]
                        hidden = (gap > before) | (gap < -after) | (read == 0)[:, None]
                        S = tl.where(hidden, NEVER, S)
                    P = tl.exp2(S)
                    E = _add(E, P, S, BN)
                    if BACKWARDS:
                        F = _add(F, P, (start - j).to(tl.float32)[:, None], BN)
                    else:
                        far = i.to(tl.float32)[None, :] - j.to(tl.float32)[:, None]
                        F = _add(F, P, tl.abs(far), BN)
                    if MARKS:
                        mark = tl.load(marks + j, mask=valid, other=0.0)
                        M = _add(M, P, mark[:, None], BN)
                    by_key = _pool(P, S, sums, tops, block, tile, width, ROW_CELLS, CELLS)
                    if phase == 1:
                        tl.store(received + j, received_sum + by_key)
                    else:
                        tl.store(received + j, received_sum + by_key, mask=valid)
            index = head * m + i - offset
            tl.store(entropy + index, -tl.sum(tl.sum(E, 0), 0), mask=there)  # in bits
            mean = tl.sum(tl.sum(F, 0), 0)
            if BACKWARDS:  # i - j = (i - start) + (start - j), and a row sums to 1
                empty = tl.load(lse + index, mask=there, other=1e30) >= 1e30
                mean = tl.where(empty, 0.0, mean + (i - start).to(tl.float32))
            tl.store(distance + index, mean, mask=there)
            if MARKS:
                tl.store(marked + index, tl.sum(tl.sum(M, 0), 0), mask=there)
            tl.debug_barrier()  # the next rows read `received` again
