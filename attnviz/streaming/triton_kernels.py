"""The kernels in Triton: the map pass, and the log-sum-exp if no fused attention returned it.

A tile holds whole cells of the pooled map, or lies in one. Scores are in units of log₂, so that a
weight is exp2(score - lse). Sums are made in one order, without atomics: every run gives the same
numbers. Without Triton this module can be imported, but nothing in it runs.
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
def _vectors(
    base, index, there, row, first, D: tl.constexpr, d: tl.constexpr, BD: tl.constexpr,
    ALL: tl.constexpr,
):  # fmt: skip
    """Load features first … first + BD of some vectors, with 0 beyond d and where no vector is."""
    feature = first + tl.arange(0, BD)
    place = base + index[:, None].to(tl.int64) * row + feature[None, :]
    if ALL and d == D:
        vectors = tl.load(place)
    elif ALL:
        vectors = tl.load(place, mask=(feature < d)[None, :], other=0.0)
    else:
        vectors = tl.load(place, mask=there[:, None] & (feature < d)[None, :], other=0.0)
    return vectors


@jit
def _products(
    a, i, a_there, a_row, b, j, b_there, b_row,
    D: tl.constexpr, d: tl.constexpr, BD: tl.constexpr,
    ALL_A: tl.constexpr, ALL_B: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the products of two tiles of vectors, BD features at a time."""
    S = tl.zeros((i.shape[0], j.shape[0]), tl.float32)
    for first in range(0, D, BD):
        A = _vectors(a, i, a_there, a_row, first, D, d, BD, ALL_A)
        B = _vectors(b, j, b_there, b_row, first, D, d, BD, ALL_B)
        S = tl.dot(A, tl.trans(B), S, input_precision=PRECISION)
    return S


@jit
def _used(start, last, n, before, after, BN: tl.constexpr):
    """Return between which tiles queries at start … last read some keys, all keys, some keys.

    Keys of the tiles from the first number on to the second are read by some of these queries, on
    to the third by all, on to the fourth by some.
    """
    first_key = min(max(0, start - before), n)
    end_key = max(min(n, last + after + 1), first_key)
    begin = first_key // BN
    end = tl.cdiv(max(end_key, begin * BN), BN)
    clear = min(max(tl.cdiv(max(0, last - before), BN), begin), end)
    cloudy = min(max(max(0, min(n, start + after + 1)) // BN, clear), end)
    return begin, clear, cloudy, end


@jit
def _scores(S, scale, cap, CAP: tl.constexpr):
    """Return scores in units of log₂ from products; see `gpu._launches` for the factors."""
    S *= scale
    if CAP:  # cap · tanh(x), with S = 2x · log₂e; at 60 the tanh is 1
        E = tl.exp2(tl.minimum(S, 60.0))
        S = (E - 1.0) / (E + 1.0) * cap
    return S


@jit
def log_sum_exp(
    q, k, keys, lse,
    q_head, q_row, k_head, k_row, shared, m, n, offset, before, after, scale, cap,
    D: tl.constexpr, d: tl.constexpr, KEYS: tl.constexpr, CAP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Find the log-sum-exp of the rows of scores, online (Milakov & Gimelshein 2018)."""
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM  # the longest of a causal map first
    head = tl.program_id(1).to(tl.int64)
    i = start + tl.arange(0, BM)
    q += head * q_head
    if BD == D:
        Q = _vectors(q, i, i < m, q_row, 0, D, d, D, False)
    k += head // shared * k_head
    last = min(start + BM, m) - 1
    begin, clear, cloudy, end = _used(start + offset, last + offset, n, before, after, BN)
    top = tl.full((BM,), NEVER, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for phase in tl.static_range(1 if KEYS else 3):
        low = begin if phase == 0 else clear if phase == 1 else cloudy
        high = end if KEYS or phase == 2 else clear if phase == 0 else cloudy
        for tile in range(low, high):
            j = tile * BN + tl.arange(0, BN)
            if BD == D:
                K = _vectors(k, j, j < n, k_row, 0, D, d, D, phase == 1)
                S = tl.dot(Q, tl.trans(K), input_precision=PRECISION)
            else:
                S = _products(
                    q, i, i < m, q_row, k, j, j < n, k_row, D, d, BD, False, phase == 1, PRECISION
                )
            S = _scores(S, scale, cap, CAP)
            if phase != 1:
                gap = i[:, None] + offset - j[None, :]
                hidden = (gap > before) | (gap < -after) | (j >= n)[None, :]
                if KEYS:
                    hidden |= (tl.load(keys + j, mask=j < n, other=0) == 0)[None, :]
                S = tl.where(hidden, NEVER, S)
            higher = tl.maximum(top, tl.max(S, 1))
            total = total * tl.exp2(top - higher) + tl.sum(tl.exp2(S - higher[:, None]), 1)
            top = higher
    result = (top + tl.log2(tl.maximum(total, 1.0))) * 0.6931471805599453
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
    P, S, sums, tops, tile, width, ROW_CELLS: tl.constexpr, CELLS: tl.constexpr
):  # fmt: skip
    """Store what a tile adds to the cells of the pooled maps; return what its keys receive."""
    BN: tl.constexpr = P.shape[0]
    BM: tl.constexpr = P.shape[1]
    summed = tl.sum(tl.reshape(P, (BN, ROW_CELLS, BM // ROW_CELLS)), 2)
    highest = tl.max(tl.reshape(S, (BN, ROW_CELLS, BM // ROW_CELLS)), 2)
    by_key = tl.sum(summed, 1)
    summed = tl.reshape(summed, (CELLS, BN // CELLS, ROW_CELLS))
    highest = tl.reshape(highest, (CELLS, BN // CELLS, ROW_CELLS))
    index = tl.arange(0, ROW_CELLS)[None, :] * width + tile * CELLS + tl.arange(0, CELLS)[:, None]
    tl.store(sums + index, tl.sum(summed, 1))
    tl.store(tops + index, tl.max(highest, 1))
    return by_key


@jit
def map_pass(
    q, k, lse, keys, marks, received, sums, tops, entropy, distance, marked,
    q_head, q_row, k_head, k_row, shared, m, n, offset, before, after, scale, cap,
    first_tile, row_tiles, width,
    D: tl.constexpr, d: tl.constexpr, KEYS: tl.constexpr, CAP: tl.constexpr, MARKS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    ROW_CELLS: tl.constexpr, CELLS: tl.constexpr, BACKWARDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Reduce the weights of some rows of one head, tile by tile.

    Tiles are transposed, (keys, queries): a thread then holds few keys and many queries, so that
    the mass that keys receive needs hardly any exchange between threads, and the sums of a row are
    exchanged only once, after its last tile.

    lse : in units of log₂; in an empty row so large that every weight is 0.
    received : for each head and program, the mass that each key receives. sums, tops : for each
        part of a cell of the pooled maps, the sum of the weights and the largest logarithm.
    ROW_CELLS, CELLS : how many cells, or parts of one, a tile holds.
    BACKWARDS : whether no query reads a later key, and every row that reads one sums to 1.
    """
    program, programs, head = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    q += head * q_head
    k += head // shared * k_head
    received += (head * programs + program) * n
    sums += head * row_tiles * ROW_CELLS * width
    tops += head * row_tiles * ROW_CELLS * width
    for turn in range(tl.cdiv(row_tiles, programs)):
        # From the last row, the longest of a causal map, to the first, back and forth: all
        # programs get the same share.
        step = program if turn % 2 == 0 else programs - 1 - program
        block = row_tiles - 1 - turn * programs - step
        if block >= 0:
            cells = block.to(tl.int64) * ROW_CELLS * width
            start = (first_tile + block) * BM
            last = min(start + BM, m) - 1
            i = tl.arange(0, BM)
            query = start + i
            there = query < m
            if BD == D:
                Q = tl.trans(_vectors(q, query, there, q_row, 0, D, d, D, False))
            level = tl.load(lse + head * m + query, mask=there, other=1e30)
            start += offset  # as they stand among the keys
            begin, clear, cloudy, end = _used(start, last + offset, n, before, after, BN)
            E = tl.zeros((BN // 16, 8, BM), tl.float32)
            F = tl.zeros((BN // 16, 8, BM), tl.float32)
            M = tl.zeros((BN // 16, 8, BM), tl.float32)
            for phase in tl.static_range(3):
                low = begin if phase == 0 else clear if phase == 1 else cloudy
                high = clear if phase == 0 else cloudy if phase == 1 else end
                for tile in range(low, high):
                    j = tile * BN + tl.arange(0, BN)
                    valid = tl.full((BN,), True, tl.int1) if phase == 1 else j < n
                    received_sum = tl.load(received + j, mask=valid, other=0.0)
                    if BD == D:
                        K = _vectors(k, j, valid, k_row, 0, D, d, D, phase == 1)
                        S = tl.dot(K, Q, input_precision=PRECISION)
                    else:
                        S = _products(
                            k, j, valid, k_row, q, query, there, q_row,
                            D, d, BD, phase == 1, False, PRECISION,
                        )  # fmt: skip
                    S = _scores(S, scale, cap, CAP) - level[None, :]
                    read = valid
                    if KEYS:
                        read = tl.load(keys + j, mask=valid, other=0) != 0
                    if phase != 1:
                        gap = j - start
                        hidden = i[None, :] > tl.where(read, gap + before, -1)[:, None]
                        hidden |= i[None, :] < (gap - after)[:, None]
                        S = tl.where(hidden, NEVER, S)
                    elif KEYS:
                        S = tl.where(read[:, None], S, NEVER)
                    P = tl.exp2(S)
                    E = _add(E, P, S, BN)
                    if BACKWARDS:
                        F = _add(F, P, (start - j).to(tl.float32)[:, None], BN)
                    else:
                        far = i.to(tl.float32)[None, :] + (start - j).to(tl.float32)[:, None]
                        F = _add(F, P, tl.abs(far), BN)
                    if MARKS:
                        mark = tl.load(marks + j, mask=valid, other=0.0)
                        M = _add(M, P, mark[:, None], BN)
                    by_key = _pool(P, S, sums + cells, tops + cells, tile, width, ROW_CELLS, CELLS)
                    tl.store(received + j, received_sum + by_key, mask=valid)
            index = head * m + (start - offset) + i
            tl.store(entropy + index, -tl.sum(tl.sum(E, 0), 0), mask=there)  # in bits
            mean = tl.sum(tl.sum(F, 0), 0)
            if BACKWARDS:  # the distance is i + (start - j), and a row sums to 1
                empty = tl.load(lse + index, mask=there, other=1e30) >= 1e30
                mean = tl.where(empty, 0.0, mean + i.to(tl.float32))
            tl.store(distance + index, mean, mask=there)
            if MARKS:
                tl.store(marked + index, tl.sum(tl.sum(M, 0), 0), mask=there)
            tl.debug_barrier()  # the next rows read `received` again
