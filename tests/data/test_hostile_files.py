"""Files that would cost more than they are worth: each is refused in one sentence, before anything is allocated."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

import upcycled as up
from tests.wording import has_all
from upcycled._utils import files as compressed
from upcycled.core import machine as allocation
from upcycled.core.errors import InputError
from upcycled.data.sets.femnist import read_idx

X = np.arange(8, dtype=np.float32).reshape(4, 2)
GOOD = {"train_x": X, "train_y": np.array([0, 1, 0, 1]), "train_client": np.array([0, 0, 1, 1])}


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def archive(path, compression=zipfile.ZIP_DEFLATED, **members):
    """Write an .npz of arrays, or of bytes that only are said to be some."""
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in (GOOD | members).items():
            file.writestr(f"{name}.npy", content if isinstance(content, bytes) else npy(content))
    return path


def header(shape, descr="<f4"):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + text.encode()


def refused(path):
    with pytest.raises(InputError) as error:
        up.data.load(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_good_archive_is_read(tmp_path):
    assert up.data.load(archive(tmp_path / "a.npz")).num_clients == 2


@pytest.mark.parametrize(
    "values",
    [
        np.array(["a", "b", "a", "b"]),
        np.array([b"a"] * 4),
        np.array(["2020-01-01"] * 4, "M8[D]"),
        np.zeros(4, dtype=[("a", "i4"), ("b", "f4")]),
        np.zeros(4, dtype="V3"),
        np.zeros(4, dtype=complex),
    ],
    ids=lambda values: str(values.dtype),
)
@pytest.mark.parametrize("name", ["train_x", "train_y", "vectors"])
def test_what_is_no_number_is_refused_wherever_numbers_belong(tmp_path, name, values):
    # Labels in words are told which argument takes them.
    must = "class numbers" if name == "train_y" and values.dtype.kind in "SU" else "numbers"
    assert must in refused(archive(tmp_path / "a.npz", **{name: values}))


@pytest.mark.parametrize("name", ["train_x", "train_y", "train_client", "schema", "client_names", "targets", "vectors"])
@pytest.mark.parametrize("content", [b"", b"hello", b"\x93NUMPY", npy(X)[:-1]], ids=repr)
def test_a_member_that_is_no_whole_array_is_refused(tmp_path, name, content):
    assert has_all(refused(archive(tmp_path / "a.npz", **{name: content})), "a.npz", "whole")


def test_a_header_that_asks_for_more_than_there_is_allocates_nothing(tmp_path):
    words = refused(archive(tmp_path / "a.npz", train_x=header((10**12, 2))))
    assert "must be a whole .npz file" in words


def test_an_archive_that_unpacks_into_far_more_than_itself_is_refused_unless_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "ALWAYS", 10_000)
    zeros = {"train_x": np.zeros((2**17, 2), np.float32), "train_y": np.arange(2**17) % 2}
    path = archive(tmp_path / "a.npz", **zeros, train_client=np.zeros(2**17, np.int64))
    size = path.stat().st_size
    words = refused(path)
    assert f"has {size} bytes and unpacks into" in words
    assert "at most 100 times as many" in words
    monkeypatch.setenv(compressed.VARIABLE, "2000")
    assert up.data.load(path).train.num_rows == 2**17
    monkeypatch.setenv(compressed.VARIABLE, "many")
    assert has_all(refused(path), "UPCYCLED_MOST_UNPACKED", "'many'", "1000")


def test_an_archive_that_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(allocation, "memory_limit", lambda: 100)
    assert has_all(refused(archive(tmp_path / "a.npz", zipfile.ZIP_STORED)), "1 GB", "memory")


def idx(path, dimensions, data=b"", zipped=False):
    content = bytes([0, 0, 8, len(dimensions)]) + struct.pack(f">{len(dimensions)}I", *dimensions) + data
    path.write_bytes(gzip.compress(content) if zipped else content)
    return path


@pytest.mark.parametrize(("dimensions", "data"), [([1] * 255, b"1"), ([0] * 255, b""), ([1] * 33, b"1")])
def test_an_idx_of_too_many_dimensions_is_refused(tmp_path, dimensions, data):
    with pytest.raises(InputError, match=r"0, 0.*dimensions"):
        read_idx(idx(tmp_path / "a.idx", dimensions, data))


def test_an_idx_that_asks_for_more_than_it_has_is_refused_before_it_is_read(tmp_path):
    with pytest.raises(InputError, match=r"header.*4294967295 bytes.*17"):
        read_idx(idx(tmp_path / "a.idx", [2**32 - 1, 1], b"12345"))


def test_a_gzipped_idx_that_unpacks_into_far_more_than_itself_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"4294967295.*100"):
        read_idx(idx(tmp_path / "a.gz", [2**32 - 1, 1], b"12345", zipped=True))


@pytest.mark.parametrize(("kind", "package"), [("parquet", "pyarrow"), ("excel", "openpyxl")])
def test_a_workbook_and_a_table_are_bounded_too(kind, package, tmp_path, monkeypatch):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip(package)
    frame = pandas.DataFrame({"client": ["a"] * 2000, "x": [1.0] * 2000, "label": [0, 1] * 1000})
    path = tmp_path / {"parquet": "a.parquet", "excel": "a.xlsx"}[kind]
    getattr(frame, f"to_{kind}")(path, index=False)
    assert up.data.load(path).train.num_rows == 2000
    monkeypatch.setattr(compressed, "ALWAYS", 1000)
    monkeypatch.setenv(compressed.VARIABLE, "1")
    assert "times as many" in refused(path)


@pytest.mark.parametrize("path", ["a\0b.npz", "a" * 5000 + ".npz", Path("b\0.npz")])
def test_what_no_file_system_could_have_is_refused(path):
    words = refused(path)
    assert len(words) < 500
    assert words.isprintable()


def test_saving_where_no_file_can_be_is_refused():
    with pytest.raises(InputError, match="NUL character"):
        up.data.save(up.data.synthetic("iid", clients=2, sizes=5), "a\0.npz")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clients", 2**63 - 1),
        ("clients", 10**30),
        ("dim", 2**62),
        ("num_classes", 10**14),
        ("sizes", 2**63 - 1),
        ("sizes", [2**63 - 1, 2**63 - 2, 5]),
        ("sizes", 10**30),
    ],
)
def test_generated_data_that_no_memory_can_hold_are_refused(field, value):
    with pytest.raises(InputError, match=r"GB of memory or more, and there are \d+ GB$|must be an integer"):
        up.data.synthetic("iid", **{"clients": 3, field: value})


def test_estimates_are_what_the_arrays_then_have(monkeypatch):
    """300 samples of 20 float32 features and an int64 label: 300 (4 x 20 + 8) bytes."""
    monkeypatch.setattr(allocation, "memory_limit", lambda: 300 * 88)
    assert up.data.synthetic("iid", clients=3, sizes=100).train.num_rows == 270
    monkeypatch.setattr(allocation, "memory_limit", lambda: 300 * 88 - 1)
    with pytest.raises(InputError, match=r"sizes.*100.*samples"):
        up.data.synthetic("iid", clients=3, sizes=100)


def test_the_limit_is_the_smallest_that_anybody_sets(tmp_path, monkeypatch):
    files = (tmp_path / "max", tmp_path / "other")
    monkeypatch.setattr(allocation, "GROUPS", files)
    whole = allocation.memory_limit()
    files[0].write_text("max\n")
    assert allocation.memory_limit() == whole
    files[1].write_text("1048576\n")
    assert allocation.memory_limit() == 1048576
