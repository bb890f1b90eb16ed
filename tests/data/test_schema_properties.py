"""Whatever a schema says and whatever stands in a table: numbers in [-1, 1], each row's own, the same after a file."""

from __future__ import annotations

import tomllib
from datetime import date

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from upcycled.core.errors import InputError
from upcycled.data import Schema
from upcycled.data.readers.raw_tables import RawTable
from upcycled.data.schema.columns import toml_key, toml_value
from upcycled.data.schema.encoding import encode

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=6)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
DAYS = st.dates(date(1800, 1, 1), date(2200, 1, 1))


def pairs(of):
    return st.tuples(of, of).filter(lambda two: two[0] != two[1]).map(sorted)


NUMBER = pairs(FINITE).flatmap(
    lambda b: st.fixed_dictionaries(
        {"kind": st.just("number"), "bounds": st.just(b)}, optional={"gap": st.floats(b[0], b[1])}
    )
)
DATE = pairs(DAYS).flatmap(
    lambda b: st.fixed_dictionaries(
        {"kind": st.just("date"), "bounds": st.just(b)}, optional={"gap": st.dates(b[0], b[1])}
    )
)
VALUES = st.lists(NAMES.filter(lambda text: text.strip() == text and text != "other"), min_size=1, unique=True)
CATEGORY = VALUES.flatmap(
    lambda values: st.fixed_dictionaries(
        {"kind": st.just("category"), "values": st.just(values)}, optional={"gap": st.sampled_from([*values, "other"])}
    )
)
COLUMNS = st.dictionaries(NAMES, st.one_of(NUMBER, DATE, CATEGORY), min_size=1, max_size=4)
CELL = st.one_of(
    NAMES, FINITE.map(repr), DAYS.map(date.isoformat), st.sampled_from(["", "NA", "nan", "-inf", "1e999", "0x1", "١"])
)


def schema_or_none(columns):
    """The schema, or None where it is refused in a sentence (names alike but for spaces, bounds too far apart)."""
    try:
        return Schema.from_dict({"columns": columns})
    except InputError:
        return None


@settings(max_examples=150, deadline=None)
@given(COLUMNS, st.data())
def test_cells_of_any_content_become_numbers_within_one_each_by_its_own_row(columns, data):
    schema = schema_or_none(columns)
    if schema is None:
        return
    rows = data.draw(st.lists(st.tuples(*[CELL] * len(columns)), min_size=1, max_size=4))

    def x_of(some):
        arrays = {name: np.array([row[k] for row in some], dtype=object) for k, name in enumerate(columns)}
        return encode(schema, RawTable("t", None, arrays, len(some)), with_labels=False).x

    whole = x_of(rows)
    assert whole.shape == (len(rows), len(schema.feature_names))
    assert (np.abs(whole) <= 1).all()  # and so no nan
    assert np.array_equal(whole, np.concatenate([x_of([row]) for row in rows]))


@settings(max_examples=150, deadline=None)
@given(COLUMNS)
def test_a_schema_is_the_same_after_plain_values_and_after_a_file(columns):
    schema = schema_or_none(columns)
    if schema is None:
        return
    lines = []
    for name, table in columns.items():
        lines += [f"[columns.{toml_key(name)}]", *(f"{key} = {toml_value(value)}" for key, value in table.items())]
    for other in (Schema.from_dict(schema.plain()), Schema.from_dict(tomllib.loads("\n".join(lines)))):
        assert other == schema
        assert other.fingerprint == schema.fingerprint
