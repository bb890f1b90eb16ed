"""Array types, and the two means every server step is made of."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.floating[Any]]
"""A flat float32 model, or a stack of them along leading axes: (..., D)."""

Real: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


def weighted_mean(weights: Real, vectors: Vector) -> Vector:
    """Return sum_i w_i v_i / sum_i w_i over the cohort axis (second to last), summed in float64.

    ``einsum`` rather than BLAS: its result does not depend on a thread setting.

    >>> weighted_mean(np.array([1.0, 3.0]), np.array([[0.0], [4.0]], dtype=np.float32)).tolist()
    [3.0]
    """
    shares = np.asarray(weights, dtype=np.float64)
    shares = shares / shares.sum(axis=-1, keepdims=True)
    mean: Vector = np.einsum("...c,...cd->...d", shares, vectors).astype(np.float32)
    return mean


def plain_mean(vectors: Vector) -> Vector:
    """Return the unweighted mean over the cohort axis (second to last), summed in float64."""
    return weighted_mean(np.ones(vectors.shape[:-1]), vectors)
