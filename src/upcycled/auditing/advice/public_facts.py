"""What everybody may know of a file's data without opening them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from upcycled.config.experiment import Experiment
from upcycled.config.sources import Synthetic
from upcycled.core.errors import InputError, check_number
from upcycled.core.facts import Facts
from upcycled.core.vectors import Ints
from upcycled.data.schema.table_schema import as_schema
from upcycled.data.sets.synthetic import drawn_sizes
from upcycled.data.splits import kept_sizes


def public_facts(
    experiment: Experiment,
    sizes: Sequence[int] | None = None,
    features: int | None = None,
    classes: int | None = None,
) -> Facts:
    """Return the facts that a plan needs, as given or as the file says them; the data are not opened.

    Args:
        experiment: the file.
        sizes: training records of each client; a file of generated data says them itself.
        features: numbers of a record, likewise.
        classes: likewise; ``data.classes``, ``data.labels`` and a schema say it too.

    Raises:
        InputError: for what nobody said.
    """
    table = experiment.data
    if isinstance(table, Synthetic):
        given = np.array(sizes) if sizes is not None else _generated(table)
        features, classes = features or table.dim, classes or table.classes
    else:
        labels, said = getattr(table, "labels", None), getattr(table, "schema_", None)
        classes = classes or getattr(table, "classes", None) or (len(labels) if labels else None)
        if said is not None:
            schema = as_schema(said)
            features, classes = features or len(schema.feature_names), classes or len(schema.classes or ()) or None
        asked = {
            "--sizes": (sizes, "the training records of each client, such as 45,120,300 or 200x30"),
            "--features": (features, "the numbers that a record has once its columns are encoded"),
            "--classes": (classes, "how many classes there are"),
        }
        missing = {flag: what for flag, (value, what) in asked.items() if value is None}
        if missing:
            raise _missing(missing)
        given = np.array(sizes)
    assert features is not None  # a generated federation has both,
    assert classes is not None  # and of others they were asked for
    for size in given.tolist():
        check_number("--sizes", size, at_least=1, integer=True)
    check_number("--features", features, at_least=1, integer=True)
    check_number("--classes", classes, at_least=2, integer=True)
    return Facts((int(features),), np.dtype(np.float32), int(classes), given.astype(np.int64), len(given))


def parsed_sizes(text: str) -> list[int]:
    """Return the sizes that a text lists; ``200x30`` are thirty clients of 200 records.

    >>> parsed_sizes("45, 120, 200x3")
    [45, 120, 200, 200, 200]
    """
    found: list[int] = []
    for part in text.replace(",", " ").split():
        size, _, many = part.partition("x")
        try:
            found += [int(size)] * (int(many) if many else 1)
        except ValueError:
            raise InputError(field="--sizes", value=part, must="a number of records, or one such as 200x30") from None
    if not found:
        raise InputError(field="--sizes", value=text, must="one number or more")
    return found


def _generated(table: Synthetic) -> Ints:
    """Return the training sizes of a generated federation: they follow from the table, and nothing is generated."""
    asked = list(table.sizes) if isinstance(table.sizes, tuple) else table.sizes
    every = drawn_sizes(asked, table.clients, table.seed)
    kept = kept_sizes(every, table.test_fraction) if table.test_fraction else every
    return kept_sizes(kept, table.validation_fraction) if table.validation_fraction else kept


def _missing(asked: Mapping[str, str]) -> InputError:
    """Ask for all that nobody said at once."""
    first, *others = asked
    more = "".join(f", and {flag} {asked[flag]}" for flag in others)
    return InputError(field=first, but=f"the data are not opened, so it must say {asked[first]}{more}")
