"""Samples that a model is to answer: features alone, picked by the names that it was trained on."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError, suggest
from upcycled.data.loading import about_file, existing_file, refuse_options
from upcycled.data.readers.npz import read_x
from upcycled.data.readers.raw_tables import Dialect, Inferred, RawTable, raw_table
from upcycled.data.readers.tables import check_rows, features_of
from upcycled.data.schema.cells import text_of
from upcycled.data.schema.encoding import encode, refuse
from upcycled.data.schema.schema import Schema

USUAL = ("client", "label")
"""What readers call the columns that are no features, where nobody said otherwise."""


@dataclass(frozen=True)
class NewSamples:
    """Features in the order that a model takes them, and what their rows are called."""

    x: NDArray[Any]
    ids: Sequence[str]
    id_name: str = "row"


def pick_columns(
    known: Sequence[str], features: tuple[str, ...] | None, others: Sequence[str] = (), field: str = "x"
) -> tuple[str, ...]:
    """Return the columns that are features, in the order of training; a table may have them in any order.

    Args:
        known: the columns that are there.
        features: those of training; None where training had no names, so that all but the usual others count.
        others: columns of training that were no features, which may be there or not.
        field: what sentences call the table.

    Raises:
        InputError: if a feature is not there, or something is that training did not know.

    >>> pick_columns(["label", "weight", "age"], ("age", "weight"), ["client", "label"])
    ('age', 'weight')
    """
    if features is None:
        return tuple(name for name in known if name not in USUAL)
    for name in features:
        if name not in known:
            but = f"has no column '{name}', but the model was trained on it{suggest(name, known)}"
            raise InputError(but, field=field)
    for name in known:
        if name not in features and name not in others:
            raise InputError(
                f"has a column '{name}', but the model was not trained on it: leave it out, or name it as the rows' id",
                field=field,
            )
    return features


def features_by_schema(table: RawTable, schema: Schema, id: str | None = None) -> NDArray[np.float32]:
    """Return the features of raw rows; columns that are no features may be there or not.

    Warns where a value counts as another: beyond its bounds, or as "other" for its capitals alone.

    Raises:
        InputError: with all that is wrong in one sentence: a column that is missing or that the schema does not know,
            a gap without a constant, text in the place of a number.

    >>> schema = Schema.from_dict({"columns": {"age": {"kind": "number", "bounds": [0, 100]}}})
    >>> ages = np.array(["75", "100"], dtype=object)
    >>> features_by_schema(RawTable("new.csv", None, {"age": ages}, 2), schema).tolist()
    [[0.5], [1.0]]
    """
    held = {name: values for name, values in table.columns.items() if name != id or name in schema.features}
    made = encode(schema, replace(table, columns=held), with_labels=False)
    # The schema is the model's: what does not fit it has to change in the rows.
    refuse([replace(one, mend="") for one in made.problems if one.blocks])
    for one in made.problems:
        # An answer is given all the same: for the value that was taken in the place of the one that stands there.
        warnings.warn(f"{one.where}: {one.said}", UserWarning, stacklevel=3)
    return made.x


def read_samples(
    path: str | os.PathLike[str],
    features: tuple[str, ...] | None = None,
    others: Sequence[str] = (),
    *,
    schema: Schema | None = None,
    id: str | None = None,
    name: str | None = None,
) -> NewSamples:
    """Read samples from a .csv or .parquet, by the names of columns, or from an .npz (``x``, or a set's parts joined).

    Args:
        path: the file.
        features: the features of training, by name; None where they have none.
        others: columns of training that were no features.
        schema: what the columns of tables are, where training was by one.
        id: a column of a table to call the rows by; their numbers from 0 on if left out.
        name: which set of an .npz.

    Raises:
        InputError: in one sentence that names the file.
    """
    file = existing_file(path)
    try:
        if file.suffix.lower() == ".npz":
            refuse_options("a .csv or .parquet", id=id)
            x, called = read_x(file, name)
            if features is not None and called is not None and x.shape[1:] == (len(called),):
                x = x[:, [called.index(column) for column in pick_columns(called, features, field=str(file))]]
            return NewSamples(x, [str(row) for row in range(len(x))])
        refuse_options("an .npz", name=name)
        written = Inferred(() if id is None else (id,))
        table = raw_table(file, written if schema is None else Dialect(schema.separator, schema.encoding))
        known = list(table.columns)
        if id is not None and id not in known:
            raise InputError(field="id", value=id, but=f"the file has no such column{suggest(id, known)}")
        if schema is not None:
            x = features_by_schema(table, schema, id)
        else:
            check_rows(table)
            chosen = pick_columns([name for name in known if name != id], features, others, field=str(file))
            x = features_of(table, chosen)
    except InputError as error:
        raise about_file(str(file), error) from error
    if id is None:
        return NewSamples(x, [str(row) for row in range(len(x))])
    ids = table.columns[id].tolist()
    if schema is not None:
        return NewSamples(x, [text_of(one) for one in ids], id)
    return NewSamples(x, ["" if one is None or one != one else str(one) for one in ids], id)
