"""``metrics.parquet``: the same rows as ``metrics.jsonl``, with the same types whatever the run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from upcycled.runtime.history import SCALARS
from upcycled.support.extras import needs

INTEGERS = ("iteration", "data_round", "bytes_up", "bytes_down", "messages", "gradient_steps")
WORDS = ("kind",)


def to_parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows of a history as a Parquet file; a column that is never known is there all the same."""
    needs("--parquet", "pyarrow")
    import pyarrow
    import pyarrow.parquet

    names = list(dict.fromkeys([*SCALARS, *(name for row in rows for name in row)]))
    types = {name: pyarrow.int64() for name in INTEGERS} | {name: pyarrow.string() for name in WORDS}
    schema = pyarrow.schema([(name, types.get(name, pyarrow.float64())) for name in names])
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), stream)
    return stream.getvalue()
