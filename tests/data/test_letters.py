"""The paper's FEMNIST devices, dealt from a pool: counts, classes, disjointness, the seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.real_files import letter_pool
from upcycled.core.errors import InputError
from upcycled.data.sets.femnist import PUBLISHED, Images, deal, drawn_sizes


def images(**options):
    return Images(**letter_pool(**options))


def identity(x):
    """Which image of the pool a float image is: part, letter, number."""
    corner = np.rint(x[:, 0, :4] * 255).astype(int)
    return [tuple(row) for row in corner]


def test_the_published_sizes_add_up_to_the_papers_table():
    # my_sample.py: 3 k images per user, int(0.9 * 3 k) of them for training. The paper: 16421 (1924) samples, 50
    # devices, mean 328, sd 273.
    train = np.array([int(0.9 * 3 * k) for k in PUBLISHED]).reshape(50, 4).sum(axis=1)
    assert len(PUBLISHED) == 200
    assert train.sum() == 16421
    assert 3 * sum(PUBLISHED) - train.sum() == 1924
    assert round(train.mean()) == 328
    assert round(train.std()) == 273


def test_sizes_are_drawn_as_in_my_sample():
    # (lognormal(4, 1) + 5) / 3, rounded down, at least 2: the median of lognormal(4, 1) is e^4 = 54.6, so the median
    # is about 59.6 / 3 = 19.9; the mean about (e^4.5 + 5) / 3 - 1/2 = 31.2.
    sizes = drawn_sizes(25_000, seed=3)
    assert len(sizes) == 100_000
    assert sizes.min() == 2
    assert np.median(sizes) in (19, 20)
    assert sizes.mean() == pytest.approx((np.exp(4.5) + 5) / 3 - 0.5, rel=0.02)


@given(
    letters=st.integers(3, 26),
    per_class=st.lists(st.integers(2, 9), min_size=8, max_size=8),
    stock=st.integers(1, 12),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=40)
def test_a_dealing_has_the_stated_counts_and_classes(letters, per_class, stock, seed):
    pool = images(per_letter=stock, letters=letters)
    data = deal(pool, letters, np.array(per_class), seed)
    assert data.num_clients == 2
    assert data.num_classes == letters
    for device in range(2):
        users = range(4 * device, 4 * device + 4)
        kept = [int(0.9 * 3 * per_class[u]) for u in users]
        (x, y), (test_x, test_y) = data.train.client(device), data.test.client(device)
        assert len(y) == sum(kept)
        assert len(test_y) == 3 * sum(per_class[u] for u in users) - sum(kept)
        # Users u..u+3 have the classes u..u+5.
        assert set(y) | set(test_y) == {(u + j) % letters for u in users for j in range(3)}
        counts = np.bincount(np.concatenate([y, test_y]), minlength=letters)
        wanted = np.zeros(letters, dtype=int)
        for u in users:
            wanted[(u + np.arange(3)) % letters] += per_class[u]
        assert counts.tolist() == wanted.tolist()
        # Every image is of the letter its label says, training images are training images.
        assert [letter for _, letter, _, _ in identity(x)] == y.tolist()
        assert {part for part, *_ in identity(x)} == {0}
        assert {part for part, *_ in identity(test_x)} <= {1}


@given(stock=st.integers(1, 40), seed=st.integers(0, 1000))
@settings(max_examples=30)
def test_an_image_is_used_again_only_when_its_class_is_exhausted(stock, seed):
    data = deal(images(per_letter=stock, letters=5), 5, np.array([5] * 8), seed)
    uses = {}
    for name in identity(data.train.x):
        uses[name] = uses.get(name, 0) + 1
    for letter in range(5):
        own = [count for (_, found, *_), count in uses.items() if found == letter]
        demand = int((data.train.y == letter).sum())
        assert len(own) == min(stock, demand)
        assert max(own) - min(own) <= 1


def test_the_seed_decides_everything():
    pool = images(per_letter=20)
    one, again, other = (deal(pool, 26, drawn_sizes(4, s), s) for s in (1, 1, 2))
    assert np.array_equal(one.train.x, again.train.x)
    assert np.array_equal(one.test.y, again.test.y)
    assert one.sizes.tolist() != other.sizes.tolist()


def test_a_pool_without_a_letter_is_named():
    pool = images(per_letter=5, letters=26)
    without = Images(pool.train_x[pool.train_y != 2], pool.train_y[pool.train_y != 2], pool.test_x, pool.test_y)
    with pytest.raises(InputError, match=r"pool.*train.*letter 'c'"):
        deal(without, 26, np.array([5] * 4), 0)
