import tracemalloc

import numpy as np
import pytest

from upcycled.core.errors import InputError
from upcycled.data import FederatedData

X = [np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0, 6.0]])]
Y = [np.array([0, 1]), np.array([2])]


def test_arrays_of_clients_lie_one_after_the_other():
    data = FederatedData.from_arrays(X, Y, test=([X[1], X[0]], [Y[1], Y[0]]))
    assert data.train.x.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert data.train.y.tolist() == [0, 1, 2]
    assert data.train.offsets.tolist() == [0, 2, 3]
    assert data.test is not None
    assert data.test.x.tolist() == [[5, 6], [1, 2], [3, 4]]
    assert data.test.offsets.tolist() == [0, 1, 3]
    assert (data.num_clients, data.num_features, data.feature_shape, data.num_classes) == (2, 2, (2,), 3)
    assert data.sizes.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (np.float64, np.float32),
        (np.float16, np.float32),
        (np.bool_, np.float32),
        (np.int32, np.int64),
        (np.uint8, np.int64),
        (">f4", np.float32),
    ],
)
def test_floats_are_kept_as_float32_and_integers_as_int64(dtype, stored):
    data = FederatedData.from_arrays([np.array([[0, 1], [1, 1]], dtype=dtype)], [np.array([0, 1], dtype=np.int8)])
    assert data.train.x.dtype == stored
    assert data.train.x.tolist() == [[0, 1], [1, 1]]
    assert data.train.y.dtype == np.int64


def test_one_client_with_floats_makes_all_features_floats():
    data = FederatedData.from_arrays([[[1, 2]], [[0.5, 3]]], [[0], [1]])
    assert data.train.x.dtype == np.float32
    assert data.train.x.tolist() == [[1, 2], [0.5, 3]]


def test_integer_training_features_stay_integers_beside_an_empty_test_part():
    data = FederatedData.from_arrays([[[7, 8]], [[9, 9]]], [[0], [1]], test=([[], []], [[], []]))
    assert data.train.x.dtype == np.int64
    assert data.test is None


def test_a_client_may_have_no_test_samples():
    data = FederatedData.from_arrays(X, Y, test=([[], X[1]], [[], Y[1]]))
    assert data.test is not None
    assert data.test.sizes.tolist() == [0, 1]
    assert data.test.x.tolist() == [[5, 6]]


def test_whole_floats_and_booleans_are_labels():
    assert FederatedData.from_arrays(X, [[0.0, 1.0], [2.0]]).train.y.tolist() == [0, 1, 2]
    assert FederatedData.from_arrays(X, [[True, False], [True]]).train.y.tolist() == [1, 0, 1]


def test_images_keep_their_shape():
    data = FederatedData.from_arrays([np.zeros((2, 3, 4)), np.zeros((1, 3, 4))], [[0, 1], [1]])
    assert (data.feature_shape, data.num_features) == ((3, 4), 12)


def test_the_test_part_can_have_the_highest_class():
    assert FederatedData.from_arrays(X, [[0, 1], [1]], test=(X, [[0, 4], [1]])).num_classes == 5


def test_names_are_given_numbers_are_made_only_when_asked_for():
    named = FederatedData.from_arrays(X, Y, client_names=["ann", "bob"])
    plain = FederatedData.from_arrays(X, Y)
    assert (named.client_names, named.name_of(1)) == (("ann", "bob"), "bob")
    assert (plain.client_names, plain.client_ids, plain.name_of(1)) == (None, None, "1")


def test_flat_arrays_of_the_right_type_are_not_copied():
    x, y = np.ones((4, 2), dtype=np.float32), np.array([0, 1, 0, 1])
    data = FederatedData.from_flat(x, y, [0, 1, 4], test=(x, y, [0, 4, 4]))
    assert data.train.x is x
    assert data.train.y is y
    assert data.test is not None
    assert np.shares_memory(data.test.x, x)


@pytest.mark.parametrize("view", [np.s_[::-1], np.s_[::2]])
def test_strided_views_become_row_major_copies_with_the_same_values(view):
    x = np.arange(8, dtype=np.float32).reshape(4, 2)[view]
    data = FederatedData.from_flat(x, np.arange(len(x)) % 2, [0, len(x)])
    assert data.train.x.flags.c_contiguous
    assert np.array_equal(data.train.x, x)


def test_memory_mapped_data_is_checked_without_being_loaded(tmp_path):
    rows, width, clients = 400_000, 20, 100_000
    x = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(rows, width))
    y = np.lib.format.open_memmap(tmp_path / "y.npy", mode="w+", dtype=np.int64, shape=(rows,))
    y[1::2] = 1
    offsets = np.arange(0, rows + 1, rows // clients)
    tracemalloc.start()
    data = FederatedData.from_flat(x, y, offsets)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.shares_memory(data.train.x, x)
    assert np.shares_memory(data.train.y, y)
    assert peak < x.nbytes / 4  # 32 MB of features; a chunk's mask is about 1 MB
    # and yet every row was looked at
    x[rows - 1, 7] = np.nan
    with pytest.raises(InputError, match=r"client 99999.*nan.*row 3, column 7"):
        FederatedData.from_flat(x, y, offsets)


def test_a_pool_is_dealt_out_by_row_numbers():
    x, y = np.arange(10.0).reshape(5, 2), np.array([0, 1, 2, 1, 3])
    data = FederatedData.from_pool(x, y, [[4, 0], [2]])
    assert data.train.x.tolist() == [[8, 9], [0, 1], [4, 5]]
    assert data.train.y.tolist() == [3, 0, 2]
    assert data.num_classes == 4


def test_the_classes_of_a_pool_count_even_when_not_dealt_out():
    assert FederatedData.from_pool(np.ones((3, 1)), [0, 1, 5], [[0], [1]]).num_classes == 6


def test_a_pool_can_have_a_test_part_split_off_each_client():
    data = FederatedData.from_pool(
        np.ones((20, 1)), np.arange(20) % 2, [np.arange(15), np.arange(15, 20)], test_fraction=0.2
    )
    assert data.test is not None
    assert (data.sizes.tolist(), data.test.sizes.tolist()) == ([12, 4], [3, 1])


def test_data_says_what_it_is():
    assert repr(FederatedData.from_arrays([np.ones((2, 3, 4))], [[0, 1]])) == (
        "FederatedData(1 client, 2 training samples of 3 x 4 features, 2 classes)"
    )
