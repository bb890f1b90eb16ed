"""A column that says which rows are for training and which for testing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError

_SPLITS = {"train": False, "0": False, "test": True, "1": True}
_WRITTEN = {"0.0": "0", "1.0": "1", "false": "0", "true": "1"}


def is_test_row(title: str, name: str, values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows are for testing.

    Args:
        title: the file's, for a sentence.
        name: the column's.
        values: its cells.

    Raises:
        InputError: in one sentence, if a cell says neither.

    >>> is_test_row("a.csv", "part", np.array(["train", "Test ", "0"], dtype=object)).tolist()
    [False, True, False]
    """
    known: dict[Any, bool] = {}
    for value in values.tolist():
        if value not in known:
            word = str(value).strip().lower()
            word = _WRITTEN.get(word, word)
            if word not in _SPLITS:
                raise InputError(
                    f"has {str(value)!r} in split column '{name}', but it must be 'train' or 'test', or 0 or 1",
                    field=title,
                )
            known[value] = _SPLITS[word]
    return np.array([known[value] for value in values.tolist()], dtype=np.bool_)
