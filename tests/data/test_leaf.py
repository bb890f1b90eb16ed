"""LEAF's JSON: what is read, what is refused, and how users become devices."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.real_files import one_sentence, write_leaf
from upcycled.core.errors import InputError
from upcycled.data.sets.leaf import is_leaf, merged, read_leaf

USERS = {"f_1": ([[0.5], [1.0]], [0, 1]), "f_2": ([[2.0]], [1])}
names = st.text(min_size=1, max_size=8)
samples = st.lists(st.tuples(st.lists(st.floats(0, 1), max_size=3), st.integers(0, 61)), max_size=4)


@given(users=st.dictionaries(names, samples, min_size=1, max_size=6), files=st.integers(1, 3))
@settings(max_examples=40)
def test_users_of_several_files_are_read_back(tmp_path_factory, users, files):
    folder = tmp_path_factory.mktemp("leaf")
    written = {name: ([x for x, _ in rows], [y for _, y in rows]) for name, rows in users.items()}
    for i in range(files):
        write_leaf(folder / f"part_{i}.json", dict(list(written.items())[i::files]))
    train, test = read_leaf(folder)
    assert test is None
    assert {user.name: (user.x, user.y) for user in train} == written


@pytest.mark.parametrize("inside", ["", "data/"])
def test_folders_train_and_test_are_two_parts(tmp_path, inside):
    write_leaf(tmp_path / f"{inside}train/a.json", USERS)
    write_leaf(tmp_path / f"{inside}test/a.json", {"f_1": ([[7.0]], [0])})
    assert is_leaf(tmp_path)
    train, test = read_leaf(tmp_path)
    assert [user.name for user in train] == ["f_1", "f_2"]
    assert [user.x for user in test] == [[[7.0]]]


def wrong(**changes):
    content = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": [0]}}} | changes
    return json.dumps({key: value for key, value in content.items() if value != "gone"})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "JSON"),
        ('{"users": [', "JSON"),
        ("[" * 100_000, "JSON"),
        ("[1]", "LEAF's format"),
        ("null", "LEAF's format"),
        (wrong(users="gone"), "LEAF's format"),
        (wrong(users=[1]), "LEAF's format"),
        (wrong(user_data="gone"), "LEAF's format"),
        (wrong(user_data={}), "LEAF's format"),
        (wrong(user_data={"a": {"x": [[1]]}}), "LEAF's format"),
        (wrong(user_data={"a": {"x": [[1], [2]], "y": [0]}}), r"user 'a'.*2 samples.*1 labels"),
        (wrong(users=[], num_samples=[], user_data={}), "has no users"),
    ],
)
def test_a_wrong_file_is_answered_by_one_sentence(tmp_path, content, words):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(InputError) as error:
        read_leaf(path)
    assert one_sentence(error.value).startswith(str(path))
    assert re.search(words, str(error.value))


@given(cut=st.integers(0, len(wrong()) - 1))
@settings(max_examples=40)
def test_a_file_cut_anywhere_is_answered_by_one_sentence(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("leaf") / "cut.json"
    path.write_text(wrong()[:cut])
    with pytest.raises(InputError, match="JSON"):
        read_leaf(path)


def test_a_user_in_two_files_is_refused(tmp_path):
    write_leaf(tmp_path / "a.json", USERS)
    write_leaf(tmp_path / "b.json", {"f_2": ([[1.0]], [0])})
    with pytest.raises(InputError, match=r"user 'f_2'.*second"):
        read_leaf(tmp_path)


def test_a_train_folder_without_a_test_folder_is_refused(tmp_path):
    write_leaf(tmp_path / "train" / "a.json", USERS)
    with pytest.raises(InputError, match=r"train.*test"):
        read_leaf(tmp_path)


def test_the_papers_merging():
    # 200 users four by four are 50 devices; 772 users fifteen by fifteen are 51 and a last one of seven.
    assert np.bincount(merged(200, 50)).tolist() == [4] * 50
    assert np.bincount(merged(772, 52)).tolist() == [15] * 51 + [7]


@given(users=st.integers(1, 300), devices=st.integers(1, 300))
def test_merging_keeps_the_order_and_gives_exactly_so_many_devices(users, devices):
    each = -(-users // devices)
    if devices > users or -(-users // each) != devices:
        with pytest.raises(InputError, match=r"^devices is"):
            merged(users, devices)
        return
    device = merged(users, devices)
    assert len(device) == users
    assert (np.diff(device) >= 0).all()
    sizes = np.bincount(device)
    assert len(sizes) == devices
    assert (sizes[:-1] == sizes[0]).all()
    assert 1 <= sizes[-1] <= sizes[0]
