"""Searches for the scale (and minimum) that round a group of values with the least error.

These are ggml's searches, step by step in float32: the same candidates in the same order, sums
taken one term after the other, so that the blocks found are ggml's byte for byte. Groups are
columns: every array is `[items, groups]`, and a step works on all groups at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minfer.gguf.quants.bits import Floats

F = np.float32
TINY = F(1e-15)
"""Below this a group counts as all zero."""

_ROUNDER = F(12_582_912.0)  # 1.5 * 2**23: adding it leaves the rounded value in the low bits


def nearest(values: Floats) -> Floats:
    """Round half to even as ggml does, by way of the float's bits.

    Equal to `rint` below 2**22 in size. Beyond, and for infinities and NaN, it is what the bits
    give: searches meet those when a group's fit degenerates, and the result must be ggml's.
    """
    bits = (values + _ROUNDER).view(np.int32)
    return ((bits & 0x007F_FFFF) - 0x0040_0000).astype(F)


def total(terms: Floats) -> Floats:
    """The sum over items, strictly in order; NumPy's own would pair terms."""
    result = np.zeros(terms.shape[1], F)
    for row in terms:
        result += row
    return result


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """The quotient where the denominator is positive, else 0."""
    return np.where(denominator > 0, numerator / denominator, F(0))


def inverse(d: Floats) -> Floats:
    """The inverse of scales, 0 where there is none in single precision."""
    found: Floats = np.reciprocal(d)
    np.copyto(found, F(0), where=~np.isfinite(found))
    return found


def extreme(x: Floats) -> Floats:
    """The first value of largest size in each group, with its sign; +0 for a group of zeros."""
    index = np.abs(x).argmax(axis=0)
    return np.asarray(np.take_along_axis(x, index[None], axis=0)[0] + F(0), F)


def least(x: Floats) -> Floats:
    """The first of the smallest values in each group, which decides the sign of a zero."""
    result = np.array(x[0])
    for row in x[1:]:
        np.copyto(result, row, where=row < result)
    return result


def symmetric(x: Floats, nmax: int, weights: Floats | None = None) -> tuple[Floats, Floats]:
    """Fit `scale * q` with q in [-nmax, nmax).

    The scale that sends the extreme to -nmax is tried first, then 18 near it; each is judged
    after refitting it to the q it gives, by weighted squares.

    Args:
        x: values, [items, groups].
        nmax: half the number of levels.
        weights: of the squares, [items, groups]; by default the values' own squares.

    Returns:
        The scale of each group, [groups], and q + nmax, [items, groups].
    """
    peak = extreme(x)
    empty = np.abs(peak) < TINY
    w = x * x if weights is None else weights
    wx = w * x
    best_iscale = F(-nmax) / peak
    sumlx, suml2, _ = _project(x, w, wx, best_iscale, nmax)
    scale = _ratio(sumlx, suml2)
    best = scale * sumlx
    for step in range(-9, 10):
        if step == 0:
            continue
        iscale = -(F(nmax) + F(0.1) * F(step)) / peak
        sumlx, suml2, _ = _project(x, w, wx, iscale, nmax)
        better = (suml2 > 0) & (sumlx * sumlx > best * suml2)
        scale = np.where(better, sumlx / suml2, scale)
        best = np.where(better, scale * sumlx, best)
        best_iscale = np.where(better, iscale, best_iscale)
    q = np.clip(nearest(best_iscale * x), -nmax, nmax - 1) + F(nmax)
    q[:, empty] = 0
    scale[empty] = 0
    return scale, q


def _project(
    x: Floats, w: Floats, wx: Floats, iscale: Floats, nmax: int
) -> tuple[Floats, Floats, Floats]:
    """The sums of w*x*q and w*q*q for the q that `iscale` gives, and q."""
    q = np.clip(nearest(iscale * x), -nmax, nmax - 1)
    return total(wx * q), total(w * q * q), q


def symmetric_descent(x: Floats, nmax: int) -> tuple[Floats, Floats]:
    """Fit `scale * q` with q in [-nmax, nmax) by moving one q at a time, up to five rounds.

    Returns:
        The scale of each group, [groups], and q + nmax, [items, groups].
    """
    peak = extreme(x)
    empty = np.abs(peak) < TINY
    w = x * x
    wx = w * x
    sumlx, suml2, q = _project(x, w, wx, F(-nmax) / peak, nmax)
    for _ in range(5):
        changed = False
        for i in range(len(x)):
            slx = sumlx - wx[i] * q[i]
            sl2 = suml2 - w[i] * q[i] * q[i]
            moved = np.clip(nearest(x[i] * sl2 / slx), -nmax, nmax - 1)
            candidate = (slx > 0) & (moved != q[i])
            slx += wx[i] * moved
            sl2 += w[i] * moved * moved
            better = candidate & (sl2 > 0) & (slx * slx * suml2 > sumlx * sumlx * sl2)
            q[i] = np.where(better, moved, q[i])
            sumlx = np.where(better, slx, sumlx)
            suml2 = np.where(better, sl2, suml2)
            changed |= bool(better.any())
        if not changed:
            break
    q += F(nmax)
    scale = _ratio(sumlx, suml2)
    q[:, empty] = 0
    scale[empty] = 0
    return scale, q


@dataclass(frozen=True, slots=True)
class Candidates:
    """The inverse scales that `affine` tries: `(nmax + first + i * step) / range`, i <= last.

    Attributes:
        first: what the first candidate adds to nmax.
        step: what each further one adds to that.
        last: index of the last one.
        absolute: whether errors count by their size instead of their square.
        guarded: whether a candidate that overflows saturates, instead of giving what its bits say.
    """

    first: float
    step: float
    last: int
    absolute: bool = False
    guarded: bool = False


BY_IMPORTANCE = Candidates(-0.9, 0.05, 36, guarded=True)
"""What every type tries when there is an importance matrix."""


def affine(
    x: Floats, weights: Floats, nmax: int, candidates: Candidates
) -> tuple[Floats, Floats, Floats]:
    """Fit `scale * q - minimum` with q in [0, nmax] and a minimum of at least 0.

    Each candidate inverse scale gives q; scale and minimum are then solved from them by weighted
    least squares, and kept if the error is the least so far.

    Args:
        x: values, [items, groups].
        weights: of the errors, [items, groups].
        nmax: largest q.
        candidates: what to try.

    Returns:
        scale and minimum of each group, [groups], and q, [items, groups].
    """
    largest = -least(-x)
    smallest = least(x)
    low = np.where(smallest > 0, F(0), smallest)
    flat = largest <= low
    sum_w = total(weights)
    sum_x = total(weights * x)
    iscale = F(nmax) / (largest - low)
    scale = F(1) / iscale
    q = np.clip(nearest(iscale * (x - low)), 0, nmax)
    best = _error(x, weights, q, scale, low, candidates.absolute)
    for index in range(candidates.last + 1):
        added = F(candidates.first) + F(candidates.step) * F(index)
        steps = (added + F(nmax)) / (largest - low) * (x - low)
        if candidates.guarded:
            steps = np.where(steps > 0, np.minimum(steps, nmax), F(0))
        trial = np.clip(nearest(steps), 0, nmax)
        wl = weights * trial
        sum_l, sum_l2, sum_xl = total(wl), total(wl * trial), total(wl * x)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = np.asarray((sum_w * sum_xl - sum_x * sum_l) / determinant, F)
        new_low = np.asarray((sum_l2 * sum_x - sum_l * sum_xl) / determinant, F)
        above = new_low > 0
        np.copyto(new_scale, sum_xl / sum_l2, where=above)
        np.copyto(new_low, F(0), where=above)
        error = _error(x, weights, trial, new_scale, new_low, candidates.absolute)
        better = (determinant > 0) & (error < best) & ~flat
        np.copyto(q, trial, where=better)
        best = np.where(better, error, best)
        scale = np.where(better, new_scale, scale)
        low = np.where(better, new_low, low)
    q[:, flat] = 0
    scale[flat] = 0
    return scale, -low, q


def _error(
    x: Floats, weights: Floats, q: Floats, scale: Floats, low: Floats, absolute: bool
) -> Floats:
    difference = scale * q + low - x
    return total(weights * (np.abs(difference) if absolute else difference * difference))


def positive(x: Floats, nmax: int, weights: Floats) -> tuple[Floats, Floats]:
    """Fit `scale * q` with q in [0, nmax] to values of at least 0.

    Nine scales near `max / nmax` are compared, then q are moved one at a time, up to five
    rounds. A degenerate fit may hand in a negative value: its q wraps around a byte, as in ggml.

    Returns:
        The scale of each group, [groups], and q, [items, groups].
    """
    largest = np.maximum(x.max(axis=0), F(0))
    empty = largest < TINY
    best_iscale = F(nmax) / largest
    best = _squares(x, weights, _wrapped(nearest(best_iscale * x)), F(1) / best_iscale)
    for step in range(-4, 5):
        if step == 0:
            continue
        iscale = (F(0.1) * F(step) + F(nmax)) / largest
        error = _squares(x, weights, np.minimum(nearest(iscale * x), nmax), F(1) / iscale)
        better = error < best
        best = np.where(better, error, best)
        best_iscale = np.where(better, iscale, best_iscale)
    q = np.minimum(nearest(best_iscale * x), nmax)
    wx = weights * x
    sumlx, suml2 = total(wx * q), total(weights * q * q)
    q = _wrapped(q)
    for _ in range(5):
        changed = False
        for i in range(len(x)):
            slx = sumlx - wx[i] * q[i]
            sl2 = suml2 - weights[i] * q[i] * q[i]
            moved = np.minimum(nearest(x[i] * sl2 / slx), nmax)
            candidate = (slx > 0) & (sl2 > 0) & (moved != q[i])
            slx += wx[i] * moved
            sl2 += weights[i] * moved * moved
            better = candidate & (slx * slx * suml2 > sumlx * sumlx * sl2)
            q[i] = np.where(better, _wrapped(moved), q[i])
            sumlx = np.where(better, slx, sumlx)
            suml2 = np.where(better, sl2, suml2)
            changed |= bool(better.any())
        if not changed:
            break
    scale = _ratio(sumlx, suml2)
    q[:, empty] = 0
    scale[empty] = 0
    return scale, q


def _wrapped(q: Floats) -> Floats:
    """What a byte keeps of a whole number."""
    return np.asarray(q % F(256), F)


def _squares(x: Floats, weights: Floats, q: Floats, scale: Floats) -> Floats:
    difference = x - scale * q
    return total(weights * difference * difference)


def levels(x: Floats, table: Floats, tries: int, weights: Floats) -> Floats:
    """Fit `scale * table[q]`, the extreme of each group near the table's first level.

    Returns:
        The scale of each group, [groups]; the q are `nearest_level(x / scale, table)`.
    """
    peak = extreme(x)
    empty = np.abs(peak) < TINY
    scale = best = np.zeros(x.shape[1], F)
    for index, step in enumerate([0, *range(-tries, tries + 1)]):
        # ggml inverts the first candidate's scale, and computes the others' inverses directly.
        iscale = F(1) / (-peak / table[0]) if index == 0 else (F(step) + table[0]) / peak
        value = table[nearest_level(iscale * x, table)]
        weighted = weights * value
        sumqx, sumq2 = total(weighted * x), total(weighted * value)
        fitted = _ratio(sumqx, sumq2)
        better = (sumq2 > 0) & (sumqx * sumqx > best * sumq2) if index else np.True_
        scale = np.where(better, fitted, scale)
        best = np.where(better, fitted * sumqx, best)
    scale[empty] = 0
    return scale


def nearest_level(values: Floats, table: Floats) -> npt.NDArray[np.uint8]:
    """The index of the nearest of ascending whole levels; the upper one of two equally near.

    Twice the middle of two levels is whole, so twice the value rounded down decides.
    """
    doubled = np.arange(-256, 256)
    index = np.searchsorted(table[1:] + table[:-1], doubled, side="right").astype(np.uint8)
    position = np.floor(values + values).clip(-256, 255) + F(256)
    # Groups of zeros give NaN here; any level does for them.
    return np.asarray(index.take(position.astype(np.int32), mode="clip"), np.uint8)
