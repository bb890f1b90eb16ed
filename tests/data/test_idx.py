"""IDX files, and EMNIST's way of filling them."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.data.real_files import CODES, idx_bytes, one_sentence, write_emnist
from upcycled.core.errors import InputError
from upcycled.data.sets.femnist import read_emnist, read_idx

SOUND = idx_bytes(np.arange(24, dtype=np.uint8).reshape(4, 3, 2))


@given(
    array=st.sampled_from(sorted(CODES)).flatmap(
        lambda kind: npst.arrays(np.dtype(kind), npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6))
    ),
    zipped=st.booleans(),
)
@settings(max_examples=60)
def test_what_was_written_is_read_back(tmp_path_factory, array, zipped):
    path = tmp_path_factory.mktemp("idx") / "a"
    path.write_bytes(gzip.compress(idx_bytes(array)) if zipped else idx_bytes(array))
    found = read_idx(path)
    assert found.shape == array.shape
    assert np.array_equal(found, array, equal_nan=array.dtype.kind == "f")


@given(rows=st.lists(st.booleans(), min_size=1, max_size=40))
@settings(max_examples=30)
def test_only_the_marked_rows_are_kept(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("idx") / "a"
    array = np.arange(len(rows) * 6, dtype=np.int16).reshape(len(rows), 2, 3)
    path.write_bytes(idx_bytes(array))
    assert np.array_equal(read_idx(path, np.array(rows)), array[np.array(rows)])


def test_rows_are_kept_over_the_borders_of_chunks(tmp_path):
    # 3,000 rows of 784 bytes are more than two chunks of a megabyte.
    array = np.random.default_rng(0).integers(0, 256, (3000, 28, 28), dtype=np.uint8)
    path = tmp_path / "a"
    path.write_bytes(idx_bytes(array))
    mask = np.random.default_rng(1).random(3000) < 0.2
    assert np.array_equal(read_idx(path, mask), array[mask])


@given(cut=st.integers(0, len(SOUND) - 1))
@settings(max_examples=len(SOUND))
def test_a_file_cut_anywhere_is_answered_by_one_sentence(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("idx") / "cut"
    path.write_bytes(SOUND[:cut])
    with pytest.raises(InputError) as error:
        read_idx(path)
    assert one_sentence(error.value).startswith(f"{path} cannot be read as IDX, but it must be a whole IDX file (")


@given(cut=st.integers(2, 40))
@settings(max_examples=40)
def test_a_gzipped_file_cut_anywhere_is_answered_by_one_sentence(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("idx") / "cut.gz"
    whole = gzip.compress(SOUND)
    path.write_bytes(whole[: min(cut, len(whole) - 1)])
    with pytest.raises(InputError, match="IDX"):
        read_idx(path)


@given(content=st.binary(max_size=60))
@settings(max_examples=100)
def test_any_bytes_are_an_array_or_one_sentence(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("idx") / "any"
    path.write_bytes(content)
    try:
        read_idx(path)
    except InputError as error:
        one_sentence(error)


def test_a_header_that_promises_far_too_much_is_answered_by_one_sentence(tmp_path):
    path = tmp_path / "huge"
    path.write_bytes(bytes([0, 0, 8, 3]) + b"\xff" * 12 + b"abc")
    with pytest.raises(InputError, match="header asks"):
        read_idx(path)
    path.write_bytes(bytes([0, 0, 8, 1]) + b"\xff" * 4 + b"abc")
    with pytest.raises(InputError, match=r"header.*4294967295 bytes.*11"):
        read_idx(path)


def test_bytes_after_the_last_row_are_not_overlooked(tmp_path):
    path = tmp_path / "long"
    path.write_bytes(SOUND + b"x")
    with pytest.raises(InputError, match="4 rows"):
        read_idx(path)


def byclass(folder, zipped=True):
    """Two images each of 9, A, Z, a, b, j, k, z; the image's corner holds its label."""
    labels = np.repeat([9, 10, 35, 36, 37, 45, 46, 61], 2)
    images = np.zeros((len(labels), 28, 28), dtype=np.uint8)
    images[:, 0, 5] = labels
    images[:, 1, 0] = 200
    return write_emnist(folder, "byclass", images, labels, images[::2], labels[::2], zipped)


@pytest.mark.parametrize("zipped", [True, False])
def test_emnist_gives_lower_case_letters_upright(tmp_path, zipped):
    found = read_emnist(byclass(tmp_path, zipped), letters=10)
    # Lower case begins at 36: a, b and j are among the first ten letters, k and z are not.
    assert found.train_y.tolist() == [0, 0, 1, 1, 9, 9]
    assert found.test_y.tolist() == [0, 1, 9]
    assert found.train_x[:, 0, 5].tolist() == [36, 36, 37, 37, 45, 45]
    assert (found.train_x[:, 1, 0] == 200).all()
    assert read_emnist(byclass(tmp_path, zipped), letters=26).train_y.tolist() == [0, 0, 1, 1, 9, 9, 10, 10, 25, 25]


def test_the_letters_split_counts_from_one(tmp_path):
    labels = np.array([1, 2, 26])
    images = np.zeros((3, 28, 28), dtype=np.uint8)
    path = write_emnist(tmp_path, "letters", images, labels, images, labels)
    assert read_emnist(path, letters=26).train_y.tolist() == [0, 1, 25]
    assert read_emnist(path, letters=10).test_y.tolist() == [0, 1]


def test_a_missing_companion_and_a_strange_name_are_named(tmp_path):
    path = byclass(tmp_path)
    (tmp_path / "emnist-byclass-test-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match=r"test-labels-idx1-ubyte.*.gz\)"):
        read_emnist(path, 10)
    with pytest.raises(InputError, match=r"training images.*split.*letters"):
        read_emnist(tmp_path / "emnist-digits-train-images-idx3-ubyte.gz", 10)


def test_images_and_labels_must_be_as_many(tmp_path):
    path = byclass(tmp_path)
    short = gzip.compress(idx_bytes(np.zeros(3, dtype=np.uint8)))
    (tmp_path / "emnist-byclass-train-labels-idx1-ubyte.gz").write_bytes(short)
    with pytest.raises(InputError, match=r"16 rows.*labels, 3"):
        read_emnist(path, 10)
