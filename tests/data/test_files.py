import numpy as np
import pytest

from tests.wording import has_all
from upcycled.core.errors import InputError
from upcycled.data import load, save, synthetic
from upcycled.data.loading import files_in, read_pool


def message(call):
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_path_that_is_no_data_file_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("1 2 3")
    (tmp_path / "folder.npz").mkdir()
    right = "but it must be a file that ends in .npz, .csv, .parquet, .xlsx"
    assert message(lambda: load(tmp_path / "no.npz")) == f"{tmp_path / 'no.npz'} does not exist, {right}"
    assert has_all(
        message(lambda: load(tmp_path / "folder.npz")), tmp_path / "folder.npz", ".csv, .parquet, .xlsx", "site"
    )
    assert has_all(
        message(lambda: load(tmp_path / "a.txt")), tmp_path / "a.txt", "'.txt'", ".npz, .csv, .parquet, .xlsx"
    )
    assert "does not exist" in message(lambda: load("https://example.org/a.csv"))


@pytest.mark.parametrize("name", ["a.npz", "a.parquet"])
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, name):
    (tmp_path / name).write_text("client,label,a\n0,1,2\n")
    kind = name[1:]
    assert message(lambda: load(tmp_path / name)).startswith(f"{tmp_path / name} cannot be read as {kind}, but it must")


def test_options_of_tables_are_refused_for_npz(tmp_path):
    save(synthetic("iid", clients=2, sizes=5), tmp_path / "a.npz")
    assert message(lambda: load(tmp_path / "a.npz", split="part")) == (
        f"{tmp_path / 'a.npz'}: split is 'part', but it must be left out: it is for a .csv or .parquet file"
    )


def test_bad_numbers_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    save(synthetic("iid", clients=2, sizes=5, test_fraction=0), path)
    assert has_all(message(lambda: load(path, test_fraction=2)), "test_fraction", "2")
    assert has_all(message(lambda: load(path, test_fraction=0.1, seed=-1)), "seed", "-1")


def test_a_pool_joins_all_parts_and_needs_no_clients(tmp_path):
    x, y = np.array([[0], [255], [51]], dtype=np.uint8), np.array([0, 1, 2])
    np.savez(tmp_path / "a.npz", train_x=x, train_y=y, train_src=y * 2, test_x=x[:1], test_y=y[:1], test_src=[9])
    pool = read_pool(tmp_path / "a.npz", column="src")
    assert pool.x.ravel().tolist() == [np.float32(v) for v in (0, 1, 0.2, 0)]
    assert pool.y.tolist() == [0, 1, 2, 0]
    assert pool.column is not None
    assert pool.column.tolist() == [0, 2, 4, 9]
    assert read_pool(tmp_path / "a.npz").column is None


def test_a_pool_from_a_table_does_not_take_the_client_for_a_feature(tmp_path):
    (tmp_path / "a.csv").write_text("client,label,a,b\n5,0,1,2\n6,1,3,4\n")
    assert read_pool(tmp_path / "a.csv").x.tolist() == [[1, 2], [3, 4]]
    pool = read_pool(tmp_path / "a.csv", column="b")
    assert pool.x.tolist() == [[1], [3]]
    assert pool.column is not None
    assert pool.column.tolist() == [2, 4]
    assert read_pool(tmp_path / "a.csv", features=["client", "b"]).x.tolist() == [[5, 2], [6, 4]]


def test_a_folder_is_listed_with_the_sets_in_its_files(tmp_path):
    array = np.zeros((1, 1))
    np.savez(tmp_path / "two.npz", b_train_x=array, a_train_x=array)
    np.savez(tmp_path / "one.npz", train_x=array, train_client=array)
    np.savez(tmp_path / "pool.npz", train_x=array)
    np.savez(tmp_path / "words.npz", words=array)
    (tmp_path / "broken.npz").write_bytes(b"PK")
    (tmp_path / "t.csv").write_text("a\n")
    (tmp_path / "notes.md").write_text("a\n")
    assert [(f.file, f.kind, f.sets, f.problem) for f in files_in(tmp_path)] == [
        ("broken.npz", "npz", (), "cannot be read"),
        ("one.npz", "npz", (), None),
        ("pool.npz", "npz", (), "no train_client, so samples to be dealt out first"),
        ("t.csv", "csv", (), None),
        ("two.npz", "npz", ("a", "b"), None),
        ("words.npz", "npz", (), "no train_x, so not a federated set"),
    ]
