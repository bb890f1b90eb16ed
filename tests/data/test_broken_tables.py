"""Tables as they come: a broken one is one sentence with all that is wrong in it, and the lines that mend it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from tests.wording import has_all, only_line
from upcycled.cli.main import main
from upcycled.core.errors import InputError
from upcycled.data import Schema, load
from upcycled.data.loading import raw_tables
from upcycled.data.readers.raw_tables import RawTable
from upcycled.data.schema.problems import problems_by_schema, problems_without_schema

SCHEMA = """\
[columns.age]
kind = "number"
bounds = [0, 110]

[columns.sex]
kind = "category"
values = ["f", "m"]
other = false

[columns.seen]
kind = "date"
bounds = [2015-01-01, 2030-01-01]

[columns.note]
kind = "ignored"

[columns.ill]
kind = "label"
classes = ["no", "yes"]
"""
HEAD = "age,sex,seen,note,ill"
GOOD = ["31,f,2020-01-03,x,no", "40,m,2021-02-04,y,yes"]


def text(*rows, head=HEAD):
    return "\n".join([head, *GOOD, *rows]) + "\n"


BROKEN = {
    "semicolons": (text().replace(",", ";"), [r"';'.*columns"]),
    "tabs": (text().replace(",", "\t"), [r"columns.*comma"]),
    "mixed separators": (
        text("50;f;2020-01-01;x;no"),
        [r"row.*header's 5", r"1.*row 2"],
    ),
    "a field too many": (
        text("5,f,2020-01-01,x,no,9", "5,f,2020-01-01,x,no,9"),
        ["2 rows"],
    ),
    "latin-1": (text().replace("x", "ü").encode("latin-1"), ["utf-8", 'encoding = "latin-1"']),
    "a quote that is never closed": (text('50,f,2020-01-01,"x,no'), [r"read.*\.csv", "a quote"]),
    "two columns of one name": (text(head="age,age,seen,note,ill"), [r"'age'.*header"]),
    "nothing": ("", [r"header.*rows"]),
    "a header and no rows": (HEAD + "\n", [r"header.*rows.*site"]),
    "a column that is not there": (
        text(head="years,sex,seen,note,ill"),
        ["column 'age'", "column 'years'", r'\[columns\.years\].*= "ignored"'],
    ),
    "a column in capitals": (
        text(head="Age,sex,seen,note,ill"),
        [r"column 'age'.*schema.*column 'Age'"],
    ),
    "an exported index": (
        text(head="," + HEAD).replace("\n3", "\n0,3").replace("\n4", "\n1,4"),
        [r"column 'Unnamed: 0'.*schema", r'\[columns\."Unnamed: 0"\] kind = "ignored"'],
    ),
    "text where numbers are due": (
        text("old,f,2020-01-01,x,no"),
        [
            r"column 'age'.*'old'.*row 2",
            "where a number is due",
            r'gaps = \["", "NA", "N/A", "NaN", "null", "old"\]',
        ],
    ),
    "gaps": (
        text(",f,2020-01-01,x,no", "NA,f,2020-01-01,x,no"),
        [r"column 'age'.*2 gaps.*row 2", r"\[columns\.age\] gap = 55"],
    ),
    "gaps in the label": (
        text("5,f,2020-01-01,x,"),
        [r"label column 'ill'.*gap.*row 2", r"leave.*rows"],
    ),
    "a label that the schema does not know": (
        text("5,f,2020-01-01,x,maybe"),
        [r"label column 'ill'.*'maybe'.*row 2", "'no', 'yes'", r'classes = \["no", "yes", "maybe"\]'],
    ),
    "labels in capitals": (
        text("5,f,2020-01-01,x,NO", "5,f,2020-01-01,x,maybe", "5,f,2020-01-01,x,perhaps"),
        [
            r"'NO'.*row 2.*'no'",
            r"capitals.*table",
            r'classes = \["no", "yes", "maybe", "perhaps"\]',
        ],
    ),
    "a value that is not listed": (
        text("5,d,2020-01-01,x,no"),
        [r"column 'sex'.*'d'.*row 2", r"\[columns\.sex\].*="],
    ),
    "dates in three forms": (
        text("5,f,1.2.2020,x,no", "5,f,02/13/2020,x,no"),
        [
            r"column 'seen'.*'1\.2\.2020'.*row 2.*1",
            r"day.*2015-01-01",
            r'formats = \["%Y-%m-%d", "%d\.%m\.%Y", "%m/%d/%Y"\]',
        ],
    ),
    "an infinite number": (text("inf,f,2020-01-01,x,no"), [r"column 'age'.*'inf'.*row 2"]),
    "everything at once": (
        text("old,d,soon,x,maybe", ",,,,", head=HEAD.replace("note", "remark")),
        [
            r"column 'remark'.*schema",
            r"column 'age'.*'old'",
            r"column 'age'.*gap.*row 3",
            r"column 'sex'.*'d'",
            r"column 'seen'.*'soon'",
            r"label column 'ill'.*gap",
            r"label column 'ill'.*'maybe'",
        ],
    ),
}


@pytest.fixture
def sites(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "rome.csv").write_text(text())
    return tmp_path / "sites"


def refused(source, schema):
    with pytest.raises(InputError) as error:
        load(source, schema=schema)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_table_is_one_sentence_with_all_that_is_wrong(case, sites):
    content, expected = BROKEN[case]
    file = sites / "riga.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    said = refused(sites, sites.parent / "schema.toml")
    assert said.startswith(str(file))
    assert said.count(str(file)) == 1
    assert "rome" not in said
    for words in expected:
        assert re.search(words, said)


@pytest.mark.parametrize("case", BROKEN)
def test_the_check_of_a_broken_table_ends_with_2_and_says_the_same(case, sites, capsys):
    content, expected = BROKEN[case]
    (sites / "riga.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["data", "check", str(sites), "--schema", str(sites.parent / "schema.toml")]) == 2
    said = "".join(capsys.readouterr())
    for words in expected:
        assert re.search(words, said)


def test_good_tables_load_with_a_byte_order_mark_quotes_and_blank_lines(sites):
    content = text('"55","m","2020-01-01","x, and ""y""","no"').replace("\n", "\r\n") + "\r\n\r\n"
    (sites / "riga.csv").write_bytes(b"\xef\xbb\xbf" + content.encode())
    data = load(sites, schema=sites.parent / "schema.toml")
    assert data.client_names == ("riga", "rome")
    assert data.train.client(0)[0][:, 0].tolist() == pytest.approx([2 * 31 / 110 - 1, 2 * 40 / 110 - 1, 0.0])


def test_a_table_of_one_client_is_a_federation_of_one(sites):
    assert load(sites / "rome.csv", schema=sites.parent / "schema.toml").client_names == ("rome",)


def test_problems_of_several_sites_are_told_together(sites):
    (sites / "riga.csv").write_text(text("old,f,2020-01-01,x,no"))
    (sites / "oslo.csv").write_text(text("5,f,2020-01-01,x,maybe"))
    said = refused(sites, sites.parent / "schema.toml")
    assert said.index("oslo.csv: label column 'ill'") < said.index("riga.csv: column 'age' holds 'old'")


def test_a_check_lists_slips_of_what_is_allowed(sites, capsys):
    rows = [f"{200 if i == 3 else 20 + i},f,2020-01-0{1 + i},x,no" for i in range(8)]
    (sites / "riga.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    (sites / "Riga .csv").write_text(text())
    assert main(["data", "check", str(sites), "--schema", str(sites.parent / "schema.toml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"OK: {sites} has 3 clients, 12 samples, 2 classes, 0 test samples"
    assert "hint: 'Riga ', 'riga' are different clients, though their names are nearly the same" in lines
    outside = lines.index(
        f"hint: {sites / 'riga.csv'}: column 'age' holds '200' at row 3 (counted from 0), outside of its bounds, 0 to "
        "110: they are clipped"
    )
    # Wider bounds would be that patient's age, in a file that is public.
    assert not lines[outside + 1].startswith("    schema:")
    assert "hint: class 'yes' of 'ill' has no sample at 'riga'" in lines


def test_a_check_without_a_schema_lists_all_and_the_lines_of_a_schema(tmp_path, capsys):
    rows = ["0,31,f,2020-01-03,7,31,no", "1,,m,2020-02-03,7,,yes", "2,60,f,2020-03-03,7,60,no"]
    (tmp_path / "rome.csv").write_text("\n".join(["id,age,sex,seen,unit,years,label", *rows]) + "\n")
    assert main(["data", "check", str(tmp_path)]) == 2
    said = capsys.readouterr().out
    assert said.splitlines()[0] == f"{tmp_path} has 5 problems:"
    for words in (
        "column 'age' has a gap, the first at row 1 (counted from 0)\n    schema: [columns.age] gap = 45.5\n"
        '            from_data = ["gap"]',
        "column 'sex' holds 'f' at row 0 (counted from 0) and 2 more such, where a number is due\n"
        '    schema: [columns.sex] kind = "category"',
        "column 'seen' holds '2020-01-03'",
        '[columns.seen] kind = "date"',
        "label column 'label' holds 'no'",
        '[columns.label] classes = ["no", "yes"]\n            from_data = ["classes"]',
        "hint: column 'id' counts rows, as programs write them beside a table\n"
        '    schema: [columns.id] kind = "ignored"',
        "hint: column 'unit' holds one value only, '7'\n",
        "hint: column 'years' is a copy of 'age'\n",
    ):
        assert words in said


@pytest.mark.parametrize("with_schema", [True, False])
def test_texts_that_stand_for_gaps_are_one_line_of_the_schema_whatever_columns_and_sites_have_them(
    with_schema, tmp_path, capsys
):
    """A schema has one ``gaps``: three lines of it, each with its own text, would leave the last only."""
    many = [f"{20 + i},{i},{'yes' if i % 2 else 'no'}" for i in range(30)]
    sites = tmp_path / "sites"
    sites.mkdir()
    (sites / "rome.csv").write_text("\n".join(["age,dose,ill", *many, "?,unk,no", "-,3,yes"]) + "\n")
    (sites / "bern.csv").write_text("\n".join(["age,dose,ill", *many, "?,missing,no"]) + "\n")
    (tmp_path / "schema.toml").write_text(
        '[columns.age]\nkind = "number"\nbounds = [0, 110]\n[columns.dose]\nkind = "number"\nbounds = [0, 50]\n'
        '[columns.ill]\nkind = "label"\nclasses = ["no", "yes"]\n'
    )
    chosen = ["--schema", str(tmp_path / "schema.toml")] if with_schema else ["--label", "ill"]
    assert main(["data", "check", str(sites), *chosen]) == 2
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if "schema: gaps = " in line]
    (line,) = set(lines)
    assert len(lines) == (4 if with_schema else 2)
    assert set(tomllib.loads(line.removeprefix("schema: "))["gaps"]) >= {"?", "-", "unk", "missing", "NA"}


def test_lines_that_follow_from_the_data_are_marked_as_a_draft_marks_them(sites):
    """A run with real noise refuses them until a person has put public knowledge in their place."""
    rows = [",f,1.2.2020,x,maybe", "?,f,2020-01-01,x,no"]
    (sites / "riga.csv").write_text(text(*rows))
    own = Schema.read(sites.parent / "schema.toml")
    mends = [one.mend.splitlines() for one in problems_by_schema(raw_tables(sites, own), own) if one.mend]
    assert {tuple(lines[1:]) for lines in mends} == {
        *(('from_data = ["gap"]',), ('from_data = ["formats"]',)),
        *(('from_data = ["classes"]',), ('from_data = ["gaps"]',)),
    }
    gaps = next(lines for lines in mends if lines[0].startswith("gaps = "))
    marked = Schema.from_dict(own.plain() | tomllib.loads("\n".join(gaps)))
    assert marked.marks == ("gaps",)
    assert Schema.from_dict(marked.plain()) == marked
    assert replace(marked, from_data=()).fingerprint == marked.fingerprint
    with pytest.raises(InputError, match=r"from_data.*'age'"):
        Schema.from_dict(own.plain() | {"from_data": "age"})


def test_a_draft_says_where_two_values_are_one_but_for_their_capitals(tmp_path):
    rows = [f"{'Fmf'[i % 3]},{i},{('Ill', 'well', 'ill')[i % 3]}" for i in range(12)]
    (tmp_path / "rome.csv").write_text("\n".join(["sex,dose,label", *rows]) + "\n")
    out = tmp_path / "schema.toml"
    assert main(["data", "schema", str(tmp_path), "-o", str(out)]) == 0
    said = out.read_text()
    for both, column in (('"F" and "f"', "sex"), ('"Ill" and "ill"', "label")):
        assert (
            f"# {both} differ in capitals only: if they are one, write it alike in all tables and list it once\n"
            in (said[: said.index(f"[columns.{column}]")])
        )
    assert said.count("capitals") == 2


def test_a_draft_says_what_columns_look_like_and_marks_what_follows_from_the_data(tmp_path, capsys):
    doses = ["" if i == 2 else i for i in range(25)]
    answers = ["no" if i % 3 else "yes" for i in range(25)]
    rows = [
        f"{i};{20 + i},5;{'fm'[i % 2]};{1 + i}.03.2020;{dose};w{i};7;{answer}"
        for i, (dose, answer) in enumerate(zip(doses, answers, strict=True))
    ]
    (tmp_path / "rome.csv").write_bytes("\n".join(["nr;Größe;sex;seen;dose;name;unit;ill", *rows]).encode("latin-1"))
    out = tmp_path / "schema.toml"
    assert main(["data", "schema", str(tmp_path / "rome.csv"), "-o", str(out), "--label", "ill"]) == 0
    assert has_all(only_line(capsys.readouterr().err), f"{out}: 9 entries", "data", "marked")
    draft = Schema.read(out)
    assert (draft.separator, draft.decimal, draft.encoding) == (";", ",", "latin-1")
    assert {name: column.kind for name, column in draft.columns.items()} == {
        **{"nr": "ignored", "Größe": "number", "sex": "category", "seen": "date", "dose": "number"},
        **{"name": "ignored", "unit": "ignored", "ill": "label"},
    }
    assert draft.columns["Größe"].bounds == (20.5, 44.5)
    assert draft.columns["seen"].formats == ("%d.%m.%Y",)
    assert draft.columns["dose"].gap == 12.0
    assert draft.marks == (
        *("columns.Größe.bounds", "columns.sex.values", "columns.seen.bounds", "columns.seen.formats"),
        *("columns.dose.bounds", "columns.dose.gap", "columns.name.kind", "columns.unit.kind", "columns.ill.classes"),
    )
    assert out.read_text().count("# from the data: replace by public knowledge before a private run") == 9
    # It reads its own data without a problem.
    assert main(["data", "check", str(tmp_path / "rome.csv"), "--schema", str(out)]) == 0
    assert "marked as from_data: columns.Größe.bounds, " in capsys.readouterr().out
    assert main(["data", "schema", str(tmp_path / "rome.csv"), "-o", str(out), "--label", "ill"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["data", "schema", str(tmp_path / "rome.csv"), "-o", str(tmp_path / "b.toml")]) == 2
    assert has_all(capsys.readouterr().err, "--label", "missing", "column")


def test_values_that_are_listed_but_for_their_capitals_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.toml").write_text(SCHEMA.replace('values = ["f", "m"]\nother = false', 'values = ["F", "m"]'))
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "a.csv").write_text(text())
    assert main(["data", "check", "sites", "--schema", "schema.toml"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert has_all(said, "column 'sex'", "'f'", "listed", "counts", "'F'")
    assert "'m'" not in said


def test_a_label_that_no_table_has_and_two_spellings_of_a_class_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("age,ill\n3,no\n4,No\n5,yes\n")
    main(["data", "check", "a.csv", "--label", "il"])
    assert "no table has a column 'il'; did you mean 'ill'?" in " ".join(capsys.readouterr().out.split())
    main(["data", "check", "a.csv", "--label", "ill"])
    said = " ".join(capsys.readouterr().out.split())
    assert has_all(said, "'No'", "'no'", "classes")


def test_a_renamed_column_is_not_proposed_as_one_to_ignore(sites):
    (sites / "riga.csv").write_text(text(head="Age,sex,seen,note,ill"))
    assert "ignored" not in refused(sites, sites.parent / "schema.toml")


@pytest.mark.parametrize(
    ("cell", "mend"),
    [("80,5", 'decimal = ","'), ("1,000", ""), ("8o.5", ""), ("unk", 'gaps = ["", "NA", "N/A", "NaN", "null", "unk"]')],
)
@pytest.mark.parametrize("with_schema", [True, False])
def test_a_value_that_is_written_otherwise_is_never_proposed_as_a_gap(cell, mend, with_schema, tmp_path):
    rows = {"age": [*map(str, range(30)), cell], "ill": ["no", *["yes"] * 30]}
    table = RawTable("rome.csv", "rome", {name: np.array(cells, dtype=object) for name, cells in rows.items()}, 31)
    ill = {"kind": "label", "classes": ["no", "yes"]}
    own = Schema.from_dict({"columns": {"age": {"kind": "number", "bounds": [0, 110]}, "ill": ill}})
    by_schema, without = problems_by_schema([table], own), problems_without_schema([table], client=None, label=None)
    (found,) = [one for one in (by_schema if with_schema else without) if "'age' holds" in one.said]
    assert found.mend.partition("\n")[0] == mend


def test_a_day_that_is_none_is_not_proposed_as_a_gap(sites):
    (sites / "riga.csv").write_text(text("5,f,2023-13-45,x,no"))
    said = refused(sites, sites.parent / "schema.toml")
    assert "holds '2023-13-45'" in said
    assert "(schema:" not in said


def test_an_empty_column_is_said_to_be_empty(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("age,Unnamed: 2,label\n3,,0\n4,,1\n")
    assert main(["data", "check", str(tmp_path), "--label", "label"]) == 2
    said = capsys.readouterr().out
    assert 'column \'Unnamed: 2\' is empty\n    schema: [columns."Unnamed: 2"] kind = "ignored"\n' in said
    assert "counts rows" not in said
    assert "gap = " not in said
    assert main(["data", "schema", str(tmp_path), "-o", str(tmp_path / "s.toml")]) == 0
    assert Schema.read(tmp_path / "s.toml").columns["Unnamed: 2"].kind == "ignored"


def test_a_site_with_few_samples_of_a_class_is_named(sites, capsys):
    rows = [f"{20 + i},f,2020-01-02,x,{'yes' if i < 9 else 'no'}" for i in range(60)]
    (sites / "riga.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    assert main(["data", "check", str(sites), "--schema", str(sites.parent / "schema.toml")]) == 0
    assert "hint: class 'yes' of 'ill' has fewer than 10 samples at 'riga'\n" in capsys.readouterr().out


def test_labels_that_are_no_class_are_told_first_and_wrong_where_they_are_many(sites, capsys):
    """Repaired, they would count as the first class: a model of them learns that everybody is well."""
    rows = [f"{200 if i == 0 else 20},f,2020-01-02,x,{'NO' if i < 5 else 'yes'}" for i in range(20)]
    (sites / "riga.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    schema = sites.parent / "schema.toml"
    notes = load(sites, schema=schema, repair=True).notes
    assert "label column 'ill' holds 'NO'" in notes[0]
    assert "5 labels that are no class count as class 0" in notes[1]
    assert "clipped" in notes[2]
    assert main(["data", "check", str(sites), "--schema", str(schema), "--repair"]) == 2
    assert "where 'no' is due: only capitals differ" in capsys.readouterr().out
    rows[1:5] = rows[5:9]
    (sites / "riga.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    assert main(["data", "check", str(sites), "--schema", str(schema), "--repair"]) == 0


def test_every_file_that_is_written_otherwise_is_named(sites, capsys):
    for name in ("aarau", "bern"):
        (sites / f"{name}.csv").write_text(text())
    for name in ("graz", "lille"):
        (sites / f"{name}.csv").write_text(text().replace(",", ";"))
    for words in (["check", "--schema", str(sites.parent / "schema.toml")], ["check", "--label", "ill"]):
        assert main(["data", words[0], str(sites), *words[1:]]) == 2
        said = "".join(capsys.readouterr())
        assert has_all(said, sites / "graz.csv", "';'", "columns")
        assert has_all(said, sites / "lille.csv", "';'", "columns")
    assert main(["data", "schema", str(sites), "--label", "ill", "-o", str(sites / "s.toml")]) == 2
    assert capsys.readouterr().err.count("has ';' between its columns") == 2


def of_sites(folder, **marks):
    """Write a table for each site, with its mark between the columns; return the folder."""
    folder.mkdir()
    for name, mark in marks.items():
        (folder / f"{name}.csv").write_text(text("30,f,2020-01-01,x,no", "50,m,2020-01-02,x,yes").replace(",", mark))
    return folder


def test_of_equally_many_those_are_named_that_the_schema_does_not_say(sites, capsys):
    folder = of_sites(sites.parent / "raw", bern=";", riga=",")
    schema = sites.parent / "schema.toml"
    for line, odd in (("", "bern"), ('separator = ";"\n', "riga")):
        schema.write_text(line + schema.read_text())
        assert main(["data", "check", str(folder), "--schema", str(schema)]) == 2
        said = "".join(capsys.readouterr())
        assert f"{folder / f'{odd}.csv'} has" in said
        assert said.count("between its columns") == 1


@pytest.mark.parametrize(("mark", "line"), [(";", 'separator = ";"'), ("\t", 'separator = "\\t"')])
def test_tables_that_are_alike_may_have_any_separator_that_the_schema_says(sites, capsys, mark, line):
    folder = of_sites(sites.parent / "raw", bern=mark, riga=mark)
    schema = sites.parent / "schema.toml"
    assert main(["data", "check", str(folder), "--schema", str(schema)]) == 2
    assert capsys.readouterr().err.count(f"save it with a comma, or say {line} in the schema") == 2
    schema.write_text(f"{line}\n{schema.read_text()}")
    assert main(["data", "check", str(folder), "--schema", str(schema)]) == 0


def test_marks_within_names_make_no_table_another(sites):
    folder = of_sites(sites.parent / "raw", bern=",", riga=",")
    table = (folder / "riga.csv").read_text().replace("\n", ",1\n").replace(",1", ',"a;b;c;d;e;f;g;h"', 1)
    (folder / "riga.csv").write_text(table)
    schema = sites.parent / "schema.toml"
    schema.write_text(schema.read_text() + '\n[columns."a;b;c;d;e;f;g;h"]\nkind = "ignored"\n')
    assert load(folder, schema=schema).num_clients == 2
