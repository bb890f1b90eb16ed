"""Features projected to a promised norm, sample by sample: the bound is made true, never trusted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from upcycled.core.shards import Shards

_CHUNK = 1 << 22
"""Numbers worked on at a time: data sets may be memory-mapped."""


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
