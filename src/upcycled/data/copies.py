"""Which samples are copies of others: equal rows, exactly or by a 64-bit hash of each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.streams import Words, mix_array
from upcycled.core.vectors import Ints
from upcycled.data.checks import chunks


def numbered(x: NDArray[Any]) -> Ints:
    """Return for every row the place of its value among all distinct ones, in the order of their bytes.

    Exact, and slow for many rows: what is known to have copies (``has_copies``) is held out by these numbers.
    """
    rows = np.ascontiguousarray(x).reshape(len(x), -1)
    _, sample = np.unique(rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel(), return_inverse=True)
    return sample.astype(np.int64)


def row_hashes(x: NDArray[Any]) -> Words:
    """Return a number for every row, equal for equal rows.

    Among ten million different rows two have the same number with a chance of 3 in a million; then they are merely
    taken for copies.
    """
    keys = mix_array(np.arange(int(np.prod(x.shape[1:], dtype=np.int64)), dtype=np.uint64))
    out = np.empty(len(x), dtype=np.uint64)
    for start, chunk in chunks(x):
        rows = np.ascontiguousarray(chunk).reshape(len(chunk), -1)
        # Each word is hashed before they are added up: floats end in many zero bits, which a plain sum would keep.
        out[start : start + len(chunk)] = mix_array(rows.view(f"u{rows.itemsize}") + keys).sum(axis=1)
    return out


def leaders(x: NDArray[Any]) -> Ints | None:
    """Return for every row the first of its copies (itself where it has none); None where no row has any.

    Equal rows are copies only where more than half of all rows are distinct, and a row that occurs more often than
    the square root of their number is a common value: in a table of a few categories nearly all rows are equal to
    others, and yet are different samples.

    >>> leaders(np.array([[0.5], [0.1], [0.5], [0.7]])).tolist()
    [0, 1, 0, 3]
    >>> leaders(np.array([[0], [1], [0], [1]])) is None
    True
    """
    hashes = row_hashes(x)
    ordered = np.sort(hashes)
    distinct = 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))
    if distinct == len(x) or 2 * distinct <= len(x):
        return None
    _, first, group, counts = np.unique(hashes, return_index=True, return_inverse=True, return_counts=True)
    is_common = counts[group] ** 2 > len(x)
    return np.where(is_common, np.arange(len(x)), first[group])
