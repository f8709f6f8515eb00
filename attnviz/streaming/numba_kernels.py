"""The loops that numba compiles.

A tile is stored transposed, (h, keys, rows): inner loops run over contiguous rows and vectorize.
Scores are in units of log₂. `first` is the key of tile[:, 0], and row r is at the position of key
`row_key` + r. Sums are accumulated cell by cell, to round little.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import numpy as np
from numba import njit

f32, i32, i64 = np.float32, np.int32, np.int64
# Copied from `reference`: numba compiles again only when this file changes.
_NEVER, _HIDDEN = f32(-1e30), f32(-5e29)  # in the index of -∞; less than any score
_SAFE = f32(2.0**64)  # a row whose sum is between 1 / _SAFE and _SAFE loses no precision
_LN_2 = f32(np.log(2))
NO_KEY = i64(-(2**63))  # less than any packed score
_LOW = i64(0x7FFFFFFF)  # the bits of a packed index
_ROUND = f32(1.5 * 2**23)  # adding this rounds a number, and leaves it in the lowest bits
# 2^f = Σ c f^i for |f| ≤ 1/2, within 3e-9: an interpolation at Chebyshev points.
_C0, _C1, _C2, _C3 = f32(1.0), f32(0.6931472), f32(0.2402265), f32(0.05550327)
_C4, _C5, _C6 = f32(0.009618025), f32(0.0013400433), f32(0.00015469732)
# Sums in any order; NaN and infinity stay, so that they are detected.
_LANES = {"contract", "reassoc", "nsz"}


@njit(nogil=True, cache=True)
def hide(S, first, row_key, before, after, read):
    """Write NEVER where a row may not read a key.

    The row at key i may read the keys from i - `before` to i + `after` for which `read` is True, or
    all of these if `read` is empty.
    """
    h, keys, rows = S.shape
    for key in range(keys):
        j = first + key
        low = min(rows, max(0, j - after - row_key))
        high = max(low, min(rows, j + before + 1 - row_key))
        if len(read) and not read[j]:
            high = low
        for head in range(h):
            S[head, key, :low] = _NEVER
            S[head, key, high:] = _NEVER


@njit(fastmath=_LANES, nogil=True, cache=True)
def weigh(S, first, row_key, shift, cell, marks, cell_sums, cell_maxima, sums):
    """Turn scores into P̃ = 2^(S - shift) in index, and reduce both.

    shift : (h, rows). cell_sums, cell_maxima : (h, cells, rows), outputs: for each cell of keys the
    sum of P̃ and the largest S - shift. sums : (4, h, rows), added to: Σ P̃, Σ P̃ (S - shift),
    Σ P̃ distance, and Σ P̃ of the marked keys.
    """
    h, keys, rows = S.shape
    row = np.arange(rows).astype(np.float32)
    by_cell = np.empty((5, rows), np.float32)  # one array, so that nothing can alias
    p_sum, bits, away, top, less = by_cell[0], by_cell[1], by_cell[2], by_cell[3], by_cell[4]
    for head in range(h):
        less[:] = shift[head]
        start = 0
        for c in range(cell_sums.shape[1]):
            stop = min(keys, ((first + start) // cell + 1) * cell - first)
            by_cell[:3] = f32(0)
            top[:] = _NEVER
            for key in range(start, stop):
                s, behind = S[head, key], f32(row_key - first - key)
                for r in range(rows):
                    x = s[r] - less[r]
                    p = _exp2(x)
                    s[r] = p
                    p_sum[r] += p
                    bits[r] += p * x
                    away[r] += p * abs(behind + row[r])
                    top[r] = max(top[r], x)
                if len(marks) and marks[first + key]:
                    for r in range(rows):
                        sums[3, head, r] += s[r]
            for r in range(rows):
                cell_sums[head, c, r] = p_sum[r]
                cell_maxima[head, c, r] = top[r]
                sums[0, head, r] += p_sum[r]
                sums[1, head, r] += bits[r]
                sums[2, head, r] += away[r]
            start = stop


@njit(nogil=True, cache=True)
def divide(sums, sinks, shift, empty, total):
    """Compute `total` (h, rows), by which to divide P̃: its sum, and the power of the sink.

    empty : (rows,), which may read nothing. Return whether all other rows have a total at which P̃
    is precise.
    """
    safe = True
    for head in range(total.shape[0]):
        for r in range(total.shape[1]):
            row_total = sums[0, head, r] + _exp2(sinks[head, r] - shift[head, r])
            safe &= (f32(1) / _SAFE < row_total < _SAFE) | (empty[r] & (row_total == 0))
            total[head, r] = row_total
    return safe


@njit(fastmath=_LANES, nogil=True, cache=True)
def pool(
    P, first, row_key, row, total, cell, cell_sums, cell_maxima, received, mean, largest, near
):
    """Add a tile of P̃ / total to the sums over the map.

    row : the query of P̃[:, :, 0]. total : (h, rows). cell_sums, cell_maxima : from `weigh`.
    received : (h, n). mean, largest : (h, cells, cells), sums, and log₂ of the largest.
    near : (h, 3, m), for itself, the previous, the first key.
    """
    h, keys, rows = P.shape
    by, log = np.empty(rows, np.float32), np.empty(rows, np.float32)
    for head in range(h):
        for r in range(rows):
            by[r] = f32(1) / total[head, r] if total[head, r] > 0 else f32(0)
            log[r] = -np.log2(total[head, r]) if total[head, r] > 0 else f32(0)
        for key in range(keys):
            p, share = P[head, key], f32(0)
            for r in range(rows):
                share += p[r] * by[r]
            received[head, first + key] += share
        for c in range(cell_sums.shape[1]):
            p_sum, top, across = cell_sums[head, c], cell_maxima[head, c], first // cell + c
            for r in range(rows):
                p_sum[r] *= by[r]
                top[r] += log[r]
            down, start = row // cell, 0
            stop = (down + 1) * cell - row
            while start < rows:
                stop = min(rows, stop)
                share, most = f32(0), _NEVER
                for r in range(start, stop):
                    share += p_sum[r]
                    most = max(most, top[r])
                mean[head, down, across] += share
                largest[head, down, across] = max(largest[head, down, across], most)
                down, start, stop = down + 1, stop, stop + cell
        for r in range(rows):
            own = row_key + r - first
            if 0 <= own < keys:
                near[head, 0, row + r] = P[head, own, r] * by[r]
            if 0 < own <= keys:
                near[head, 1, row + r] = P[head, own - 1, r] * by[r]
            if first == 0:
                near[head, 2, row + r] = P[head, 0, r] * by[r]


@njit(nogil=True, cache=True, error_model="numpy")
def finish(sums, shift, total, row, lse, entropy, distance, marked):
    """Write the results of rows, each (h, m), from `row` on: entropy in bits, lse natural.

    Return whether all are finite, except in rows that may read nothing.
    """
    finite = True
    for head in range(total.shape[0]):
        for r in range(total.shape[1]):
            at, whole = row + r, total[head, r]
            finite &= np.isfinite(sums[1, head, r])  # 0 · NaN is NaN
            if whole == 0:
                lse[head, at] = -np.inf
                continue
            log = np.log2(whole)
            lse[head, at] = (log + shift[head, r]) * _LN_2
            entropy[head, at] = (log * sums[0, head, r] - sums[1, head, r]) / whole
            distance[head, at] = sums[2, head, r] / whole
            marked[head, at] = sums[3, head, r] / whole
            finite &= np.isfinite(lse[head, at]) & np.isfinite(entropy[head, at])
    return finite


@njit(fastmath=_LANES, nogil=True, cache=True)
def find_largest(S, first, chunk, best):
    """Write the largest scores of each row into `best` (h, k, rows), each packed with its key.

    They are in the k chunks of keys with the largest maxima: each is the maximum of its chunk, or
    comes after a larger one in it.
    """
    h, keys, rows = S.shape
    k = best.shape[1]
    chunks, x = np.empty((k, rows), np.int64), np.empty(rows, np.int64)
    top = np.empty(rows, np.float32)
    best[:] = NO_KEY
    for head in range(h):
        chunks[:] = NO_KEY
        for c in range(-(-keys // chunk)):
            top[:] = _NEVER
            for key in range(c * chunk, min(keys, (c + 1) * chunk)):
                s = S[head, key]
                for r in range(rows):
                    top[r] = max(top[r], s[r])
            for r in range(rows):
                x[r] = _packed(top[r], c)
            _sort_in(x, chunks)
        for i in range(min(k, -(-keys // chunk))):
            for step in range(chunk):
                for r in range(rows):
                    key = _index(chunks[i, r]) * chunk + step
                    x[r] = _packed(S[head, key, r], first + key) if key < keys else NO_KEY
                _sort_in(x, best[head])


@njit(nogil=True, cache=True, error_model="numpy")
def unpack(best, shift, total, row, keys, weights):
    """Write the keys (h, m, k) that `find_largest` found, and their weights, from `row` on."""
    h, k, rows = best.shape
    for head in range(h):
        for r in range(rows):
            for i in range(k):
                bits = i32(best[head, i, r] >> 32)
                score = i32(bits ^ i32(0x7FFFFFFF) if bits < 0 else bits).view(f32)
                if score > _HIDDEN:
                    keys[head, row + r, i] = _index(best[head, i, r])
                    weights[head, row + r, i] = _exp2(score - shift[head, r]) / total[head, r]


@njit(fastmath={"contract"}, cache=True)
def _exp2(x):
    """Return 2^x: the fraction by a polynomial, the integer part by the exponent bits."""
    x = min(x, f32(128))  # 2^128 is ∞; more would overflow the exponent bits
    rounded = x + _ROUND
    f = x - (rounded - _ROUND)
    power = _C0 + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    bits = f32(power).view(i32) + i32(f32(rounded).view(i32) << i32(23))
    return i32(bits).view(f32) if x > f32(-126) else f32(0)


@njit(cache=True)
def _sort_in(x, best):
    """Insert one value of each row among the largest, in order; `x` gets the smallest."""
    k, rows = best.shape
    larger = False
    for r in range(rows):
        larger |= x[r] > best[k - 1, r]
    if not larger:
        return
    for i in range(k):
        ith = best[i]
        for r in range(rows):
            new, old = x[r], ith[r]
            ith[r], x[r] = max(new, old), min(new, old)


@njit(cache=True)
def _packed(x, index):
    """Return a number that orders by x, then by the lower index first."""
    bits = f32(x).view(i32)
    bits = bits ^ i32(0x7FFFFFFF) if bits < 0 else bits
    return (i64(bits) << 32) | (_LOW - index)


@njit(cache=True)
def _index(packed):
    return _LOW - (packed & _LOW)
