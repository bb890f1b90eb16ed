"""The integers of real noise: every probability against exact arithmetic, through the code that is deployed."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from upcycled.privacy.noise.discrete import (
    COARSE,
    WAY_OUT,
    block_tables,
    discrete_gaussian,
    discrete_laplace,
    levels,
    rates,
)
from upcycled.privacy.noise.kernels import gaussian_row, laplace_row
from upcycled.privacy.noise.sources import SystemNoise

BLOCK = 2**15
SCALES = [2.0**20, 2.0**20 + 0.3, 1.37 * 2**20, 2.0**21 - 2.0**-30]
COLUMN = 2**56


def words(seed):
    """A source of words that are the same in every run of the tests."""
    rng = np.random.default_rng(seed)
    return lambda count: rng.integers(0, 2**64, count, dtype=np.uint64)


def envelope(scale):
    return math.ceil(scale / COARSE) * COARSE


def dealt(tables):
    """Count the words of each outcome in the tables as the kernel reads them."""
    found = []
    for thresholds, outcomes in zip(tables.thresholds.tolist(), tables.outcomes.tolist(), strict=True):
        counts = {}
        for below, (first, second) in zip(thresholds, outcomes, strict=True):
            counts[first] = counts.get(first, 0) + below
            counts[second] = counts.get(second, 0) + COLUMN - below
        found.append({name: count for name, count in counts.items() if count})
    return found


def word_for(tables, table, outcome):
    """Return a word that chooses this outcome in this table, or None."""
    for column, (below, (first, second)) in enumerate(
        zip(tables.thresholds[table].tolist(), tables.outcomes[table].tolist(), strict=True)
    ):
        if first == outcome and below:
            return column * COLUMN + below - 1
        if second == outcome and below < COLUMN:
            return column * COLUMN + below
    return None


def route(tables, block):
    """Return the words that lead to a block."""
    path = []
    for table in range(len(tables.thresholds)):
        word = word_for(tables, table, block)
        if word is not None:
            return [*path, word]
        path.append(word_for(tables, table, WAY_OUT))
    return None


def one_trial(scale, tables, path, last):
    """Return what the kernel makes of one trial's words; None if it rejects."""
    size = len(tables.thresholds) + 1
    given = np.array([*path, last, *([0] * (size - len(path) - 1))], dtype=np.uint64)
    out = np.zeros(1)
    done, _ = gaussian_row(out, 0, given, 0, tables.thresholds, tables.outcomes, *rates(scale, tables.scale))
    return int(out[0]) if done else None


def last_word(sign, offset, uniform):
    return (sign << 63) | (offset << 48) | uniform


def accepted(scale, tables, block, offset):
    """Return how many of the 2^48 uniforms the kernel accepts, by bisection."""
    path, low, high = route(tables, block), 0, 2**48
    while low < high:
        middle = (low + high) // 2
        if one_trial(scale, tables, path, last_word(0, offset, middle)) is None:
            high = middle
        else:
            low = middle + 1
    return low


@pytest.mark.parametrize("scale", [2**20, 2**20 + COARSE, 3 * 2**19, 2**21])
def test_blocks_are_chosen_with_the_exact_probabilities_as_far_as_the_reach(scale):
    found, reached = dealt(block_tables(scale)), mpmath.mpf(1)
    with mpmath.workdps(80):
        number = -(-13 * scale // BLOCK)
        weights = [mpmath.exp(-(mpmath.mpf(j * BLOCK) ** 2) / (2 * mpmath.mpf(scale) ** 2)) for j in range(number)]
        total, seen = mpmath.fsum(weights), []
        for counts in found:
            assert sum(counts.values()) == 2**64
            for block, count in counts.items():
                if block != WAY_OUT:
                    exact = weights[block] / total
                    assert abs(reached * count / mpmath.mpf(2) ** 64 / exact - 1) < mpmath.mpf(2) ** -46.7
                    seen.append(block)
            reached = reached * counts.get(WAY_OUT, 0) / mpmath.mpf(2) ** 64
        assert sorted(seen) == list(range(number))  # each block in one table, none missing
        assert number * BLOCK >= 13 * scale


@pytest.mark.parametrize("scale", [2**20, 2**21 - COARSE])
def test_alias_tables_deal_out_just_the_words_they_were_given(scale):
    given = [dict(zip(outcomes, counts, strict=True)) for counts, outcomes in levels(scale)]
    assert dealt(block_tables(scale)) == given


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sigmas", [0.0, 0.5, 3.0, 6.0, 9.0, 12.9])
def test_every_integer_tried_is_right_to_2_to_the_minus_44(scale, sigmas):
    """The block's words times the accepted uniforms, counted in the kernel itself, against exp(-k^2 / (2 s^2))."""
    tables = block_tables(envelope(scale))
    block = int(sigmas * scale / BLOCK)
    chosen, reached = None, mpmath.mpf(1)
    with mpmath.workdps(80):
        for counts in dealt(tables):
            if block in counts:
                chosen = reached * counts[block]
                break
            reached = reached * counts[WAY_OUT] / mpmath.mpf(2) ** 64
        norm = mpmath.fsum(
            mpmath.exp(-(mpmath.mpf(j * BLOCK) ** 2) / (2 * mpmath.mpf(tables.scale) ** 2))
            for j in range(-(-13 * tables.scale // BLOCK))
        )
        for offset in (0, 1, 12_345, BLOCK - 1):
            made = chosen / mpmath.mpf(2) ** 64 * accepted(scale, tables, block, offset) / mpmath.mpf(2) ** 48
            exact = mpmath.exp(-(mpmath.mpf(block * BLOCK + offset) ** 2) / (2 * mpmath.mpf(scale) ** 2)) / norm
            assert abs(made / exact - 1) < mpmath.mpf(2) ** -45


@pytest.mark.parametrize("scale", SCALES)
def test_every_integer_within_13_scales_is_reached_so_that_no_neighbour_is_impossible(scale):
    """Box-Muller in float64 ends at 8.6 and leaves gaps before; here both signs at both ends of all blocks come out."""
    tables = block_tables(envelope(scale))
    for block in range(math.ceil(13 * scale / BLOCK)):
        path = route(tables, block)
        for offset in (0, BLOCK // 3, BLOCK - 1):
            values = [one_trial(scale, tables, path, last_word(sign, offset, 0)) for sign in (0, 1)]
            k = block * BLOCK + offset
            assert values == ([k, -k] if k else [0, None])  # zero comes with one sign only


def test_the_tail_beyond_five_and_a_half_sigma_has_the_exact_shape():
    """The sampler conditioned on the third table, whose blocks begin there: |k| against exact Gaussian tails."""
    scale, rng = 1.37 * 2**20, np.random.default_rng(5)
    tables = block_tables(envelope(scale))
    ways_out = [word_for(tables, table, WAY_OUT) for table in (0, 1)]
    first = min(block for block in dealt(tables)[2] if block != WAY_OUT) * BLOCK
    assert 5.3 < first / scale < 5.6
    found = []
    for random in rng.integers(0, 2**64, (60_000, len(tables.thresholds)), dtype=np.uint64).tolist():
        value = one_trial(scale, tables, [*ways_out, *random[:-3]], random[-3])
        if value is not None:
            found.append(value)
    found = np.array(found)
    edges = [first, 5.65 * scale, 5.8 * scale, 6 * scale, 6.25 * scale, 6.5 * scale, 7 * scale, 13 * scale]
    tails = [mpmath.erfc((mpmath.ceil(edge) - 0.5) / scale / mpmath.sqrt(2)) for edge in edges]
    shares = np.array([float((a - b) / tails[0]) for a, b in itertools.pairwise(tails)])
    counts = np.histogram(np.abs(found), [math.ceil(edge) for edge in edges])[0]
    assert counts.sum() == found.size
    assert counts[-1] > 0  # beyond 7 sigma
    assert (np.abs(found) > 6 * scale).sum() > 1000
    assert stats.chisquare(counts, shares / shares.sum() * found.size).pvalue > 1e-3
    assert abs((found > 0).mean() - 0.5) < 4 / np.sqrt(4 * found.size)
    wrong = np.array([math.erfc(edge / scale / math.sqrt(2) * 1.02) for edge in edges])  # the std off by a fiftieth
    shares = (wrong[:-1] - wrong[1:]) / (wrong[0] - wrong[-1])
    assert stats.chisquare(counts, shares * found.size).pvalue < 1e-6


@pytest.mark.parametrize("scale", SCALES)
def test_draws_have_the_moments_and_the_cells_of_the_discrete_gaussian(scale):
    count = 400_000
    drawn = discrete_gaussian(np.array([scale]), count, words(3))[0]
    assert np.array_equal(drawn, np.rint(drawn))
    standard = drawn / scale
    # Sheppard's corrections are below 2^-40 here; sds of the first four sample moments of a normal variable.
    for power, exact, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((standard**power).mean() - exact) < 4.5 * math.sqrt(spread / count)
    cells = np.arange(-4, 4.01, 0.125)
    edges = np.concatenate([[-np.inf], np.rint(cells * scale) - 0.5, [np.inf]])
    counts = np.histogram(drawn, edges)[0]

    def pvalue(of):
        return stats.chisquare(counts, np.diff(stats.norm.cdf(edges / of)) * count).pvalue

    assert pvalue(scale) > 1e-3
    for wrong in (2 / 3, 3 / 2, 1.02):
        assert pvalue(wrong * scale) < 1e-6
    # No low digit is favoured, and blocks have no edges.
    for modulus in (2, 64, 4096, BLOCK):
        low = np.bincount((drawn % modulus).astype(np.int64) * min(64, modulus) // modulus)
        assert stats.chisquare(low).pvalue > 1e-3


def test_clients_of_one_call_have_noise_of_their_own_and_their_own_scale():
    scales = np.array([2.0**20, 0.0, 1.9 * 2**20])
    drawn = discrete_gaussian(scales, 100_000, words(1))
    assert not drawn[1].any()
    assert np.allclose(drawn.std(axis=1), scales, rtol=0.01)
    assert abs(np.corrcoef(drawn[0], drawn[2])[0, 1]) < 0.015
    with pytest.raises(ValueError, match="from 2\\^20 to 2\\^21"):
        discrete_gaussian(np.array([1.0]), 1, words(0))


def test_words_that_come_in_pieces_do_not_favour_short_trials():
    """A trial given up for want of words would make integers that take many words rarer."""

    def in_pieces(size):
        stream = words(9)
        return lambda count: stream(min(count, size))

    whole = discrete_laplace(np.array([5.0, 3.0]), 300, in_pieces(10**9))
    assert np.array_equal(discrete_laplace(np.array([5.0, 3.0]), 300, in_pieces(7)), whole)
    # Twenty words hold three trials at least; the share of integers past 1.5 is what it is with any other pieces.
    drawn = discrete_gaussian(np.array([2.0**20]), 60_000, in_pieces(20))
    share = (np.abs(drawn) > 1.5 * 2**20).mean()
    assert abs(share - 2 * stats.norm.sf(1.5)) < 4.5 * math.sqrt(share / 60_000)


@pytest.mark.parametrize("scale", [1.0, 2.5, 40.0])
def test_the_discrete_laplace_has_its_exact_probabilities(scale):
    t, count = math.ceil(scale), 200_000
    drawn = discrete_laplace(np.array([scale]), count, words(2))[0].astype(np.int64)
    far = 6 * t
    cells = np.arange(-far, far + 1)

    def pvalue(t):
        chance = np.exp(-np.abs(cells) / t) * np.tanh(1 / (2 * t))  # (1 - q) / (1 + q) q^|k|, q = e^(-1/t)
        expected = np.array([(1 - chance.sum()), *chance]) * count
        inside = np.abs(drawn) <= far
        counts = np.array([(~inside).sum(), *np.bincount(drawn[inside] + far, minlength=cells.size)])
        return stats.chisquare(counts, expected).pvalue

    assert pvalue(t) > 1e-3
    for wrong in (2 / 3 * t, 3 / 2 * t):
        assert pvalue(wrong) < 1e-6
    assert np.abs(drawn).max() > 9 * t  # of 200,000, the largest is near 12 t


def test_the_discrete_laplace_of_a_grid_is_the_continuous_one_to_the_eye():
    scale = np.array([1.37 * 2**20])
    drawn = discrete_laplace(scale, 60_000, words(8))[0] / scale[0]
    assert stats.kstest(drawn, "laplace").pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(drawn * wrong, "laplace").pvalue < 1e-6
    low = np.bincount((drawn * scale[0] % 64).astype(np.int64))
    assert stats.chisquare(low).pvalue > 1e-3
    assert not discrete_laplace(np.zeros(1), 3, words(0)).any()


def test_kernels_are_compiled_for_what_the_real_source_gives_them_and_for_nothing_else():
    """Another kind of array would be compiled anew in every process: only what was warm is kept on the disk."""
    clients, scale = np.arange(2), np.full(2, 2.0**20)
    SystemNoise().gaussian_steps(clients, 3, scale)
    SystemNoise().laplace_steps(clients, 3, scale)
    assert [len(kernel.signatures) for kernel in (gaussian_row, laplace_row)] == [1, 1]
