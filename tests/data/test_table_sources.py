"""Tables of many sites: a folder, a list, a data frame; the file's name is the client where no column says so."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest

from tests.wording import has_all
from upcycled.core.errors import InputError
from upcycled.data import load


def message(call):
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def sites(tmp_path):
    folder = tmp_path / "sites"
    folder.mkdir()
    (folder / "rome.csv").write_text("age,dose,label\n31,1.5,0\n40,2.5,1\n")
    (folder / "riga.csv").write_text("dose,age,label\n3.5,50,1\n")
    pd.DataFrame({"age": [60], "dose": [4.5], "label": [0]}).to_parquet(folder / "bern.parquet")
    (folder / "readme.txt").write_text("not a table")
    (folder / ".hidden.csv").write_text("not a table")
    return folder


def test_a_folder_is_a_client_for_each_file(sites):
    data = load(sites)
    assert data.client_names == ("bern", "riga", "rome")
    assert data.feature_names == ("age", "dose")
    # Columns by name, in the order of the first file, whatever their order elsewhere.
    assert data.train.x.tolist() == [[60, 4.5], [50, 3.5], [31, 1.5], [40, 2.5]]
    assert data.train.y.tolist() == [0, 1, 0, 1]


def test_a_list_is_a_client_for_each_file(sites):
    data = load([sites / "rome.csv", str(sites / "riga.csv")])
    assert data.client_names == ("riga", "rome")
    assert load([sites / "rome.csv"]).client_names == ("rome",)


def test_a_client_column_goes_before_the_names_of_files(sites):
    for file in ("rome", "riga"):
        text = (sites / f"{file}.csv").read_text().splitlines()
        (sites / f"{file}.csv").write_text(
            "\n".join([f"client,{text[0]}", *(f"ward-{file[0]},{row}" for row in text[1:])])
        )
    files = [sites / "rome.csv", sites / "riga.csv"]
    assert load(files).client_names == ("ward-r",)
    assert has_all(message(lambda: load(files, client="ward")), "file", "column")


def test_a_data_frame_is_a_table():
    frame = pd.DataFrame({"client": ["b", "a"], "age": [1.5, 2.0], "label": [0, 1]}, index=[7, 3])
    for table in (frame, pl.from_pandas(frame)):
        data = load(table)
        assert (data.client_names, data.train.x.tolist()) == (("a", "b"), [[2.0], [1.5]])
    assert has_all(
        message(lambda: load(frame.rename(columns={"client": "who"}))), "table: client", "'client'", "table", "column"
    )
    twice = pd.concat([frame, frame[["age"]]], axis=1)
    assert has_all(message(lambda: load(twice)), "'age'", "header")


def test_what_is_wrong_with_many_files_is_one_sentence(sites, tmp_path):
    (sites / "oslo.csv").write_text("age,label\n1,0\n")
    assert has_all(message(lambda: load(sites)), sites / "oslo.csv", "column 'dose'", sites / "bern.parquet")
    (sites / "oslo.csv").write_text("age,dose,label\n")
    assert has_all(message(lambda: load(sites)), sites / "oslo.csv", "rows", "site")
    (sites / "oslo.csv").rename(sites / "rome.parquet")
    assert has_all(message(lambda: load(sites)), "rome.parquet", "client's")
    (tmp_path / "empty").mkdir()
    assert has_all(message(lambda: load(tmp_path / "empty")), tmp_path / "empty", ".csv, .parquet, .xlsx", "site")
    assert has_all(message(lambda: load([])), "path", "list")
    assert has_all(message(lambda: load([sites / "no.csv"])), "no.csv", "file")


def test_two_columns_of_one_name_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("client,age,age,label\n1,2,3,0\n")
    assert has_all(message(lambda: load(tmp_path / "a.csv")), tmp_path / "a.csv", "'age'", "header", "column")


def test_excel_without_its_reader_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    refused = message(lambda: load(tmp_path / "a.xlsx"))
    assert has_all(refused, tmp_path / "a.xlsx", "'.[excel]'")


def test_excel_is_read_where_its_reader_is(tmp_path):
    pytest.importorskip("openpyxl", reason="the reader of .xlsx is not installed")
    frame = pd.DataFrame({"client": ["a", "b"], "age": [31, 40], "seen": pd.to_datetime(["2020-01-01", "2020-01-11"])})
    frame.assign(label=[0, 1]).to_excel(tmp_path / "a.xlsx", index=False)
    assert load(tmp_path / "a.xlsx", features=["age"]).train.x.ravel().tolist() == [31, 40]
    columns = {"client": {"kind": "client"}, "age": {"kind": "number", "bounds": [0, 80]}}
    columns |= {"seen": {"kind": "date", "bounds": ["2020-01-01", "2020-01-11"]}}
    columns |= {"label": {"kind": "label", "classes": [0, 1]}}
    data = load(tmp_path / "a.xlsx", schema={"columns": columns})
    assert data.train.x.tolist() == [[np.float32(2 * 31 / 80 - 1), -1.0], [0.0, 1.0]]
    (tmp_path / "b.xlsx").write_bytes(b"PK")
    assert has_all(message(lambda: load(tmp_path / "b.xlsx")), "b.xlsx", ".xlsx", ".xlsx")
