"""Copies of a sample stay on one side of a split, and rows that merely look alike are left alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcycled.cli.main import main
from upcycled.data import FederatedData, load, partition, save, synthetic
from upcycled.data.lint import hints
from upcycled.data.splits import TEST, held_out, leaders, row_hashes


def data_of(x, sizes, **options):
    x = np.asarray(x)
    y = np.arange(len(x)) % 2
    return FederatedData.from_flat(x, y, np.concatenate([[0], np.cumsum(sizes)]), **options)


def rows_of(shards):
    return {row.tobytes() for row in shards.x}


def with_copies(seed, sizes, width=4, share=0.2):
    """Normal draws, some of which are replaced by one of the first few."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((sum(sizes), width)).astype(np.float32)
    again = rng.random(len(x)) < share
    x[again] = x[rng.integers(0, len(x), int(again.sum()))]
    return data_of(x, sizes)


@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=8),
    st.floats(0.05, 0.6),
    st.integers(0, 2**40),
)
def test_no_copy_is_on_both_sides_and_every_client_keeps_a_sample(sizes, fraction, seed):
    data = with_copies(seed, sizes)
    first = [next(j for j in range(len(data.train.x)) if (data.train.x[j] == row).all()) for row in data.train.x]
    # The rule, counted anew: half of the rows distinct, no row more often than the root of their number.
    uses = np.bincount(first, minlength=len(first))
    is_sane = 2 * np.count_nonzero(uses) > len(first) and uses.max() ** 2 <= len(first)
    tested, validated = data.split(fraction, seed), data.with_validation(fraction, seed)
    for kept, held in ((tested.train, tested.test), (validated.train, validated.validation)):
        assert kept.sizes.min() >= 1
        if held is None:
            continue
        assert (kept.sizes + held.sizes).tolist() == sizes
        if is_sane:
            assert not rows_of(kept) & rows_of(held)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.floats(0.0, 0.9), st.integers(0, 2**40))
def test_without_copies_the_split_is_the_one_client_by_client(sizes, fraction, seed):
    x = np.random.default_rng(seed).standard_normal((sum(sizes), 3)).astype(np.float32)
    data = data_of(x, sizes, num_classes=2)
    mask = held_out(data.train.offsets, fraction, seed, TEST)
    after = data.split(fraction, seed)
    assert np.array_equal(after.train.x, x[~mask])
    assert np.array_equal(np.zeros((0, 3)) if after.test is None else after.test.x, x[mask])


def test_only_copies_move_to_the_side_of_the_first_of_them():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 3)).astype(np.float32)
    mask = held_out(np.array([0, 50, 100]), 0.3, 0, TEST)
    stays, goes = int(np.flatnonzero(~mask)[0]), int(np.flatnonzero(mask)[0])
    late = np.flatnonzero(mask)[-1], np.flatnonzero(~mask)[-1]
    x[late[0]], x[late[1]] = x[stays], x[goes]
    expected = mask.copy()
    expected[late[0]], expected[late[1]] = False, True
    after = data_of(x, [50, 50]).split(0.3)
    assert np.array_equal(after.test.x, x[expected])


def test_the_rows_of_a_table_with_three_binary_columns_are_samples_of_their_own():
    x = np.random.default_rng(1).integers(0, 2, (1000, 3))
    data = data_of(x, [400, 600])
    assert leaders(x) is None
    after = data.split(0.1)
    assert after.sizes.tolist() == [360, 540]
    assert np.array_equal(after.train.x, x[~held_out(data.train.offsets, 0.1, 0, TEST)])


def test_a_common_value_is_no_copy_beside_samples_that_are():
    x = np.random.default_rng(2).standard_normal((1000, 3)).astype(np.float32)
    x[::3] = 0  # 334 rows, more often than 31.6 = sqrt(1000)
    x[998] = x[1]
    found = leaders(x)
    assert found is not None
    assert np.flatnonzero(found != np.arange(1000)).tolist() == [998]
    assert found[998] == 1
    assert hints(data_of(x, [1000])) == [
        "1 of 1,000 training samples are copies of another; copies are held out together, but a run with real noise on "
        "private data does not look for them: they may be trained on and held out at once, and its epsilon is for one "
        "record, not for all its copies",
        "333 of 1,000 training samples are equal to another, too many to be taken for copies: "
        "each is held out by itself",
    ]


def test_what_the_data_says_about_copies_is_not_searched_for(monkeypatch):
    data = with_copies(0, [50, 50])
    plain = replace(data, has_copies=False)
    mask = held_out(data.train.offsets, 0.3, 0, TEST)
    assert not np.array_equal(data.split(0.3).train.x, data.train.x[~mask])
    monkeypatch.setattr("upcycled.data.splits.leaders", lambda _: pytest.fail("it looked"))
    assert np.array_equal(plain.split(0.3).train.x, data.train.x[~mask])
    assert hints(plain) == []
    assert synthetic("iid", clients=3, sizes=10).has_copies is False
    data.split(0.0)  # nothing is held out


@pytest.mark.parametrize("said", [None, False, True])
def test_a_file_keeps_what_is_said_about_copies(tmp_path, said):
    save(replace(with_copies(0, [20]), has_copies=said), tmp_path / "a.npz")
    assert load(tmp_path / "a.npz").has_copies is said


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.bool_])
def test_hashes_tell_rows_apart_whatever_their_type(dtype):
    x = np.array([[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0], [1, 1, 1]], dtype=dtype)
    hashes = row_hashes(x)
    assert np.array_equal(hashes[:, None] == hashes, (x[:, None] == x).all(axis=-1))
    assert np.array_equal(row_hashes(np.asfortranarray(x)), hashes)


def test_rows_are_hashed_alike_in_every_block():
    x = np.repeat(np.arange(7.0, dtype=np.float32)[:, None], 300_000, axis=1)  # 3 rows to a block
    x = np.concatenate([x, x[::-1]])
    hashes = row_hashes(x)
    assert len(set(hashes.tolist())) == 7
    assert hashes[:7].tolist() == hashes[7:][::-1].tolist()


def test_test_samples_that_are_training_samples_are_counted():
    x = np.random.default_rng(3).standard_normal((40, 2)).astype(np.float32)
    y = np.arange(40) % 2
    data = FederatedData.from_flat(x[:30], y[:30], [0, 30], test=(x[20:], y[20:], [0, 20]))
    assert hints(data) == ["10 of 20 test samples are equal to a training sample"]


def test_the_real_images_dealt_anew_have_no_copy_on_two_sides(shared_data):
    with np.load(shared_data / "femnist10_50dev_wrap.npz") as file:
        x = np.concatenate([file["train_x"], file["test_x"]])
        y = np.concatenate([file["train_y"], file["test_y"]])
    data = FederatedData.from_pool(x, y, partition.iid(y, 5), test_fraction=0.1)
    assert not rows_of(data.train) & rows_of(data.test)
    assert abs(data.test.num_rows / len(x) - 0.1) < 0.01
    more = data.with_validation(0.1)
    assert not rows_of(more.train) & rows_of(more.validation)
    assert abs(more.validation.num_rows / data.train.num_rows - 0.1) < 0.01


def test_data_read_as_private_ones_keep_the_hint_and_nothing_is_said_to_be_held_out_together(tmp_path, capsys):
    x = np.random.default_rng(5).uniform(0, 1, 40)
    x[30:34] = x[:4]
    (tmp_path / "rome.csv").write_text("age,ill\n" + "".join(f"{value:.6f},{i % 2}\n" for i, value in enumerate(x)))
    (tmp_path / "schema.toml").write_text(
        '[columns.age]\nkind = "number"\nbounds = [0, 1]\n[columns.ill]\nkind = "label"\nclasses = ["0", "1"]\n'
    )
    words = ["data", "check", str(tmp_path), "--schema", str(tmp_path / "schema.toml")]
    said = []
    for more in ([], ["--repair"]):
        assert main([*words, *more]) == 0
        said += [line for line in capsys.readouterr().out.splitlines() if "copies" in line]
    plain, repaired = said
    assert plain.startswith("hint: 4 of 40 training samples are copies of another; copies are held out together, but a")
    assert repaired.startswith("hint: 4 of 40 training samples are copies of another; a run with real noise on private")
    assert repaired.endswith("its epsilon is for one record, not for all its copies")
    assert main([*words, "--repair", "--test-fraction", "0.5"]) == 0
    assert "test samples are equal to a training sample" in capsys.readouterr().out


def test_generated_data_and_data_said_to_have_no_copies_are_not_searched():
    data = with_copies(0, [50, 50])
    assert any("copies of another" in words for words in hints(data))
    assert not any("copies" in words for words in hints(replace(data, has_copies=False)))
