"""Who shares a stack, and which rows a lane reads."""

from __future__ import annotations

import numpy as np
import pytest

from upcycled.core.randomness import permutations
from upcycled.core.solvers import LocalSGD
from upcycled.engines.vectorised.stacked import FEW_ROWS, orders_of, schedule_of, stacks_of, width_of

KEYS = np.arange(100, 140, dtype=np.uint64)


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("size", [1, 2, 7, 33])
def test_orders_of_many_clients_are_cores_permutations(count, size):
    assert (count * 5 >= FEW_ROWS) == (count == 40)
    found = orders_of(KEYS[:count], size, epochs=5)
    for key, order in zip(KEYS[:count].tolist(), found, strict=True):
        assert np.array_equal(order, permutations(key, size, 5))


def test_a_width_depends_on_the_clients_own_size_and_is_at_most_a_third_padding():
    for n in range(1, 300):
        assert n <= width_of(n, None) < 1.5 * n + 1e-9 or n == 1
        assert min(n, 10) <= width_of(n, 10) <= 10
        assert width_of(n, 10) == (10 if n >= 10 else min(10, width_of(n, None)))


def test_every_epoch_reads_every_row_once_and_the_short_last_batch_is_a_mean_over_its_own():
    samples, epochs = np.array([23, 23, 5, 16]), np.array([3, 1, 3, 2])
    local = LocalSGD(batch_size=8, epochs=3)
    steps = local.num_steps(samples, epochs)
    schedule = schedule_of(KEYS[:4], samples, steps, local, width=8)
    for lane, (n, k) in enumerate(zip(samples.tolist(), steps.tolist(), strict=True)):
        rows, weights = schedule.rows[:k, lane], schedule.weights[:k, lane]
        assert np.allclose(weights.sum(axis=1), 1)
        per_epoch = -(-n // 8)
        for epoch in range(epochs[lane]):
            here = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
            read = rows[here][weights[here] > 0]
            assert np.array_equal(read, permutations(int(KEYS[lane]), n, 3)[epoch])
        last = weights[per_epoch - 1]
        count = n - 8 * (per_epoch - 1)
        assert np.allclose(last[:count], 1 / count)
        assert (last[count:] == 0).all()


def test_a_full_batch_is_laid_out_once_for_all_epochs():
    samples = np.array([5, 3])
    schedule = schedule_of(KEYS[:2], samples, np.array([7, 2]), LocalSGD(batch_size=None), width=6)
    assert schedule.rows.tolist() == [[[0, 1, 2, 3, 4, 0], [0, 1, 2, 0, 0, 0]]]
    assert np.allclose(schedule.weights, [[[0.2] * 5 + [0], [1 / 3] * 3 + [0] * 3]])


def test_stacks_hold_equal_widths_with_most_steps_first_and_everybody_once():
    samples = np.array([40, 3, 0, 9, 100, 3, 8])
    steps = np.array([5, 9, 0, 2, 13, 1, 7])
    stacks = list(stacks_of(samples, steps, 8, size=10, features=4, device="cpu"))
    assert [(width, places.tolist()) for width, places in stacks] == [(3, [1, 5]), (8, [4, 6, 0, 3])]


def test_stacks_are_cut_where_they_would_not_fit_but_never_below_two():
    samples = np.full(7, 8)
    by_size = [p.size for _, p in stacks_of(samples, samples, 8, size=2**20, features=4, device="cpu")]
    by_rows = [p.size for _, p in stacks_of(samples, samples, 8, size=10, features=2**22, device="cpu")]
    assert by_size == [4, 3]
    assert by_rows == [2, 2, 2, 1]
