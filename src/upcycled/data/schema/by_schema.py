"""Tables of one or many sites and a schema become federated data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError
from upcycled.data.declared import Declared
from upcycled.data.federated import FederatedData
from upcycled.data.grouping import GroupedRows, client_column, group
from upcycled.data.readers.raw_tables import RawTable
from upcycled.data.readers.splits_column import is_test_row
from upcycled.data.schema.cells import cells_of, text_of
from upcycled.data.schema.encoding import FROM_ZERO, Encoded, TableProblem, encode
from upcycled.data.schema.table_schema import Schema

_LISTED = 20


def load_by_schema(tables: Sequence[RawTable], schema: Schema, *, repair: bool) -> FederatedData:
    """Return the data of tables that a schema describes.

    Raises:
        InputError: with all problems of all tables in one sentence; repaired, only those of shapes.
    """
    if not schema.labels:
        raise InputError("holds no column of kind 'label', but there must be something to learn", field="columns")
    done = [(table, encode(schema, table, with_labels=True)) for table in tables]
    problems = [one for _, made in done for one in made.problems]
    clients, others = [], []
    for table, _ in done:
        who, met = clients_in(schema, table)
        clients.append(who)
        others += met
    refuse([one for one in (*problems, *others) if one.blocks and (one.is_shape or not repair)])
    titles = [table.title for table in tables]
    notes = [
        [f"{one.where}: {one.said}" if len(titles) > 1 else one.said for one in problems if one.is_label is is_label]
        for is_label in (True, False)
    ]
    declared = Declared(label_names=schema.classes, targets=schema.targets, repair=repair)
    data = group(
        _parts(schema, done, client_column("client", np.concatenate(clients))),
        feature_names=schema.feature_names,
        declared=declared,
    )
    # What follows from a draft's marks follows from the data.
    inferred = data.inferred | ({"schema"} if schema.marks else set())
    return replace(
        data, other_columns=schema.others, schema=schema, inferred=inferred, notes=(*notes[0], *data.notes, *notes[1])
    )


def refuse(problems: Sequence[TableProblem]) -> None:
    """Refuse tables with problems: all of them in one sentence, those of a file together.

    Raises:
        InputError: if there is one.
    """
    if not problems:
        return
    by_file: dict[str, list[str]] = {}
    for one in problems[:_LISTED]:
        by_file.setdefault(one.where, []).append(
            one.said + (f" (schema: {', '.join(one.mend.splitlines())})" if one.mend else "")
        )
    is_one = len(by_file) == 1
    words = "; ".join(f"{'' if is_one else f'{file}: '}{'; '.join(said)}" for file, said in by_file.items())
    more = f"; and {len(problems) - _LISTED} more, which 'upcycled data check' lists" if len(problems) > _LISTED else ""
    raise InputError(words + more, where=tuple(by_file) if is_one else ())


def clients_in(schema: Schema, table: RawTable) -> tuple[NDArray[Any], list[TableProblem]]:
    """Return whose each row is, and what is wrong with that; where nobody says so, it is the file's."""
    if schema.client is None:
        if table.client is None:
            said = "has nothing that says whose a row is: a column must have kind 'client'"
            return np.full(table.num_rows, ""), [TableProblem(said, "", True, where=table.title)]
        return np.full(table.num_rows, table.client), []
    if schema.client not in table.columns:
        return np.full(table.num_rows, ""), []  # its absence is said already
    cells = cells_of(table.columns[schema.client], ("",))
    problems = []
    if cells.is_gap.any():
        first, many = int(np.flatnonzero(cells.is_gap)[0]), int(cells.is_gap.sum())
        said = f"client column '{schema.client}' has {many} gaps, the first at row {first} {FROM_ZERO}"
        problems.append(TableProblem(said, "", True, where=table.title))
    return np.array([text_of(value) for value in cells.values.tolist()], dtype=np.str_), problems


def _parts(schema: Schema, done: Sequence[tuple[RawTable, Encoded]], clients: NDArray[Any]) -> list[GroupedRows]:
    x = np.concatenate([made.x for _, made in done])
    y = np.concatenate([made.y for _, made in done if made.y is not None])
    if schema.split is None:
        return [GroupedRows("train", x, y, clients)]
    is_test = np.concatenate([is_test_row(table.title, schema.split, table.columns[schema.split]) for table, _ in done])
    return [
        GroupedRows(title, x[rows], y[rows], clients[rows]) for title, rows in (("train", ~is_test), ("test", is_test))
    ]
