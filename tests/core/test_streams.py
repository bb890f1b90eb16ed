from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from upcycled.core import randomness as streams
from upcycled.core.randomness import Purpose


def test_mix_is_splitmix64():
    # Vigna's reference: SplitMix64 seeded with 0 gives these first outputs; its state grows by the golden gamma.
    state, expected = 0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    for value in expected:
        assert streams.mix(state) == value
        state = (state + 0x9E3779B97F4A7C15) % 2**64


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_the_array_form_equals_the_scalar_form(numbers):
    got = streams.mix_array(np.array(numbers, dtype=np.uint64))
    assert got.tolist() == [streams.mix(n) for n in numbers]


@given(st.integers(0, 2**64 - 1), st.integers(1, 40), st.integers(1, 40))
def test_a_word_does_not_depend_on_how_many_are_drawn(key, start, count):
    keys = np.array([key], dtype=np.uint64)
    assert np.array_equal(streams.words(keys, start + count)[:, start:], streams.words(keys, count, start))


def test_a_clients_stream_depends_on_seed_purpose_round_attempt_and_client_only():
    alone = streams.client_keys(3, Purpose.BATCHES, 5, [7])[0]
    assert streams.client_keys(3, Purpose.BATCHES, 5, [1, 7, 9])[1] == alone
    others = [
        streams.client_keys(4, Purpose.BATCHES, 5, [7]),
        streams.client_keys(3, Purpose.STRAGGLER, 5, [7]),
        streams.client_keys(3, Purpose.BATCHES, 6, [7]),
        streams.client_keys(3, Purpose.BATCHES, 5, [8]),
        streams.client_keys(3, Purpose.BATCHES, 5, [7], attempt=1),
    ]
    assert alone not in [key[0] for key in others]


@given(st.integers(0, 2**64 - 1), st.integers(1, 60), st.integers(1, 4))
def test_permutations_are_permutations_and_an_epoch_does_not_depend_on_their_number(key, size, epochs):
    found = streams.permutations(key, size, epochs)
    assert all(sorted(row) == list(range(size)) for row in found.tolist())
    assert np.array_equal(found, streams.permutations(key, size, epochs + 1)[:epochs])


def test_all_orders_of_four_are_equally_likely():
    # 24 cells, 24,000 draws, 1,000 expected each: chi-square with 23 degrees of freedom, 99.9 % point 49.7.
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for row in streams.permutations(11, 4, 24_000).tolist():
        counts[tuple(row)] += 1
    assert sum((c - 1000) ** 2 / 1000 for c in counts.values()) < 49.7


@given(st.integers(0, 2**64 - 1), st.integers(1, 50), st.data())
def test_choose_gives_distinct_members(key, population, data):
    count = data.draw(st.integers(1, population))
    chosen = streams.choose(key, population, count).tolist()
    assert len(set(chosen)) == count
    assert chosen == sorted(chosen)
    assert set(chosen) <= set(range(population))


def test_choose_takes_every_member_equally_often():
    # Each of 10 members is in a draw of 3 with probability 0.3: sd of the count over 10,000 draws is 45.8.
    counts = np.zeros(10)
    for key in range(10_000):
        counts[streams.choose(streams.mix(key), 10, 3)] += 1
    assert np.abs(counts - 3000).max() < 4 * 45.8


@pytest.mark.parametrize("wrong", [1.0, 2 / 3, 3 / 2])
def test_normals_are_standard_and_two_thirds_or_three_halves_of_the_scale_are_rejected(wrong):
    from scipy import stats

    sample = streams.normals(streams.client_keys(0, Purpose.NOISE, 1, np.arange(50)), 201).ravel()
    p_value = stats.kstest(sample * wrong, "norm").pvalue
    assert (p_value > 1e-3) == (wrong == 1.0)


def test_normals_are_box_mullers_at_every_angle_and_at_both_ends():
    """Each number to 3e-16 of its radius, from the smallest uniform and the largest, which have the longest radius."""
    ends = np.array([0.5, 1.5, 2.5]) * 2.0**-52
    u = np.concatenate([ends, np.linspace(0, 1, 2_001)[1:-1], np.sqrt(0.5) + ends, 1 - ends])
    v = np.concatenate(
        [ends, np.linspace(0, 1, 65)[1:-1], np.linspace(0, 1, 9)[1:-1, None].repeat(3, 1).ravel(), 1 - ends]
    )
    u, v = (grid.ravel() for grid in np.meshgrid(u, v))
    found = streams.box_muller(np.stack([u, v], axis=-1).reshape(-1)).reshape(-1, 2)
    radius, angle = np.sqrt(-2 * np.log(u.astype(np.longdouble))), 2 * np.longdouble(np.pi) * v
    # pi as a float64 is off by 1.2e-16: the angle is corrected for it.
    angle += 2 * np.longdouble(1.2246467991473532e-16) * v
    exact = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    assert np.isfinite(found).all()
    assert np.abs(found - exact).max() <= 3e-16 * 8.6
    assert (np.abs(found - exact) <= 3e-16 * radius[:, None] + 1e-24).all()
    assert np.abs(found).max() > 8.5


def test_neighbouring_numbers_clients_and_rounds_are_uncorrelated():
    keys = streams.client_keys(0, Purpose.NOISE, 1, np.arange(2000))
    a = streams.normals(keys, 8)
    b = streams.normals(streams.client_keys(0, Purpose.NOISE, 2, np.arange(2000)), 8)
    pairs = [(a[:, :-1], a[:, 1:]), (a[:-1], a[1:]), (a, b)]
    for left, right in pairs:
        # The correlation of n independent pairs has sd 1/sqrt(n); 5 sd is a one in a million event.
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 5 / np.sqrt(left.size)


@given(st.integers(0, 2**63), st.integers(1, 7))
@settings(max_examples=30)
def test_uniforms_lie_strictly_between_zero_and_one(seed, count):
    u = streams.uniforms(streams.client_keys(seed, Purpose.NOISE, 1, np.arange(100)), count)
    assert u.min() > 0
    assert u.max() < 1


def test_no_global_generator_is_read_or_set():
    before_torch, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    streams.normals(streams.client_keys(0, Purpose.NOISE, 1, [0, 1]), 5)
    streams.permutations(1, 10, 2)
    assert torch.equal(before_torch, torch.get_rng_state())
    assert np.array_equal(before_numpy, np.random.get_state()[1])  # noqa: NPY002
