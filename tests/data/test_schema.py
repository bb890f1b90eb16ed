"""A schema turns cells into numbers that can be worked out by hand, whatever stands in the rows beside them."""

from __future__ import annotations

import re
from datetime import date, datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest

from tests.wording import has_all
from upcycled.config.experiment import parse
from upcycled.core.errors import InputError
from upcycled.data import Schema, load
from upcycled.data.new_samples import features_by_schema
from upcycled.data.readers.raw_tables import RawTable
from upcycled.data.schema.encoding import encode
from upcycled.data.schema.schema import as_schema

COLUMNS = {
    "site": {"kind": "client"},
    "age": {"kind": "number", "bounds": [0, 100], "gap": 25},
    "sex": {"kind": "category", "values": ["f", "m"], "gap": "other"},
    "seen": {"kind": "date", "bounds": ["2020-01-01", "2020-01-11"], "formats": ["%Y-%m-%d", "%d.%m.%Y"]},
    "note": {"kind": "ignored"},
    "ill": {"kind": "label", "classes": ["no", "yes"]},
}


def message(call):
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def schema(**changes):
    merged = {name: {**table, **changes.get(name, {})} for name, table in COLUMNS.items()}
    return Schema.from_dict({"columns": merged | {name: changes[name] for name in changes if name not in COLUMNS}})


def encoded(columns, by=None, with_labels=False):
    arrays = {name: np.array(values, dtype=object) for name, values in columns.items()}
    return encode(by or schema(), RawTable("t", "t", arrays, len(next(iter(arrays.values())))), with_labels=with_labels)


def test_the_numbers_of_every_kind_by_hand():
    made = encoded(
        {"age": ["0", "75", "130", "-3", ""], "sex": ["f", " m", "x", "f", "NA"], "seen": ["2020-01-01"] * 5}
    )
    # 2 (v - 0) / 100 - 1, clipped to the bounds; a gap is 25 -> -0.5, and says so in the column beside it.
    assert made.x[:, 0].tolist() == [-1.0, 0.5, 1.0, -1.0, -0.5]
    assert made.x[:, 1].tolist() == [0, 0, 0, 0, 1]
    # f, m, other, is missing
    assert made.x[:, 2:6].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 1, 1]]
    names = ("age", "age is missing", "sex=f", "sex=m", "sex=other", "sex is missing", "seen")
    assert schema().feature_names == names
    assert made.x.dtype == np.float32


@pytest.mark.parametrize("kind", ["number", "label"])
def test_bounds_beyond_all_floats_are_refused_in_a_sentence(kind):
    said = message(lambda: Schema.from_dict({"columns": {"a": {"kind": kind, "bounds": [0, 10**400]}}}))
    assert "columns.a.bounds" in said
    assert "two finite numbers" in said


def test_a_date_is_days_from_its_first_bound_in_any_of_its_forms():
    days = ["2020-01-01", "6.1.2020", "11.01.2020", "2021-05-05", "1999-12-31"]
    made = encoded({"age": ["1"] * 5, "sex": ["f"] * 5, "seen": days})
    # 2 days / 10 - 1
    assert made.x[:, -1].tolist() == [-1.0, 0.0, 1.0, 1.0, -1.0]
    typed = [date(2020, 1, 6), datetime(2020, 1, 6, 23, 59), pd.Timestamp("2020-01-06"), "2020-01-06", "06.01.2020"]
    assert encoded({"age": ["1"] * 5, "sex": ["f"] * 5, "seen": typed}).x[:, -1].tolist() == [0.0] * 5


def test_one_rows_content_never_changes_anothers_numbers():
    strange = ["", "x", "1e400", "nan", "999", "1,5", "0x10", "٣"]
    rows = {"age": ["40"], "sex": ["m"], "seen": ["2020-01-03"]}
    alone = encoded(rows).x[0]
    for word in strange:
        made = encoded({name: [values[0], word] for name, values in rows.items()})
        assert made.x[0].tobytes() == alone.tobytes()
        assert np.isfinite(made.x).all()
        assert (np.abs(made.x) <= 1).all()


def test_a_gap_without_a_constant_is_the_middle_and_a_problem():
    made = encoded({"age": ["1"], "sex": ["f"], "seen": [""]})
    assert made.x[0, -1] == 0.0
    (problem,) = made.problems
    assert has_all(problem.said, "column 'seen'", "gap", "row 0")
    assert problem.mend == '[columns.seen] gap = 2020-01-06\nfrom_data = ["gap"]'
    assert schema(seen={"gap": "2020-01-06"}).columns["seen"].gap == date(2020, 1, 6)


def test_new_rows_with_a_value_in_other_capitals_are_warned_about_and_a_wrong_one_mends_no_schema():
    def table(**cells):
        rows = {"age": ["1"], "sex": ["F"], "seen": ["2020-01-02"]} | cells
        return RawTable("new.csv", None, {name: np.array(values, dtype=object) for name, values in rows.items()}, 1)

    with pytest.warns(UserWarning, match=r"new.csv: column 'sex'.*'F'.*listed.*counts"):
        assert features_by_schema(table(), schema())[0, 2:5].tolist() == [0, 0, 1]
    said = message(lambda: features_by_schema(table(age=["old"]), schema()))
    assert has_all(said, "column 'age'", "'old'")
    assert "schema:" not in said


def test_new_rows_outside_of_bounds_are_answered_with_a_warning_for_each_column():
    columns = {"age": ["810", "1", "-3"], "sex": ["f"] * 3, "seen": ["2020-01-02", "2031-05-05", "2020-01-02"]}
    arrays = {name: np.array(values, dtype=object) for name, values in columns.items()}
    with pytest.warns(UserWarning, match="clipped") as warned:
        x = features_by_schema(RawTable("new.csv", None, arrays, 3), schema())
    assert [str(one.message).split(", outside of its bounds")[0] for one in warned] == [
        "new.csv: column 'age' holds '810' at row 0 (counted from 0) and 1 more such",
        "new.csv: column 'seen' holds '2031-05-05' at row 1 (counted from 0)",
    ]
    assert x[:, 0].tolist()[::2] == [1.0, -1.0]


def test_a_categorys_own_values_are_no_gaps():
    own = schema(sex={"values": ["NA", "m"], "gap": None} | {"gap": "other"})
    made = encoded({"age": ["1"] * 2, "sex": ["NA", ""], "seen": ["2020-01-01"] * 2}, own)
    assert made.x[:, 2:6].tolist() == [[1, 0, 0, 0], [0, 0, 1, 1]]


def test_values_may_be_numbers_in_the_file_and_in_the_table():
    own = schema(sex={"values": [1, 2], "gap": 1})
    made = encoded({"age": [1.0] * 4, "sex": [1, 2.0, "2.0", None], "seen": ["2020-01-01"] * 4}, own)
    assert made.x[:, 2:5].argmax(axis=1).tolist() == [0, 1, 1, 0]


def test_decimal_commas_and_other_separators_are_the_schemas_to_say(tmp_path):
    (tmp_path / "a.csv").write_bytes("Größe;y\n1,5;no\n1.000,5;yes\n".encode("latin-1"))
    own = {
        "columns": {"Größe": {"kind": "number", "bounds": [0, 2001]}, "y": {"kind": "label", "classes": ["no", "yes"]}}
    }
    plain = message(lambda: load(tmp_path / "a.csv", schema=own))
    assert "is no text in utf-8" in plain
    assert 'say encoding = "latin-1" in the schema' in plain
    assert 'say separator = ";" in the schema' in message(
        lambda: load(tmp_path / "a.csv", schema=own | {"encoding": "latin-1"})
    )
    data = load(tmp_path / "a.csv", schema=own | {"encoding": "latin-1", "separator": ";", "decimal": ","})
    assert data.train.x.ravel().tolist() == [np.float32(3 / 2001 - 1), np.float32(2 * 1000.5 / 2001 - 1)]


def test_labels_are_classes_or_numbers_in_their_own_unit():
    table = pd.DataFrame({"a": [0.5, 1.0], "stay": [3.0, 400.0], "who": ["x", "y"]})
    columns = {"who": {"kind": "client"}, "a": {"kind": "number", "bounds": [0, 1]}, "stay": {"kind": "label"}}
    data = load(table, schema={"columns": columns})
    assert (data.targets, data.train.y.tolist()) == ("numbers", [3.0, 400.0])
    columns["stay"] = {"kind": "label", "bounds": [0, 365]}
    assert load(table, schema={"columns": columns}).train.y.tolist() == [3.0, 365.0]
    columns["b"] = {"kind": "label"}
    several = load(table.assign(b=[1, 2]), schema={"columns": columns})
    assert several.train.y.tolist() == [[3.0, 1.0], [365.0, 2.0]]


def test_repaired_data_of_any_content_have_the_same_shape_and_only_notes_tell():
    rows = {"site": ["a", "a", "b"], "age": ["1", "2", "3"], "sex": ["f", "m", "f"]}
    rows |= {"seen": ["2020-01-01"] * 3, "ill": ["no", "yes", "no"]}
    for column, word in (("age", "x"), ("sex", ""), ("seen", "soon"), ("ill", "perhaps"), ("ill", ""), ("age", "1e9")):
        frame = pd.DataFrame({**rows, column: [word, *rows[column][1:]]})
        data = load(frame, schema=schema(), repair=True)
        assert (data.sizes.tolist(), data.inferred, data.has_copies) == ([2, 1], frozenset(), False)
        assert (np.abs(data.train.x) <= 1).all()
        assert data.train.y.tolist() == [0, 1, 0]
    assert any("age" in words for words in data.notes)
    # The shape of a table is public, and refused.
    assert "column 'age'" in message(lambda: load(pd.DataFrame(rows).drop(columns="age"), schema=schema(), repair=True))


def test_a_schema_comes_back_from_plain_values_and_from_its_file(tmp_path):
    import tomli_w

    known = schema()
    assert Schema.from_dict(known.plain()) == known
    (tmp_path / "s.toml").write_text(tomli_w.dumps(known.plain()))
    assert Schema.read(tmp_path / "s.toml") == known
    assert as_schema(tmp_path / "s.toml").fingerprint == known.fingerprint


def test_a_fingerprint_is_of_what_numbers_mean():
    known = schema().fingerprint
    assert schema(age={"from_data": ["bounds"]}).fingerprint == known
    assert Schema.from_dict(schema().plain() | {"separator": ";", "encoding": "latin-1"}).fingerprint == known
    for change in ({"age": {"bounds": [0, 101]}}, {"age": {"gap": 26}}, {"sex": {"values": ["m", "f"]}}):
        assert schema(**change).fingerprint != known
    turned = dict(reversed(list(COLUMNS.items())))
    assert Schema.from_dict({"columns": turned}).fingerprint != known
    assert Schema.from_dict(schema().plain() | {"gaps": ["?"]}).fingerprint != known


def test_marks_are_named():
    assert schema(age={"from_data": ["bounds", "gap"]}).marks == ("columns.age.bounds", "columns.age.gap")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"age": {"bounds": [5, 5]}}, r"columns\.age\.bounds.*\[5, 5\]"),
        ({"age": {"bounds": "old"}}, r"columns\.age\.bounds.*'old'"),
        ({"age": {"gap": 101}}, r"columns\.age\.gap.*101.*bounds, 0.*100"),
        (
            {"age": {"bound": [0, 1]}},
            r"columns\.age\.bound.*key.*column.*'number'; did you mean 'bounds'\?",
        ),
        ({"sex": {"values": []}}, r"columns\.sex\.values.*texts"),
        ({"sex": {"values": ["a", "a"]}}, r"columns\.sex\.values.*'a'"),
        ({"sex": {"values": ["a", "other"]}}, r"columns\.sex\.values.*'other'.*values"),
        ({"sex": {"gap": "x"}}, r"columns\.sex\.gap.*'x'.*'f', 'm', 'other'"),
        (
            {"seen": {"bounds": ["2021-01-01", "2020-01-01"]}},
            r"columns\.seen\.bounds.*\['2021-01-01', '2020-01-01'\]",
        ),
        ({"seen": {"formats": ["%Y"]}}, r"columns\.seen\.formats.*'%Y'.*form.*days"),
        ({"seen": {"gap": "soon"}}, r"columns\.seen\.gap.*'soon'.*bounds"),
        ({"ill": {"classes": ["no"]}}, r"columns\.ill\.classes.*\['no'\].*texts"),
        ({"ill": {"bounds": [0, 1]}}, r"columns\.ill\.bounds.*beside classes"),
        ({"new": {"kind": "client"}}, r"columns\.new.*'client'.*columns\.site"),
        ({"new": {"kind": "label"}}, r"columns\.new.*second label"),
        ({"new": {"kind": "nubmer"}}, r"columns\.new\.kind.*'nubmer'.*did you mean 'number'\?"),
        ({"new": {}}, r"columns\.new\.kind.*missing.*category"),
        ({"new": {"kind": "number"}}, r"columns\.new\.bounds.*missing"),
        ({"age": {"from_data": ["size"]}}, r"columns\.age\.from_data.*'size'.*keys"),
    ],
)
def test_a_wrong_schema_is_one_sentence(change, sentence):
    assert re.search(sentence, message(lambda: schema(**change)))


def test_wrong_files_of_schemas_are_one_sentence(tmp_path):
    path = tmp_path / "s.toml"
    assert message(lambda: Schema.read(path)).startswith(f"{path} cannot be read (")
    path.write_text("columns = ")
    assert has_all(message(lambda: Schema.read(path)), path, "TOML")
    path.write_text("format = 9\n")
    assert has_all(message(lambda: Schema.read(path)), f"{path}: format", "9", "1", "version")
    path.write_text('seperator = ";"\n')
    assert has_all(message(lambda: Schema.read(path)), "seperator", "key", "schema; did you mean 'separator'?")
    assert has_all(message(lambda: load(path, label="y", schema=schema())), "label", "'y'", "schema")


def test_frames_of_pandas_and_polars_give_what_files_give(tmp_path):
    text = "site,age,sex,seen,note,ill\na,31,f,2020-01-03,x,no\nb,,m,2020-01-04,,yes\nb,60,,2020-01-05,z,no\n"
    (tmp_path / "a.csv").write_text(text)
    wanted = load(tmp_path / "a.csv", schema=schema())
    frame = pd.read_csv(tmp_path / "a.csv", parse_dates=["seen"])
    frame.to_parquet(tmp_path / "a.parquet")
    for source in (frame, pl.read_csv(tmp_path / "a.csv", try_parse_dates=True), tmp_path / "a.parquet"):
        found = load(source, schema=schema())
        assert found.train.x.tobytes() == wanted.train.x.tobytes()
        assert found.train.y.tolist() == wanted.train.y.tolist()
        assert found.client_names == ("a", "b")


def test_a_schema_that_is_none_is_refused_from_python_and_in_a_file(tmp_path):
    with pytest.raises(InputError, match=r"^schema is 3, but it must be a schema"):
        load(tmp_path / "x.csv", schema=3)
    table = {"source": "csv", "path": "x.csv", "schema": 3}
    with pytest.raises(InputError, match=r"^data\.schema is 3, but it must be a schema"):
        parse({"name": "x", "data": table, "algorithm": {"name": "fedavg"}})
