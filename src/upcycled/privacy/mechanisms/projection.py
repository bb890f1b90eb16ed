"""Features projected to a promised norm, sample by sample: the bound is made true, never trusted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from upcycled.core.shards import Shards
from upcycled.core.vectors import Real
from upcycled.support.formats import fixed, general, significant

_CHUNK = 1 << 22
"""Numbers worked on at a time: data sets may be memory-mapped."""
FAR_APART = 100
"""How many times a feature may be as large as another before somebody should know."""


def project(train: Shards, norm_bound: float) -> Shards:
    """Return the data with each sample's features scaled down to norm ``norm_bound`` at most.

    A sample with a feature that is not finite becomes zero, and so does a target: nothing a client holds may show by
    failing. Norms are computed in float64 and the bound holds for the float32 result.

    >>> shards = Shards(np.array([[3.0, 4.0], [0.1, 0.0], [np.nan, 1.0]]), np.zeros(3, dtype=int), np.array([0, 3]))
    >>> project(shards, 1.0).x.round(3).tolist()
    [[0.6, 0.8], [0.1, 0.0], [0.0, 0.0]]
    """
    rows, width = train.x.shape[0], int(np.prod(train.x.shape[1:]))
    found = np.empty(train.x.shape, dtype=np.float32)
    flat_in, flat_out = train.x.reshape(rows, width), found.reshape(rows, width)
    step = max(1, _CHUNK // max(width, 1))
    for first in range(0, rows, step):
        exact = flat_in[first : first + step].astype(np.float64)
        exact[~np.isfinite(exact).all(axis=1)] = 0.0
        # Divided by its largest entry first, so that squares neither overflow nor vanish.
        largest = np.abs(exact).max(axis=1, initial=0.0)
        scaled = exact / np.maximum(largest, 1e-300)[:, None]
        norms = largest * np.sqrt(np.einsum("rd,rd->r", scaled, scaled)) * (1 + width * 2.0**-52)
        # 2^-22 leaves room for the rounding to float32 that follows.
        shrink = np.where(norms > norm_bound, norm_bound * (1 - 2.0**-22) / np.maximum(norms, norm_bound), 1.0)
        flat_out[first : first + step] = exact * shrink[:, None]
    if train.y.dtype.kind != "f" or np.isfinite(train.y).all():
        return replace(train, x=found)
    return replace(train, x=found, y=np.where(np.isfinite(train.y), train.y, 0).astype(train.y.dtype))


def about_projection(train: Shards, norm_bound: float) -> tuple[str, ...]:
    """Return what is to be said of features that will be projected, a sentence each; it follows from the data.

    >>> far = Shards(np.array([[3.0, 400.0], [2.0, 500.0]]), np.zeros(2, dtype=int), np.array([0, 2]))
    >>> for words in about_projection(far, 1.0):
    ...     print(words)
    norm_bound 1 scales 100 % of the training samples down: ... or give a larger norm_bound
    feature 1 is 178 times as large as feature 0, ... so that their scales are alike
    """
    rows, width = train.x.shape[0], int(np.prod(train.x.shape[1:]))
    found: list[str] = []
    if not rows or not width or train.x.dtype.kind not in "fiu":
        return ()
    clipped, squares, there = 0, np.zeros(width), np.zeros(width, dtype=np.int64)
    for part in _parts(train, rows, width):
        with np.errstate(over="ignore", invalid="ignore"):
            square = np.nan_to_num(part * part, nan=0.0)
            clipped += int((square.sum(axis=1) > norm_bound**2).sum())
            squares += square.sum(axis=0)
        there += np.count_nonzero(square, axis=0)
    if clipped > rows / 2:
        found.append(
            f"norm_bound {general(norm_bound)} scales {fixed(clipped / rows, 0, 100)} % of the training samples down: "
            "what tells samples apart by their length is lost; scale features, or give a larger norm_bound"
        )
    # Of a feature that is mostly 0, as a pixel or a word is, the size where it is not.
    sizes: Real = np.sqrt(squares[there > 0] / there[there > 0])
    names = np.flatnonzero(there)
    if sizes.size and np.isfinite(sizes).all() and sizes.max() > FAR_APART * sizes.min():
        least, most = int(sizes.argmin()), int(sizes.argmax())
        times = significant(float(sizes[most] / sizes[least]), 3)
        found.append(
            f"feature {names[most]} is {times} times as large as feature {names[least]}, and samples are scaled down "
            "by the norm of all their features: scale them so that their scales are alike"
        )
    return tuple(found)


def _parts(train: Shards, rows: int, width: int) -> Iterator[Real]:
    flat, step = train.x.reshape(rows, width), max(1, _CHUNK // width)
    for first in range(0, rows, step):
        yield flat[first : first + step].astype(np.float64)
