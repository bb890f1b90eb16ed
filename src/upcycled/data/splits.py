"""Which of a client's rows are held out: a hash of (seed, purpose, client, row), the same for equal rows.

Which samples are copies of others: equal rows, exactly or by a 64-bit hash of each.

Which of a client's rows are held out: a hash of (seed, purpose, client, row), so no client disturbs another.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.randomness import Words, mix, mix_array
from upcycled.core.vectors import Ints, Shards
from upcycled.data.arrays import chunks


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


TEST = 0x7E57
VALIDATION = 0x7A11D


def kept_sizes(sizes: Ints, fraction: float) -> Ints:
    """Return how many rows stay: floor((1 - fraction) n), at least one, as in the published synthetic sets.

    >>> kept_sizes(np.array([50, 51, 1]), 0.1).tolist()
    [45, 45, 1]
    """
    # The tiny addition keeps (1 - 0.9) * 10 = 0.999... from losing a row.
    kept: Ints = np.minimum(np.maximum(np.floor((1.0 - fraction) * sizes + 1e-9).astype(np.int64), 1), sizes)
    return kept


def held_out(offsets: Ints, fraction: float, seed: int, purpose: int) -> NDArray[np.bool_]:
    """Return a mask over all rows; a client's part of it depends on its number and its size only."""
    sizes = np.diff(offsets)
    owner = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    within = np.arange(int(offsets[-1]), dtype=np.int64) - offsets[owner]
    key = np.uint64(mix(mix(seed) ^ purpose))
    client_keys = mix_array(np.arange(len(sizes), dtype=np.uint64) ^ key)
    ranks = mix_array(client_keys[owner] + mix_array(within.astype(np.uint64)))
    # Rows are grouped by owner already, so position j after sorting still belongs to owner[j].
    order = np.lexsort((ranks, owner))
    mask = np.zeros(len(owner), dtype=np.bool_)
    mask[order] = within >= kept_sizes(sizes, fraction)[owner]
    return mask


def held_out_together(shards: Shards, fraction: float, seed: int, purpose: int) -> NDArray[np.bool_]:
    """Return a mask that holds equal rows out together, whoever has them: so many of the distinct rows.

    Every client keeps a row.
    """
    sample = numbered(shards.x)
    ranks = mix_array(np.arange(int(sample.max()) + 1, dtype=np.uint64) ^ np.uint64(mix(mix(seed) ^ purpose)))
    held = np.zeros(len(ranks), dtype=np.bool_)
    kept = int(kept_sizes(np.array([len(ranks)]), fraction)[0])
    held[np.argsort(ranks, kind="stable")[kept:]] = True
    for start, end in itertools.pairwise(shards.offsets):
        if held[sample[start:end]].all():
            held[sample[start]] = False
    mask: NDArray[np.bool_] = held[sample]
    return mask


def split_off(
    shards: Shards, fraction: float, seed: int, purpose: int, together: bool | None = False
) -> tuple[Shards, Shards]:
    """Return (what stays, what is held out); both are new arrays and keep the order of the rows.

    ``together`` None holds rows out client by client, and then looks for copies and brings each to its first one.
    """
    if together:
        mask = held_out_together(shards, fraction, seed, purpose)
    else:
        mask = held_out(shards.offsets, fraction, seed, purpose)
        leader = leaders(shards.x) if together is None and mask.any() else None
        mask = mask if leader is None else _following(mask, leader, shards.offsets)
    return _take(shards, ~mask), _take(shards, mask)


def _following(mask: NDArray[np.bool_], leader: Ints, offsets: Ints) -> NDArray[np.bool_]:
    """Return the mask with every row where its leader is; every client keeps a row, with all its copies."""
    held = mask[leader]
    kept = np.concatenate([[0], np.cumsum(~held)])[offsets]
    bare = np.flatnonzero((kept[1:] == kept[:-1]) & (offsets[1:] > offsets[:-1]))
    is_freed = np.zeros(len(held), dtype=np.bool_)
    is_freed[leader[offsets[bare]]] = True
    result: NDArray[np.bool_] = held & ~is_freed[leader]
    return result


def _take(shards: Shards, mask: NDArray[np.bool_]) -> Shards:
    before = np.concatenate([[0], np.cumsum(mask)])
    return Shards(shards.x[mask], shards.y[mask], before[shards.offsets].astype(np.int64))
