import re
import sys

import numpy as np
import pandas as pd
import pytest

from tests.wording import has_all
from upcycled.core.errors import InputError
from upcycled.data import load
from upcycled.data.readers.tables import COLUMNS_AT_ONCE

FRAME = pd.DataFrame(
    {
        "client": ["bob", "ann", "bob", "ann", "bob"],
        "age": [30, 40, 50, 60, 70],
        "height": [1.5, 1.6, 1.7, 1.8, 1.9],
        "label": [0, 1, 1, 0, 2],
        "part": ["train", "train", "test", "train", "train"],
    }
)


def write(frame, path):
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return path


@pytest.fixture(params=[".csv", ".parquet"])
def file(request, tmp_path):
    return lambda frame: write(frame, tmp_path / f"set{request.param}")


def message(call):
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_table_becomes_clients(file):
    data = load(file(FRAME.drop(columns="part")))
    assert data.client_names == ("ann", "bob")
    assert data.feature_names == ("age", "height")
    assert data.train.x.dtype == np.float32
    assert data.train.x[:, 0].tolist() == [40, 60, 30, 50, 70]
    assert data.train.x[:, 1].tolist() == [np.float32(height) for height in (1.6, 1.8, 1.5, 1.7, 1.9)]
    assert data.train.y.tolist() == [1, 0, 0, 1, 2]
    assert data.sizes.tolist() == [2, 3]
    assert data.test is None


@pytest.mark.parametrize("words", [("train", "test"), (0, 1), ("Train", "TEST "), (False, True), (0.0, 1.0)])
def test_a_split_column_makes_the_test_part(file, words):
    part = [words[1] if row == "test" else words[0] for row in FRAME["part"]]
    data = load(file(FRAME.assign(part=part)), split="part")
    assert data.test is not None
    assert (data.sizes.tolist(), data.test.sizes.tolist()) == ([2, 2], [0, 1])
    assert data.test.x.tolist() == [[50, np.float32(1.7)]]
    assert data.test.y.tolist() == [1]
    assert data.num_classes == 3


def test_a_test_fraction_is_split_off_each_client(file):
    data = load(file(FRAME.drop(columns="part")), test_fraction=0.5)
    assert data.test is not None
    assert (data.sizes.tolist(), data.test.sizes.tolist()) == ([1, 1], [1, 2])


def test_columns_can_have_other_names_and_features_be_chosen(file):
    frame = FRAME.rename(columns={"client": "who", "label": "y"})
    data = load(file(frame), client="who", label="y", features=["height"])
    assert data.feature_names == ("height",)
    assert data.train.x.shape == (5, 1)


def test_features_of_whole_numbers_stay_integers(file):
    data = load(file(FRAME), features=["age"])
    assert data.train.x.dtype == np.int64
    assert data.train.x.ravel().tolist() == [40, 60, 30, 50, 70]


def test_numbers_for_clients_sort_as_numbers(file):
    data = load(file(FRAME.assign(client=[10, 9, 10, 9, 100])), features=["age"])
    assert data.client_names is None
    assert data.client_ids is not None
    assert data.client_ids.tolist() == [9, 10, 100]


def test_numbers_with_leading_zeros_are_names(tmp_path):
    data = load(write(FRAME.assign(client=["7", "007", "7", "007", "8"]), tmp_path / "a.csv"), features=["age"])
    assert data.client_names == ("007", "7", "8")
    assert data.sizes.tolist() == [2, 2, 1]


def test_booleans_are_features(file):
    data = load(file(FRAME.assign(age=[True, False, True, True, False])), features=["age"])
    assert data.train.x.dtype == np.float32
    assert data.train.x.ravel().tolist() == [0, 1, 1, 1, 0]


def test_nullable_columns_are_read_and_missing_values_refused(tmp_path):
    whole = FRAME.astype({"age": "Int64", "label": "Int8"})
    assert load(write(whole, tmp_path / "a.parquet"), features=["age"]).train.x.dtype == np.int64
    hole = FRAME.assign(age=pd.array([30, None, 50, 60, 70], dtype="Int64"))
    path = write(hole, tmp_path / "b.parquet")
    assert message(lambda: load(path, features=["age"])) == (
        f"{path}: x of client 'ann' is nan at row 0, column 'age' (counted from 0), "
        f"but every feature must be a finite number"
    )


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (
            {},
            {"client": "clinet"},
            r"client.*'clinet'.*column; did you mean 'client'\?.*client,",
        ),
        ({}, {"label": "lable"}, r"label.*'lable'.*column; did you mean 'label'\?"),
        ({}, {"split": "spilt"}, r"split.*'spilt'.*column"),
        ({}, {"features": ["heigth"]}, r"features.*'heigth'.*column; did you mean"),
        (
            {},
            {"features": ["label"]},
            r"features.*'label'.*column.*client, label.*split",
        ),
        (
            {},
            {"features": ["age", "age"]},
            r"features.*\['age', 'age'\].*columns",
        ),
        ({}, {"features": []}, r"features.*columns"),
        (
            {},
            {"label": "client"},
            r"client, label.*split.*\['client', 'client'\].*columns",
        ),
        ({}, {"name": "a"}, r"name.*'a'.*\.npz"),
        ({}, {}, r"columns.*'part'.*'train'\).*features"),
        (
            {"age": ["30", "40", "old", "60", "70"]},
            {"split": "part"},
            r"columns.*'age'.*'old'\).*features",
        ),
        (
            {"label": ["cat", "dog", "cat", "dog", "cat"]},
            {"split": "part"},
            r"'cat'.*label column 'label'.*row 0.*labels",
        ),
        (
            {"label": [0, 1, 0.5, 1, 0]},
            {"features": ["age"]},
            r"client 'bob'.*0\.5.*row 1.*labels.*0",
        ),
        (
            {"label": [0, 1, None, 1, 0]},
            {"features": ["age"]},
            r"client 'bob'.*nan.*row 1.*labels.*0",
        ),
        (
            {"height": [1.5, 1.6, np.inf, 1.8, 1.9]},
            {"features": ["age", "height"]},
            r"client 'bob'.*inf.*row 1, column 'height'",
        ),
        (
            {"client": ["bob", "ann", None, "ann", "bob"]},
            {"features": ["age"]},
            r"client.*column 'client'.*row 2.*row",
        ),
        (
            {"part": ["train", "test", "train", "dev", "train"]},
            {"split": "part"},
            r"'dev'.*split column 'part'.*'train'.*'test'.*0.*1",
        ),
        (
            {"part": ["train", "test", "train", "test", "train"]},
            {"split": "part"},
            r"client 'ann'.*test samples.*training samples",
        ),
    ],
)
def test_a_table_that_cannot_be_used_is_answered_by_its_sentence(file, change, options, sentence):
    path = file(FRAME.assign(**change))
    said = message(lambda: load(path, **options))
    assert said.startswith(str(path))
    assert re.search(sentence, said)


def test_only_the_first_of_many_columns_are_listed(tmp_path):
    wide = pd.DataFrame({f"pixel{i}": [0, 1] for i in range(800)} | {"clients": [0, 1], "label": [0, 1]})
    text = message(lambda: load(write(wide, tmp_path / "a.csv")))
    assert "did you mean 'clients'?" in text
    assert text.endswith("pixel59 and 742 more)")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"\.csv.*\.csv.*\(No columns.*parse"),
        ("client,label,a\n1,0,2\n1,0,2,9,9\n", r"read.*\.csv"),
        ("client,label,a\n1,0,2,9\n1,0,2,9\n", r"rows.*header"),
        ("client,label,a\n", r"rows.*sample"),
        ("client,label\n1,0\n", r"columns beside client, label.*features"),
        # cut off in the middle of the last row
        ("client,label,a\n1,0,2\n2,1", r"client 2.*nan.*row 0, column 'a'"),
    ],
)
def test_a_csv_that_is_not_whole_is_refused(tmp_path, text, sentence):
    path = tmp_path / "a.csv"
    path.write_text(text)
    found = message(lambda: load(path))
    assert found.startswith(str(path))
    assert re.search(sentence, found)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"client,label,a\n\xff\xfe\x00\x81,0,1\n")
    assert "UTF-8" in message(lambda: load(tmp_path / "a.csv"))


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_truncated_parquet_is_refused(tmp_path, keep):
    path = write(FRAME, tmp_path / "a.parquet")
    raw = path.read_bytes()
    path.write_bytes(raw[: int(keep * len(raw)) if keep < 1 else keep])
    assert has_all(message(lambda: load(path)), path, ".parquet", ".parquet")


@pytest.mark.parametrize(
    ("name", "missing", "needed"), [("a.csv", "pandas", "pandas"), ("a.parquet", "pyarrow", "pandas and pyarrow")]
)
def test_a_missing_library_names_the_extra(tmp_path, monkeypatch, name, missing, needed):
    path = write(FRAME, tmp_path / name)
    for module in [m for m in sys.modules if m == missing or m.startswith(f"{missing}.")]:
        monkeypatch.setitem(sys.modules, module, None)
    assert has_all(message(lambda: load(path)), path, needed, "'.[data]'")


def test_a_client_may_be_called_like_a_missing_value(tmp_path):
    names = ["NA", "null", "None", "nan", "N/A"]
    (tmp_path / "a.csv").write_text(
        "client,label,a\n" + "".join(f"{name},{i % 2},{i}\n" for i, name in enumerate(names))
    )
    data = load(tmp_path / "a.csv")
    assert data.client_names == tuple(sorted(names))
    assert [names[int(x)] for x in data.train.x.ravel()] == sorted(names)


@pytest.mark.parametrize("text", ["client,label,a\nx,0,1\n,1,2\n", "a,label,client\n1,0,x\n2,1\n"])
def test_an_empty_cell_is_a_missing_client(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    assert has_all(
        message(lambda: load(tmp_path / "a.csv")), tmp_path / "a.csv", "client", "column 'client'", "row 1", "row"
    )


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_another_encoding_is_refused_with_the_right_one(tmp_path, encoding):
    (tmp_path / "a.csv").write_bytes("client,label,a\nMüller,0,1\n".encode(encoding))
    assert has_all(message(lambda: load(tmp_path / "a.csv")), tmp_path / "a.csv", "UTF-8", ".csv", "UTF-8")


@pytest.mark.parametrize(("mark", "name"), [(";", "';'"), ("\t", "a tab")])
@pytest.mark.parametrize("decimal", [".", ","])
def test_another_separator_is_refused_with_the_right_one(tmp_path, mark, name, decimal):
    rows = (("client", "label", "a"), ("x", "0", f"1{decimal}5"), ("x", "1", f"2{decimal}5"))
    (tmp_path / "a.csv").write_text("".join(mark.join(row) + "\n" for row in rows))
    assert has_all(message(lambda: load(tmp_path / "a.csv")), tmp_path / "a.csv", name, "columns")


@pytest.mark.parametrize(
    "kinds", ["iii", "bfi", *(pytest.param(one, marks=pytest.mark.slow) for one in ("ifi", "ggg", "gfu"))]
)
def test_a_wide_table_has_every_value_in_its_column(kinds, file):
    """More columns than are taken at once, of whole numbers, fractions, truths, gaps and unsigned ones, in turn."""
    made = {"i": int, "f": lambda value: value + 0.5, "b": lambda value: value % 2 == 0, "g": int, "u": int}
    types = {"g": "Int64", "u": "uint8"}
    columns = {}
    for j in range(2 * COLUMNS_AT_ONCE + 3):
        kind = kinds[j % len(kinds)]
        values = [made[kind](i * 7 + j % 50) for i in range(4)]
        columns[f"f{j}"] = pd.Series(values, dtype=types.get(kind))
    frame = pd.DataFrame({"client": ["a", "a", "b", "b"], "label": [0, 1, 0, 1], **columns})
    data = load(file(frame))
    np.testing.assert_array_equal(data.train.x, np.array(list(columns.values()), dtype=np.float64).T)
    assert data.feature_names == tuple(columns)


def test_names_for_clients_that_have_names_are_refused_with_one_of_theirs(file):
    path = file(FRAME.drop(columns="part"))
    assert "numbered 0 to 1, but one is called 'ann'" in message(lambda: load(path, client_names=["a", "b"]))
    assert "numbered 0 to 2, but 2 clients are found" in message(lambda: load(path, client_names=["a", "b", "c"]))
