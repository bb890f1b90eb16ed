"""The slopes of a tile's cross-entropy: right to a few units in the last place, and the same bits as in plain NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from upcycled.engines.fused.network import softmax_slopes
from upcycled.engines.fused.workspace import TILE

NONE = -1.0


def slopes(scores, labels, at=0):
    found = np.array(scores, dtype=np.float64)
    softmax_slopes(found, np.asarray(labels, dtype=np.float64), at, found.shape[0])
    return found


def exponential(x):
    """One number after the other, nothing fused: the series of e^r up to r^13 / 13!, by Horner's rule."""
    x = np.where(x < -706.0, -706.0, x)
    k = (x * math.log2(math.e) + 1.5 * 2.0**52) - 1.5 * 2.0**52
    r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    p = np.full_like(x, 1 / math.factorial(13))
    for n in range(12, 1, -1):
        p = p * r + 1 / math.factorial(n)
    return np.ldexp(1.0 + (r + r * r * p), k.astype(np.int64))


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
def test_slopes_have_the_bits_of_the_same_sums_in_numpy(classes):
    rng = np.random.default_rng(classes)
    for scale in (1e-3, 1.0, 30.0, 1e3):
        scores, labels = scale * rng.standard_normal((classes, TILE)), rng.integers(0, classes, TILE)
        found = exponential(scores - scores.max(axis=0))
        total = np.zeros(TILE)
        for each in found:
            total = total + each
        expected = found / total
        expected[labels, np.arange(TILE)] -= 1.0
        assert np.array_equal(slopes(scores, labels), expected)


def test_shares_are_right_to_three_units_in_the_last_place_and_never_zero():
    x = np.concatenate([-np.logspace(-12, np.log10(700), 40 * TILE - 3), [0.0, -1e4, -1e300]])
    for part in x.reshape(-1, TILE):
        # A label that is no class leaves the shares themselves.
        top, share = slopes([np.zeros(TILE), part], np.full(TILE, 7.0))
        wide = np.exp(np.maximum(part, -706.0).astype(np.longdouble))
        exact = wide / (1 + wide)
        assert np.abs((share - exact) / exact).max() <= 3 * np.finfo(np.float64).eps
        assert (share > 0).all()
        assert np.abs(top + share - 1).max() <= 2 * np.finfo(np.float64).eps


def test_where_there_is_no_sample_slopes_are_zero_whatever_the_logits():
    scores = np.random.default_rng(0).standard_normal((3, TILE))
    scores[:, 5:] = np.nan
    labels = np.full(TILE, NONE)
    labels[:5] = [0, 2, 1, 1, 0]
    found = slopes(scores, labels)
    assert (found[:, 5:] == 0).all()
    assert np.allclose(found[:, :5].sum(axis=0), 0, atol=1e-15)
    assert (found[[0, 2, 1, 1, 0], range(5)] < 0).all()


def test_what_is_no_number_stays_none_in_its_own_sample():
    scores = np.random.default_rng(0).standard_normal((3, TILE))
    plain = slopes(scores, np.zeros(TILE))
    for k, wrong in ((0, np.nan), (2, np.nan), (1, np.inf)):
        broken = scores.copy()
        broken[k, 9] = wrong
        found = slopes(broken, np.zeros(TILE))
        assert np.isnan(found[:, 9]).all()
        assert np.array_equal(np.delete(found, 9, axis=1), np.delete(plain, 9, axis=1))


def test_labels_are_read_from_their_place():
    scores = np.random.default_rng(0).standard_normal((2, TILE))
    labels = np.concatenate([np.zeros(TILE), np.ones(TILE)])
    assert np.array_equal(slopes(scores, labels, at=TILE), slopes(scores, np.ones(TILE)))
