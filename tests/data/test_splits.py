import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcycled.core.errors import InputError
from upcycled.core.vectors import Shards
from upcycled.data import FederatedData
from upcycled.data.splits import VALIDATION, split_off


def numbered(sizes):
    """Data whose every sample carries its own number, so that rows can be followed."""
    total = sum(sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return FederatedData.from_flat(np.arange(total)[:, None], np.arange(total) % 3, offsets, num_classes=3)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.floats(0.0, 0.99),
    st.integers(0, 2**40),
)
def test_a_split_keeps_every_sample_once_with_its_client_and_label(sizes, fraction, seed):
    before = numbered(sizes)
    after = before.split(fraction, seed)
    for i, size in enumerate(sizes):
        x, y = after.train.client(i)
        rows = x[:, 0].tolist()
        if after.test is not None:
            held_x, held_y = after.test.client(i)
            rows += held_x[:, 0].tolist()
            assert np.array_equal(held_y, held_x[:, 0] % 3)
        assert np.array_equal(y, x[:, 0] % 3)
        assert sorted(rows) == list(range(int(before.train.offsets[i]), int(before.train.offsets[i + 1])))
        assert len(x) >= 1
        assert len(x) == max(1, int(np.floor((1 - fraction) * size + 1e-9)))
        assert bool(np.all(np.diff(x[:, 0]) > 0))


def test_sizes_are_rounded_as_in_the_published_sets():
    # 0.9 * (50, 51, 59, 60) = 45, 45.9, 53.1, 54: the published sets have train sizes 45, 45, 53, 54
    assert numbered([50, 51, 59, 60]).split(0.1).sizes.tolist() == [45, 45, 53, 54]


def test_the_seed_decides_which_samples_are_held_out():
    data = numbered([200])
    first, again, other = (data.split(0.5, seed).train.x[:, 0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_each_client_has_its_own_choice():
    test = numbered([100, 100]).split(0.5).test
    assert test is not None
    assert not np.array_equal(test.client(0)[0], test.client(1)[0] - 100)


def test_a_client_is_split_alike_whoever_else_is_there():
    few, many = numbered([30, 17]).split(0.3, 5), numbered([30, 17, 500, 4]).split(0.3, 5)
    assert few.train.x[:, 0].tolist() == many.train.x[: few.train.num_rows, 0].tolist()


def test_held_out_rows_are_spread_evenly_over_a_client():
    # 1,000 clients of 10 rows, half held out: a row's chance is 1/2, its count has sd sqrt(1000)/2 = 16
    test = numbered([10] * 1000).split(0.5).test
    assert test is not None
    counts = np.bincount(test.x[:, 0] % 10, minlength=10)
    assert np.all(np.abs(counts - 500) < 5 * 16)


def test_validation_is_another_draw_than_test_with_the_same_seed():
    data = numbered([100])
    test, validation = data.split(0.3, 7).test, data.with_validation(0.3, 7).validation
    assert test is not None
    assert validation is not None
    assert test.num_rows == validation.num_rows == 30
    assert not np.array_equal(test.x, validation.x)


def test_validation_comes_off_the_training_part_and_leaves_the_test_part_alone():
    data = numbered([20, 10]).split(0.5)
    more = data.with_validation(0.2)
    assert more.validation is not None
    assert more.test is data.test
    assert (more.sizes.tolist(), more.validation.sizes.tolist()) == ([8, 4], [2, 1])
    joined = np.concatenate([more.train.x, more.validation.x])[:, 0]
    assert sorted(joined.tolist()) == sorted(data.train.x[:, 0].tolist())


def test_a_fraction_that_holds_nothing_out_leaves_no_test_part():
    assert numbered([1, 1]).split(0.9).test is None


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_a_fraction_outside_its_range_is_refused(fraction):
    with pytest.raises(InputError, match=r"test_fraction.*>= 0.*1"):
        numbered([5]).split(fraction)
    with pytest.raises(InputError, match="validation_fraction is"):
        numbered([5]).with_validation(fraction)


def test_a_second_split_is_refused():
    once = numbered([10]).split(0.2).with_validation(0.25)
    with pytest.raises(InputError, match=r"^test_fraction.*0.2.*data.*2 test samples"):
        once.split(0.2)
    with pytest.raises(InputError, match=r"^validation_fraction.*0.3.*data.*2 validation samples"):
        once.with_validation(0.3)


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    kinds=st.integers(1, 30),
    fraction=st.floats(0, 0.99),
    seed=st.integers(0, 2**40),
)
def test_equal_rows_are_held_out_together_and_every_client_keeps_one(sizes, kinds, fraction, seed):
    rows = np.random.default_rng(seed).integers(0, kinds, sum(sizes))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    shards = Shards(rows[:, None].astype(np.float32), rows, offsets)
    kept, held = split_off(shards, fraction, seed, VALIDATION, together=True)
    assert not set(kept.y) & set(held.y)
    assert len(set(held.y)) <= np.ceil(fraction * len(set(rows)))
    assert kept.sizes.min() >= 1
    assert (kept.sizes + held.sizes).tolist() == sizes
    for client in range(len(sizes)):
        x, y = shards.client(client)
        assert sorted([*kept.client(client)[1], *held.client(client)[1]]) == sorted(y)
        assert np.array_equal(kept.client(client)[0][:, 0], [v for v in x[:, 0] if v in set(kept.y)])
