"""The noise inside the objective, and the cover over its minimiser: the deployed samplers, fed with known words."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from upcycled.core.randomness import Purpose
from upcycled.privacy.noise.gamma import exponentials_from, gamma_norm_noise, normals_from, tilt_error
from upcycled.privacy.noise.sources import SeededNoise, SystemNoise

UNIT = mpmath.mpf(2) ** -53


def known_words(seed):
    """Words that are the same in every run of the tests: a p-value is then small never, or always."""
    generator = np.random.default_rng(seed)
    return lambda count: generator.integers(0, 2**64, count, dtype=np.uint64)


def scripted(*answers):
    """Words that are given one call after the other."""
    left = iter(answers)

    def words(count):
        found = np.array(next(left), dtype=np.uint64)
        assert found.size == count
        return found

    return words


# The discrete Laplace distribution of the cover.


def cells(scale, edges):
    """P(Z < e_1), P(e_1 <= Z < e_2), ..., P(e_m <= Z), exactly: q^|k| (1 - q)/(1 + q), q = exp(-1/scale)."""
    q = mpmath.exp(-mpmath.mpf(1) / scale)
    below = [q ** (1 - e) / (1 + q) if e <= 0 else 1 - q**e / (1 + q) for e in map(int, edges)]
    return np.array([float(high - low) for low, high in zip([0, *below], [*below, 1], strict=True)])


def chi_square(drawn, scale, edges):
    counts = np.bincount(np.searchsorted(edges, drawn.ravel(), side="right"), minlength=len(edges) + 1)
    return stats.chisquare(counts, cells(scale, edges) * drawn.size).pvalue


def test_the_cells_that_the_samplers_are_held_to_are_the_sums_of_their_probabilities():
    q = math.exp(-1 / 3)
    sums = [
        sum(q ** abs(k) * (1 - q) / (1 + q) for k in part) for part in (range(-200, -1), range(-1, 4), range(4, 200))
    ]
    assert cells(3, [-1, 4]) == pytest.approx(sums, rel=1e-12)


@pytest.mark.parametrize("scale", [3, 6 * 2**27])  # test_samplers.py has those between
def test_the_cover_is_a_discrete_laplace_of_the_stated_scale_and_of_no_other(scale):
    drawn = SystemNoise(known_words(scale)).laplace_steps(np.arange(4), 50_000, np.full(4, float(scale)), Purpose.COVER)
    assert np.array_equal(drawn, np.rint(drawn))
    # Every integer near zero has a cell of its own at a small scale; at a large one cells are tenths of it.
    edges = np.arange(-6, 7) if scale <= 3 else np.rint(np.linspace(-6, 6, 121) * scale).astype(np.int64)
    assert chi_square(drawn, scale, edges) > 1e-4
    for wrong in (mpmath.mpf(2) / 3, mpmath.mpf(3) / 2):
        assert chi_square(drawn, wrong * scale, edges) < 1e-9
    # The last bit is as it should be too: over odd k, q^|k| (1 - q)/(1 + q) adds up to 2 q/(1 + q)^2.
    q = math.exp(-1 / scale)
    odd = stats.binomtest(int((drawn % 2).sum()), drawn.size, 2 * q / (1 + q) ** 2)
    assert odd.pvalue > 1e-4


@pytest.mark.parametrize(("shift", "scale"), [(1, 7), (40, 7), (1000, 2**20 + 1)])
def test_a_shifted_cover_has_a_privacy_loss_of_shift_over_scale_and_not_a_hair_more(shift, scale):
    mpmath.mp.dps = 40
    q = mpmath.exp(-mpmath.mpf(1) / scale)
    chance = lambda k: q ** abs(k) * (1 - q) / (1 + q)  # noqa: E731
    points = [-(10**9), -shift, -1, 0, 1, shift // 2, shift, shift + 1, 10**9]
    losses = [abs(mpmath.log(chance(k) / chance(k - shift))) for k in points]
    assert max(losses) == pytest.approx(shift / scale, rel=1e-30)


# Exponentials and normals of full relative precision.


def test_real_exponentials_and_normals_are_standard_and_independent():
    drawn = exponentials_from(known_words(3), 40_000)
    assert stats.kstest(drawn, "expon").pvalue > 1e-4
    normals = normals_from(known_words(4), 40_001)
    assert normals.shape == (40_001,)
    assert stats.kstest(normals, "norm").pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(drawn / wrong, "expon").pvalue < 1e-9
        assert stats.kstest(normals / wrong, "norm").pvalue < 1e-9
    one, two = normals[:-1:2], normals[1::2]
    # All eight octants are as likely, and squares of a pair do not know of each other.
    octants = np.bincount(4 * (one < 0) + 2 * (two < 0) + (abs(one) < abs(two)), minlength=8)
    assert stats.chisquare(octants).pvalue > 1e-4
    assert abs(np.corrcoef(one**2, two**2)[0, 1]) < 0.03
    assert stats.kstest(one**2 / (one**2 + two**2), "beta", args=(0.5, 0.5)).pvalue > 1e-4


def test_uniforms_near_zero_keep_all_their_bits_where_52_bits_would_end():
    # Word of 2^63: 63 zeros and a one, so U is in [2^-64, 2^-63); digits are zero, so U = 2^-64. The last bit of the
    # digits chooses: -log(U/2) = 65 ln 2, or -log1p(-U/2) = 2^-65.
    far = exponentials_from(scripted([2**63], [1]), 1)[0]
    near = exponentials_from(scripted([2**63], [0]), 1)[0]
    assert far == pytest.approx(65 * math.log(2), rel=1e-15)
    assert near == 2.0**-65
    # A word of zeros is followed by another: 64 + 1 zeros, then the one.
    assert exponentials_from(scripted([0], [2], [0]), 1)[0] == 2.0**-67
    # Fifteen of them are all that is looked at: the last counts as having its one at the end.
    assert exponentials_from(scripted(*[[0]] * 15, [1]), 1)[0] == pytest.approx(961 * math.log(2), rel=1e-15)
    # Noise made of 52-bit uniforms never comes there: the gaps that a neighbour could fall into.
    assert -math.log(0.5 * 2.0**-52) < 37 < far


class Recording:
    """Words from a generator, kept, so that exact arithmetic can be given the same."""

    def __init__(self, seed):
        self.source, self.kept = known_words(seed), []

    def __call__(self, count):
        self.kept.append(self.source(count))
        return self.kept[-1]


def exact_uniforms(kept, rng):
    """The uniforms that the kept words are the beginning of, with further bits, and the spare bits of their digits."""
    leads = [int(word) for word in kept.pop(0)]
    assert all(leads)  # a word of zeros has probability 2^-64
    digits = [int(word) for word in kept.pop(0)]
    exponents = [(lead & -lead).bit_length() for lead in leads]
    more = rng.random(len(leads))
    return [
        (1 + ((d >> 12) + mpmath.mpf(v)) / 2**52) / mpmath.mpf(2) ** e
        for e, d, v in zip(exponents, digits, more.tolist(), strict=True)
    ], digits


def exact_exponentials(kept, rng):
    found, spare = exact_uniforms(kept, rng)
    return [-mpmath.log(u / 2 if bit & 1 else 1 - u / 2) for u, bit in zip(found, spare, strict=True)]


@pytest.mark.parametrize("size", [2, 7, 700])
def test_a_real_tilt_lies_as_close_as_stated_to_the_one_that_exact_arithmetic_gives_from_the_same_words(size):
    mpmath.mp.dps = 50
    clients, rate, recording = np.arange(6), np.array([0.1, 1.0, 3.0, 8.0, 20.0, 1e4]), Recording(size)
    drawn = gamma_norm_noise(SystemNoise(recording), clients, size, rate, Purpose.OBJECTIVE)
    kept, rng = recording.kept, np.random.default_rng(0)
    exponentials = exact_exponentials(kept, rng)
    squares = exact_exponentials(kept, rng)
    parts, bits = exact_uniforms(kept, rng)
    normals = []
    for e, part, bit in zip(squares, parts, bits, strict=True):
        pair = [mpmath.sqrt(2 * e) * f(mpmath.pi / 4 * part) for f in (mpmath.cos, mpmath.sin)]
        pair = pair[::-1] if bit & 1 else pair
        normals += [-pair[0] if bit & 2 else pair[0], -pair[1] if bit & 4 else pair[1]]
    for i in clients:
        mine = slice(i * size, (i + 1) * size)
        norm, direction = mpmath.fsum(exponentials[mine]) / mpmath.mpf(rate[i]), normals[mine]
        length = mpmath.norm(direction)
        off = mpmath.norm(
            [norm * d / length - mpmath.mpf(x) for d, x in zip(direction, drawn[i].tolist(), strict=True)]
        )
        assert off <= tilt_error(size) * norm
        assert off >= UNIT * norm / 100  # the same words, in float64


@pytest.mark.parametrize("source", [SeededNoise(4, 1), SystemNoise(known_words(5))], ids=["seeded", "system"])
@pytest.mark.parametrize("size", [2, 7])
def test_gamma_norm_noise_has_a_gamma_norm_and_a_uniform_direction(source, size):
    count, rate = 6000, 3.0
    drawn = gamma_norm_noise(source, np.arange(count), size, np.full(count, rate), Purpose.OBJECTIVE)
    norms = np.linalg.norm(drawn, axis=1)
    assert stats.kstest(norms * rate, "gamma", args=(size,)).pvalue > 1e-4
    for wrong in (2 / 3 * rate, 3 / 2 * rate):
        assert stats.kstest(norms * wrong, "gamma", args=(size,)).pvalue < 1e-9
    for wrong_shape in (size - 1, size + 1):  # all parameters count, none twice
        assert stats.kstest(norms * rate, "gamma", args=(wrong_shape,)).pvalue < 1e-9
    # A coordinate c of a uniform direction in m dimensions: (1 + c)/2 is Beta((m-1)/2, (m-1)/2); so is every other.
    for i in range(size):
        beta = ((size - 1) / 2, (size - 1) / 2)
        assert stats.kstest((1 + drawn[:, i] / norms) / 2, "beta", args=beta).pvalue > 1e-4
    moments = np.einsum("ci,cj->ij", drawn / norms[:, None], drawn / norms[:, None]) / count
    assert np.abs(moments - np.eye(size) / size).max() < 5 / math.sqrt(2 * size * count)
    assert abs(np.corrcoef(norms, drawn[:, 0] / norms)[0, 1]) < 0.05


def test_tilts_beyond_a_length_are_shortened_to_it_and_keep_their_direction():
    given = SeededNoise(4, 1), np.arange(50), 7, np.ones(50), Purpose.OBJECTIVE
    free, short = gamma_norm_noise(*given), gamma_norm_noise(*given, longest=7.0)
    norms = np.linalg.norm(free, axis=1)
    assert 5 < (norms > 7).sum() < 45
    assert np.array_equal(free[norms <= 7], short[norms <= 7])
    assert np.allclose(short, free * np.minimum(1, 7 / norms)[:, None], rtol=1e-13)
