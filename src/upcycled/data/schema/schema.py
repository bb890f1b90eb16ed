"""``Schema``: what the columns of a federation's tables mean, in one file that all sites apply."""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upcycled.core.errors import InputError, reason_of, suggest
from upcycled.core.objective import TargetKind
from upcycled.data.schema.columns import (
    FEATURES,
    ClientColumn,
    ColumnKind,
    Feature,
    LabelColumn,
    SplitColumn,
    column_from,
    plain_column,
)

FORMAT = 1
GAPS = ("", "NA", "N/A", "NaN", "null")
"""What stands in a table where a value is missing, in capitals or not, unless a schema says otherwise."""
_DIALECT = ("separator", "decimal", "encoding")
"""How a .csv is written: sites may differ in it, and the numbers that follow are the same."""
_KEYS = ("format", "columns", "gaps", "from_data", *_DIALECT)


@dataclass(frozen=True)
class Schema:
    """What every column of a table is: public knowledge, which no site fits to its data and all sites apply alike.

    Make one with :meth:`read` or :meth:`from_dict`; ``upcycled data schema FILE`` writes a draft to edit.
    ``docs/tables.md`` has all keys.

    >>> schema = Schema.from_dict({"columns": {
    ...     "age": {"kind": "number", "bounds": [0, 100], "gap": 50},
    ...     "sex": {"kind": "category", "values": ["f", "m"]},
    ...     "ill": {"kind": "label", "classes": ["no", "yes"]},
    ... }})
    >>> schema.feature_names
    ('age', 'age is missing', 'sex=f', 'sex=m', 'sex=other')
    >>> schema.classes, schema.client, schema.fingerprint[:8]
    (('no', 'yes'), None, '8a0deae9')
    """

    columns: Mapping[str, ColumnKind]
    """Every column that a table may have, by name, features in the order that a model takes them."""
    gaps: tuple[str, ...] = GAPS
    """Texts that mean that a value is missing, in capitals or not; a category's own values are none."""
    separator: str = ","
    """What stands between the columns of a .csv."""
    decimal: str = "."
    """What numbers in text have before their fraction."""
    encoding: str = "utf-8"
    """How the text of a .csv is written."""
    from_data: tuple[str, ...] = ()
    """``("gaps",)`` where texts that mean a gap were read off the data; columns have marks of their own."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Schema:
        r"""Read a schema's TOML file.

        Args:
            path: the file.

        Returns:
            The schema, checked.

        Raises:
            InputError: in one sentence with file, key and what would be right.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "schema.toml"
        ...     _ = file.write_text('[columns.age]\nkind = "number"\nbounds = [0, 100]\n')
        ...     Schema.read(file).feature_names
        ('age',)
        """
        file = Path(path)
        try:
            document = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
        except OSError as error:
            raise InputError(f"cannot be read ({reason_of(error)}), but it must be a schema", field=str(file)) from None
        except ValueError as error:
            raise InputError(f"must be valid TOML, but it is not: {reason_of(error)}", field=str(file)) from None
        try:
            return cls.from_dict(document)
        except InputError as error:
            raise error.at(str(file)) from None

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Schema:
        """Return the schema that such a file's content is.

        Args:
            document: ``columns``, a table for each, and the file's other keys.

        Returns:
            The schema, checked.

        Raises:
            InputError: in one sentence with the key and what would be right.

        >>> Schema.from_dict({"columns": {"age": {"kind": "number", "bounds": [0, 100]}}}).marks
        ()
        """
        for key in document:
            if key not in _KEYS:
                raise InputError(f"is no key of a schema{suggest(key, _KEYS)}", field=key)
        if document.get("format", FORMAT) != FORMAT:
            raise InputError(field="format", value=document["format"], must=f"{FORMAT}, which this version knows")
        tables = document.get("columns")
        if not isinstance(tables, Mapping) or not tables:
            raise InputError(field="columns", value=tables, must="a table [columns.NAME] for every column")
        columns = {str(name): column_from(str(name), table) for name, table in tables.items()}
        _check_together(columns)
        gaps = document.get("gaps", list(GAPS))
        if not isinstance(gaps, list | tuple) or not all(isinstance(gap, str) for gap in gaps):
            raise InputError(field="gaps", value=gaps, must="a list of texts")
        marks = document.get("from_data", [])
        if not isinstance(marks, list | tuple) or any(mark != "gaps" for mark in marks):
            raise InputError(field="from_data", value=marks, must='["gaps"], or left out: columns have their own')
        return cls(columns, tuple(gaps), *_dialect(document), from_data=tuple(marks))

    @property
    def features(self) -> dict[str, Feature]:
        """The columns that a model looks at."""
        return {name: column for name, column in self.columns.items() if isinstance(column, FEATURES)}

    @property
    def feature_names(self) -> tuple[str, ...]:
        """What the numbers of a sample are called."""
        return tuple(made for name, column in self.features.items() for made in column.names(name))

    @property
    def labels(self) -> dict[str, LabelColumn]:
        """The label column; several where a target is several numbers."""
        return {name: column for name, column in self.columns.items() if isinstance(column, LabelColumn)}

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes; None where targets are numbers."""
        return next((column.classes for column in self.labels.values()), None)

    @property
    def targets(self) -> TargetKind:
        """What a label is."""
        return "numbers" if self.labels and self.classes is None else "classes"

    @property
    def client(self) -> str | None:
        """The column that says whose a row is; None where the name of a file does."""
        return self._only(ClientColumn)

    @property
    def split(self) -> str | None:
        """The column that says whether a row is for training or for testing."""
        return self._only(SplitColumn)

    @property
    def others(self) -> tuple[str, ...]:
        """The columns that are no features."""
        return tuple(name for name, column in self.columns.items() if not isinstance(column, FEATURES))

    @property
    def marks(self) -> tuple[str, ...]:
        """What a draft took from the data and nobody has replaced yet: ``columns.age.bounds`` and so on."""
        own = (f"columns.{name}.{key}" for name, column in self.columns.items() for key in column.from_data)
        return (*self.from_data, *own)

    @property
    def fingerprint(self) -> str:
        """A hash of what the numbers of a sample mean: equal for schemas that give equal numbers."""
        form = {key: value for key, value in self.plain().items() if key not in (*_DIALECT, "from_data")}
        # Whether a number came from the data changes nothing that is done with it; the order of columns does.
        form["columns"] = [
            [name, {key: value for key, value in column.items() if key != "from_data"}]
            for name, column in form["columns"].items()
        ]
        text = json.dumps(form, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def plain(self) -> dict[str, Any]:
        """Return it as plain values, of which :meth:`from_dict` makes an equal schema."""
        about: dict[str, Any] = {"format": FORMAT, "gaps": list(self.gaps)}
        about |= {key: getattr(self, key) for key in _DIALECT}
        about |= {"from_data": list(self.from_data)} if self.from_data else {}
        return {**about, "columns": {name: plain_column(column) for name, column in self.columns.items()}}

    def _only(self, kind: type[ColumnKind]) -> str | None:
        return next((name for name, column in self.columns.items() if isinstance(column, kind)), None)


def as_schema(given: Schema | Mapping[str, Any] | str | os.PathLike[str]) -> Schema:
    """Return a schema that was given as one, as its file or as that file's content."""
    if isinstance(given, Schema):
        return given
    if isinstance(given, Mapping):
        return Schema.from_dict(given)
    if not isinstance(given, str | os.PathLike):
        raise InputError(field="schema", value=given, must="a schema, the path of its file, or that file's content")
    return Schema.read(given)


def _check_together(columns: Mapping[str, ColumnKind]) -> None:
    for kind in (ClientColumn, SplitColumn):
        there = [name for name, column in columns.items() if isinstance(column, kind)]
        if len(there) > 1:
            raise InputError(f"has kind '{kind.kind}', but so has columns.{there[0]}", field=f"columns.{there[1]}")
    labels = [(name, column) for name, column in columns.items() if isinstance(column, LabelColumn)]
    if len(labels) > 1 and any(column.classes is not None for _, column in labels):
        raise InputError("is a second label, which only numbers may have", field=f"columns.{labels[1][0]}")
    names = [made for name, column in columns.items() for made in column.names(name)]
    repeated = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if repeated is not None:
        raise InputError(f"two columns would both make a feature '{repeated}': one must have another name")
    if not names:
        raise InputError("holds no feature, but a model needs one: a number, a category or a date", field="columns")


def _dialect(document: Mapping[str, Any]) -> tuple[str, str, str]:
    separator, decimal = document.get("separator", ","), document.get("decimal", ".")
    if not isinstance(separator, str) or len(separator) != 1 or separator in '"\n\r':
        raise InputError(field="separator", value=separator, must="one character such as ';'")
    if decimal not in (".", ","):
        raise InputError(field="decimal", value=decimal, must="'.' or ','")
    encoding = document.get("encoding", "utf-8")
    try:
        codecs.lookup(encoding)
    except (LookupError, TypeError):
        raise InputError(field="encoding", value=encoding, must="a name such as 'utf-8' or 'latin-1'") from None
    return separator, decimal, encoding
