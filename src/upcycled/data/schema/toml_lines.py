"""Lines of a schema's file, for drafts and for what mends a problem."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import date
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_value(value: Any) -> str:
    """Return a value on one line.

    >>> toml_value(["a", 1.0, 2.5, True, date(2020, 1, 31)])
    '["a", 1, 2.5, true, 2020-01-31]'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    if isinstance(value, int):
        return str(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    """Return a name as a key, in quotes where it needs them.

    >>> toml_key("age"), toml_key("blood pressure")
    ('age', '"blood pressure"')
    """
    return name if _BARE.fullmatch(name) else toml_value(name)


def column_line(name: str, key: str, value: Any) -> str:
    """Return what a column's table should say, on one line.

    >>> column_line("sex", "other", True)
    '[columns.sex] other = true'
    """
    return f"[columns.{toml_key(name)}] {key} = {toml_value(value)}"


def marked_line(name: str, key: str, value: Any, marks: Iterable[str] = ()) -> str:
    """Return what a column's table should say, read off the data: with the mark that a run with real noise refuses.

    >>> print(marked_line("age", "gap", 50.0, ["bounds"]))
    [columns.age] gap = 50
    from_data = ["bounds", "gap"]
    """
    return f"{column_line(name, key, value)}\n{marks_line([*marks, key])}"


def marks_line(keys: Iterable[str]) -> str:
    """Return the line that lists what was read off the data.

    >>> marks_line(["bounds", "gap", "gap"])
    'from_data = ["bounds", "gap"]'
    """
    return f"from_data = {toml_value(list(dict.fromkeys(keys)))}"
