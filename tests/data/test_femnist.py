"""FEMNIST from every kind of file, and the sentence when there is none."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import upcycled as up
from tests.data.real_files import letter_pool, one_sentence, write_emnist, write_leaf, write_pool
from upcycled.data.sets.femnist import PUBLISHED


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No data of this machine is found by accident."""
    monkeypatch.delenv("UPCYCLED_DATA", raising=False)
    monkeypatch.setenv("UPCYCLED_CACHE", str(tmp_path / "cache"))


def same(a, b):
    return all(
        np.array_equal(getattr(getattr(a, part), name), getattr(getattr(b, part), name))
        for part in ("train", "test")
        for name in ("x", "y", "offsets")
    )


def test_a_pool_is_dealt_to_the_published_devices(tmp_path):
    data = up.data.femnist(write_pool(tmp_path / "pool.npz", per_letter=30))
    assert (data.num_clients, data.num_classes, data.feature_shape) == (50, 10, (28, 28))
    assert (data.train.num_rows, data.test.num_rows) == (16421, 1924)
    assert data.label_names == tuple("abcdefghij")
    assert data.train.x.dtype == np.float32
    assert 0 <= data.train.x.min() <= data.train.x.max() <= 1
    users = np.array(PUBLISHED).reshape(50, 4)
    assert data.sizes.tolist() == [sum(int(0.9 * 3 * k) for k in four) for four in users]


def test_letters_and_devices_are_free_in_a_drawn_partition(tmp_path):
    pool = write_pool(tmp_path / "pool.npz", per_letter=30)
    data = up.data.femnist(pool, letters=26, devices=7, seed=3)
    assert (data.num_clients, data.num_classes) == (7, 26)
    assert data.label_names[-1] == "z"
    assert not same(data, up.data.femnist(pool, letters=26, devices=7, seed=4))
    drawn = up.data.femnist(pool, partition="drawn", seed=0)
    assert drawn.num_clients == 50
    assert drawn.train.num_rows != 16421


def test_emnist_files_and_a_pool_of_the_same_images_give_the_same_data(tmp_path):
    pool = letter_pool(per_letter=9, letters=26)
    np.savez(tmp_path / "pool.npz", **pool)
    # The pool's labels count from a = 0; byclass has it at 36.
    path = write_emnist(tmp_path, "byclass", pool["train_x"], pool["train_y"] + 36, pool["test_x"], pool["test_y"] + 36)
    expected = up.data.femnist(tmp_path / "pool.npz", letters=26, devices=5)
    assert same(up.data.femnist(path, letters=26, devices=5), expected)
    assert same(up.data.femnist(tmp_path, letters=26, devices=5), expected)


def test_without_a_source_the_ready_file_goes_before_the_pool(tmp_path, monkeypatch):
    write_pool(tmp_path / "emnist_lower26_pool.npz", per_letter=8)
    monkeypatch.setenv("UPCYCLED_DATA", str(tmp_path))
    dealt = up.data.femnist()
    ready = up.data.femnist(seed=5)
    up.data.save(ready, tmp_path / "femnist10_50dev_wrap.npz")
    assert same(up.data.femnist(), ready)
    assert not same(up.data.femnist(), dealt)
    # Another seed, other letters, other devices and a new draw ask for the pool.
    assert not same(up.data.femnist(seed=1), ready)
    assert up.data.femnist(letters=26).num_classes == 26
    assert up.data.femnist(devices=8).num_clients == 8
    assert up.data.femnist(partition="drawn").train.num_rows != 16421
    assert same(up.data.femnist(partition="published"), ready)


def test_fetched_files_are_found_in_the_cache(tmp_path):
    pool = letter_pool(per_letter=9, letters=26)
    folder = tmp_path / "cache" / "data" / "emnist"
    folder.mkdir(parents=True)
    write_emnist(folder, "byclass", pool["train_x"], pool["train_y"] + 36, pool["test_x"], pool["test_y"] + 36)
    assert up.data.femnist(letters=26, devices=5).num_clients == 5


def test_nothing_found_is_one_sentence_that_says_where_and_how(tmp_path, monkeypatch):
    monkeypatch.setenv("UPCYCLED_DATA", str(tmp_path))
    with pytest.raises(up.InputError) as error:
        up.data.femnist()
    text = one_sentence(error.value)
    assert text.startswith("FEMNIST is not on this machine: none of femnist10_50dev_wrap.npz, ")
    assert f"{tmp_path} and {tmp_path / 'cache' / 'data'}" in text
    assert "'upcycled data fetch femnist'" in text
    assert "UPCYCLED_DATA" in text


def image(value):
    return [value] * 784


def fedprox(tmp_path):
    """Four users in FedProx's way: labels 0 to 9 as floats, a train and a test folder."""
    users = {f"f_{i}": ([image(0.1 * i)] * 4, [float(i), float(i + 1)] * 2) for i in range(4)}
    write_leaf(tmp_path / "train" / "mytrain.json", users)
    write_leaf(tmp_path / "test" / "mytest.json", {name: (x[:1], y[:1]) for name, (x, y) in users.items()})
    return tmp_path


def test_fedproxs_json_keeps_its_users_or_merges_them(tmp_path):
    data = up.data.femnist(fedprox(tmp_path))
    assert data.client_names == ("f_0", "f_1", "f_2", "f_3")
    assert (data.feature_shape, data.num_classes) == ((28, 28), 5)
    assert data.train.y.tolist() == [0, 1, 0, 1, 1, 2, 1, 2, 2, 3, 2, 3, 3, 4, 3, 4]
    assert data.test.y.tolist() == [0, 1, 2, 3]
    assert data.train.x[4, 0, 0] == pytest.approx(0.1)
    merged = up.data.femnist(tmp_path, devices=2, letters=10)
    assert (merged.sizes.tolist(), merged.num_classes) == ([8, 8], 10)


def test_leafs_json_gives_the_lower_case_letters_of_its_writers(tmp_path):
    labels = [3, 36, 61, 10]
    users = {
        "w1": ([image(0.01 * (i + 1)) for i in range(40)], labels * 10),
        "digits": ([image(0.5)] * 2, [1, 2]),
        "w2": ([image(0.51 + 0.01 * i) for i in range(20)], [37, 38] * 10),
    }
    data = up.data.femnist(write_leaf(tmp_path / "a.json", users))
    assert data.client_names == ("w1", "w2")
    assert set(data.train.y) | set(data.test.y) == {0, 25, 1, 2}
    # One file has no test part: a tenth of its 40 distinct images of lower-case letters is held out.
    assert (data.train.num_rows, data.test.num_rows) == (36, 4)
    assert up.data.femnist(tmp_path / "a.json", letters=3).num_classes == 3


@pytest.mark.parametrize(
    ("users", "words"),
    [
        ({"a": ([[1.0] * 783], [0])}, r"samples.*user 'a'.*784.*label"),
        ({"a": ([["x"] * 784], [0])}, r"samples.*user 'a'.*784.*label"),
        ({"a": ([[float("nan")] * 784], [0])}, "a value is not finite"),
        ({"a": ([image(0)], ["q"])}, r"samples.*user 'a'"),
        ({"a": ([image(0)], [-1])}, r"samples.*user 'a'"),
        ({"a": ([image(0)], [1e300])}, r"samples.*user 'a'"),
        ({"a": ([], [])}, "train samples"),
        ({"a": ([image(0)], [30])}, "lower-case letters"),
    ],
)
def test_wrong_json_is_answered_by_one_sentence(tmp_path, users, words):
    path = write_leaf(tmp_path / "a.json", users)
    with pytest.raises(up.InputError) as error:
        up.data.femnist(path)
    assert re.search(words, one_sentence(error.value))
    assert str(path) in str(error.value)


def test_test_users_must_be_training_users(tmp_path):
    fedprox(tmp_path)
    write_leaf(tmp_path / "test" / "mytest.json", {"stranger": ([image(0)], [0])})
    with pytest.raises(up.InputError, match=r"test samples.*user 'stranger'.*training samples"):
        up.data.femnist(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"letters": 2}, r"letters.*2.*integer >= 3"),
        ({"letters": 27}, r"letters.*27.*integer >= 3.*<= 26"),
        ({"letters": 10.0}, r"letters.*10\.0.*integer"),
        ({"devices": 0}, r"devices.*0.*integer >= 1"),
        ({"seed": -1}, r"seed.*-1.*integer >= 0"),
        ({"partition": "publised"}, r"partition.*'publised'.*did you mean 'published'\?"),
        ({"partition": "published", "letters": 26}, r"partition.*'published'.*'drawn'.*26 letters"),
        ({"partition": "published", "devices": 9}, r"partition.*'published'.*'drawn'.*10 letters"),
    ],
)
def test_wrong_arguments_are_answered_by_one_sentence(tmp_path, options, words):
    with pytest.raises(up.InputError) as error:
        up.data.femnist(write_pool(tmp_path / "pool.npz", per_letter=3), **options)
    assert re.search(words, one_sentence(error.value))


def test_a_file_with_devices_takes_no_partition_and_no_other_numbers(tmp_path):
    path = tmp_path / "own.npz"
    up.data.save(up.data.femnist(write_pool(tmp_path / "pool.npz", per_letter=3), devices=4), path)
    assert up.data.femnist(path).num_clients == 4
    assert up.data.femnist(path, devices=4, letters=10).label_names == tuple("abcdefghij")
    for options, words in (
        ({"devices": 5}, f"devices is 5, but {path} has 4"),
        ({"letters": 26}, f"letters is 26, but {path} has 10"),
        ({"partition": "drawn"}, "partition is 'drawn', but it must be left out"),
    ):
        with pytest.raises(up.InputError, match=re.escape(words)):
            up.data.femnist(path, **options)


def test_a_source_that_is_no_source_is_named(tmp_path):
    with pytest.raises(up.InputError, match=r"^source.*'.*none'"):
        up.data.femnist(tmp_path / "none")
    with pytest.raises(up.InputError, match=r"^source.*'.*'"):
        up.data.femnist(tmp_path)
    (tmp_path / "a.npz").write_bytes(b"not a zip")
    with pytest.raises(up.InputError, match=r"read.*\.npz"):
        up.data.femnist(tmp_path / "a.npz")
    np.savez(
        tmp_path / "flat.npz", train_x=np.zeros((3, 784)), train_y=[0, 1, 2], test_x=np.zeros((1, 784)), test_y=[0]
    )
    with pytest.raises(up.InputError, match=r"train_x.*shape \(3, 784\)"):
        up.data.femnist(tmp_path / "flat.npz")


def test_the_ready_file_is_the_papers_table_and_the_table_in_the_code(shared_data):
    data = up.data.femnist(shared_data / "femnist10_50dev_wrap.npz")
    assert (data.num_clients, data.train.num_rows, data.test.num_rows) == (50, 16421, 1924)
    with np.load(shared_data / "femnist10_50dev_wrap.npz") as file:
        users = np.bincount(file["train_user200"]) + np.bincount(file["test_user200"])
        assert not set(file["train_imgid"]) & set(file["test_imgid"])
    assert tuple(users // 3) == PUBLISHED


def test_the_pool_gives_the_same_devices_with_other_images(shared_data, monkeypatch):
    monkeypatch.setenv("UPCYCLED_DATA", str(shared_data))
    ready, dealt = up.data.femnist(), up.data.femnist(seed=1)
    assert ready.sizes.tolist() == dealt.sizes.tolist()
    assert [set(ready.train.client(i)[1]) for i in range(50)] == [set(dealt.train.client(i)[1]) for i in range(50)]
    full = up.data.femnist(letters=26)
    assert (full.num_clients, full.num_classes) == (50, 26)
    train, test = ({row.tobytes() for row in part.x} for part in (full.train, full.test))
    assert not train & test


def test_an_image_is_held_out_with_all_its_copies(tmp_path):
    data = up.data.femnist(write_pool(tmp_path / "pool.npz", per_letter=40)).with_validation(0.1, seed=3)
    kept, held = ({row.tobytes() for row in part.x} for part in (data.train, data.validation))
    assert not kept & held
    # 400 distinct images, a tenth of them held out.
    assert (len(kept), len(held)) == (360, 40)
    up.data.save(data, tmp_path / "saved.npz")
    assert up.data.load(tmp_path / "saved.npz").has_copies


def test_describing_a_set_of_json_needs_no_names(tmp_path):
    assert json.dumps(up.data.femnist(fedprox(tmp_path)).describe().to_dict())
