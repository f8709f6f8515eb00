"""The loops, which numba compiles.

A tile lies on its side, (h, keys, rows), so that inner loops run over rows that lie beside each
other, and fill the lanes of the processor. Scores are in units of log₂. `first` is the key of
tile[:, 0], and row r stands at key `here` + r. Sums are made cell by cell, so that they round
little.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

f32, i32, i64 = np.float32, np.int32, np.int64
# Written out as they are in `scoring` and `strips`: numba compiles anew where this file changes.
_NEVER, _HIDDEN = f32(-1e30), f32(-5e29)  # what stands for -∞, and what is less than any score
_SAFE = f32(2.0**64)  # a row of a sum up to this, or down to 1 by this, loses nothing
_LN_2 = f32(np.log(2))
NO_KEY = i64(-(2**63))  # less than any score with its key
_LOW = i64(0x7FFFFFFF)  # what a place is packed into
_ROUND = f32(1.5 * 2**23)  # what is added to this is rounded, and stands in the lowest bits
# 2^f = Σ c f^i for |f| ≤ 1/2 within 3e-9: through Chebyshev's points.
_C0, _C1, _C2, _C3 = f32(1.0), f32(0.6931472), f32(0.2402265), f32(0.05550327)
_C4, _C5, _C6 = f32(0.009618025), f32(0.0013400433), f32(0.00015469732)
# Sums in any order; but what is no number stays none, so that it is seen.
_LANES = {"contract", "reassoc", "nsz"}


@njit(nogil=True, cache=True)
def hide(S, first, here, before, after, read):
    """Write NEVER where no key may be read.

    The row at key i may read those from i - `before` to i + `after` of which `read` is True; all of
    these where that is empty.
    """
    h, keys, rows = S.shape
    for key in range(keys):
        j = first + key
        low = min(rows, max(0, j - after - here))
        high = max(low, min(rows, j + before + 1 - here))
        if len(read) and not read[j]:
            high = low
        for head in range(h):
            S[head, key, :low] = _NEVER
            S[head, key, high:] = _NEVER


@njit(fastmath=_LANES, nogil=True, cache=True)
def weigh(S, first, here, shift, cell, marks, given, highest, sums):
    """Turn scores into P̃ = 2^(S - shift) in place, and reduce both.

    shift : (h, rows). given, highest : (h, cells, rows), of each cell of keys the sum of P̃ and the
    largest S - shift, filled in. sums : (4, h, rows), to which is added: Σ P̃, Σ P̃ (S - shift),
    Σ P̃ distance, and Σ P̃ of the marked keys.
    """
    h, keys, rows = S.shape
    row = np.arange(rows).astype(np.float32)
    of_cell = np.empty((5, rows), np.float32)  # one room, so that it is clear what overlaps
    p_sum, bits, away, top, less = of_cell[0], of_cell[1], of_cell[2], of_cell[3], of_cell[4]
    for head in range(h):
        less[:] = shift[head]
        start = 0
        for c in range(given.shape[1]):
            stop = min(keys, ((first + start) // cell + 1) * cell - first)
            of_cell[:3] = f32(0)
            top[:] = _NEVER
            for key in range(start, stop):
                s, behind = S[head, key], f32(here - first - key)
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
                given[head, c, r] = p_sum[r]
                highest[head, c, r] = top[r]
                sums[0, head, r] += p_sum[r]
                sums[1, head, r] += bits[r]
                sums[2, head, r] += away[r]
            start = stop


@njit(nogil=True, cache=True)
def divide(sums, sinks, shift, empty, total):
    """Fill in by what P̃ is to be divided, (h, rows): its sum, and that of the sink.

    empty : (rows,), which may read nothing. Return whether none of the others is so large or so
    small that P̃ may be inexact, or no number.
    """
    safe = True
    for head in range(total.shape[0]):
        for r in range(total.shape[1]):
            of_row = sums[0, head, r] + _exp2(sinks[head, r] - shift[head, r])
            safe &= (f32(1) / _SAFE < of_row < _SAFE) | (empty[r] & (of_row == 0))
            total[head, r] = of_row
    return safe


@njit(fastmath=_LANES, nogil=True, cache=True)
def pool(P, first, here, row, total, cell, given, highest, received, mean, largest, near):
    """Add a tile of P̃ / total to what is kept of the map.

    row : the query of P̃[:, :, 0]. total : (h, rows). given, highest : of `weigh`.
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
        for c in range(given.shape[1]):
            p_sum, top, across = given[head, c], highest[head, c], first // cell + c
            start = 0
            while start < rows:
                down = (row + start) // cell
                stop = min(rows, (down + 1) * cell - row)
                share, most = f32(0), _NEVER
                for r in range(start, stop):
                    share += p_sum[r] * by[r]
                    most = max(most, top[r] + log[r])
                mean[head, down, across] += share
                largest[head, down, across] = max(largest[head, down, across], most)
                start = stop
        for r in range(rows):
            own = here + r - first
            if 0 <= own < keys:
                near[head, 0, row + r] = P[head, own, r] * by[r]
            if 0 < own <= keys:
                near[head, 1, row + r] = P[head, own - 1, r] * by[r]
            if first == 0:
                near[head, 2, row + r] = P[head, 0, r] * by[r]


@njit(nogil=True, cache=True, error_model="numpy")
def finish(sums, shift, total, row, lse, entropy, distance, marked):
    """Write what is kept of rows, each (h, m), from `row` on: entropy in bits, lse natural.

    Return whether all of it is finite, but for rows that may read nothing.
    """
    finite = True
    for head in range(total.shape[0]):
        for r in range(total.shape[1]):
            at, whole = row + r, total[head, r]
            finite &= np.isfinite(sums[1, head, r])  # 0 · what is no number is none
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


@njit(nogil=True, cache=True)
def hand_on(A, total, row, first_head, attended):
    """Write attention vectors A (h, d_v, rows) / total into `attended` (m, H, d_v)."""
    h, d_v, rows = A.shape
    for head in range(h):
        for r in range(rows):
            by = f32(1) / total[head, r] if total[head, r] > 0 else f32(0)
            for d in range(d_v):
                attended[row + r, first_head + head, d] = A[head, d, r] * by


@njit(fastmath=_LANES, nogil=True, cache=True)
def find_largest(S, first, lot, best):
    """Sort into `best` (h, k, rows) the largest scores of each row, each packed with its key.

    Those of a tile lie in the k lots of keys with the largest maxima: each is the maximum of its
    lot, or stands behind a larger one in it. Lots that hold nothing larger than all that is known
    are left out.
    """
    h, keys, rows = S.shape
    k = best.shape[1]
    lots = np.empty((k, rows), np.int64)
    known, x = np.empty(rows, np.int64), np.empty(rows, np.int64)
    top = np.empty(rows, np.float32)
    for head in range(h):
        for r in range(rows):
            known[r] = best[head, k - 1, r] | _LOW  # of the same, what was found first stays
        lots[:] = known
        for c in range(-(-keys // lot)):
            top[:] = _NEVER
            for key in range(c * lot, min(keys, (c + 1) * lot)):
                s = S[head, key]
                for r in range(rows):
                    top[r] = max(top[r], s[r])
            for r in range(rows):
                x[r] = _packed(top[r], c)
            _sort_in(x, lots)
        for i in range(k):
            if (lots[i] == known).all():
                break
            for step in range(lot):
                for r in range(rows):
                    key = _place(lots[i, r]) * lot + step
                    there = (lots[i, r] != known[r]) & (key < keys)
                    x[r] = _packed(S[head, key, r], first + key) if there else NO_KEY
                _sort_in(x, best[head])


@njit(nogil=True, cache=True, error_model="numpy")
def unpack(best, shift, total, row, keys, weights):
    """Write the keys (h, m, k) that `find_largest` found, and their weights, from `row` on."""
    h, k, rows = best.shape
    for head in range(h):
        for r in range(rows):
            for i in range(k):
                score = _score(best[head, i, r])
                if score > _HIDDEN:
                    keys[head, row + r, i] = _place(best[head, i, r])
                    weights[head, row + r, i] = _exp2(score - shift[head, r]) / total[head, r]


@intrinsic
def _float_of(context, bits):
    def cast(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), cast


@intrinsic
def _bits_of(context, number):
    def cast(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), cast


@njit(fastmath={"contract"}, cache=True)
def _exp2(x):
    """Return 2^x: the part after the point by a polynomial, the rest into the exponent."""
    x = min(x, f32(128))  # of which it is ∞; more would run over the exponent
    rounded = x + _ROUND
    f = x - (rounded - _ROUND)
    power = _C0 + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    bits = i32(_bits_of(power) + i32(_bits_of(rounded) << i32(23)))
    return _float_of(bits) if x > f32(-126) else f32(0)


@njit(cache=True)
def _sort_in(x, best):
    """Put one of each row where it belongs among the largest; `x` has what falls out."""
    k, rows = best.shape
    larger = False
    for r in range(rows):
        larger |= x[r] > best[k - 1, r]
    if not larger:
        return
    for i in range(k):
        some = best[i]
        for r in range(rows):
            one, other = x[r], some[r]
            some[r], x[r] = max(one, other), min(one, other)


@njit(cache=True)
def _packed(x, place):
    """Return a number that is larger where x is, or where x is the same and the place less."""
    bits = _bits_of(x)
    bits = bits ^ i32(0x7FFFFFFF) if bits < 0 else bits
    return (i64(bits) << 32) | (_LOW - place)


@njit(cache=True)
def _place(packed):
    return _LOW - (packed & _LOW)


@njit(cache=True)
def _score(packed):
    bits = i32(packed >> 32)
    return _float_of(bits ^ i32(0x7FFFFFFF) if bits < 0 else bits)
