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


def grid_step(noise_std: Real) -> Real:
    """Return the spacing g = 2^(floor(log2 std) - 20) of the grid that releases lie on; zero for no noise.

    Noise added in floating point leaks: which numbers are reachable depends on what it was added to. With both the
    value and the noise rounded to one grid, their sum is post-processing of the continuous Gaussian, and the exact
    formula holds with the sensitivity grown by g sqrt(D).

    >>> grid_step(np.array([1.0, 0.3, 0.0])).tolist() == [2.0**-20, 2.0**-22, 0.0]
    True
    """
    with np.errstate(divide="ignore"):
        step: Real = np.exp2(np.floor(np.log2(noise_std)) - 20)
    return step


def on_grid(values: Real, noise: Real, noise_std: Real) -> Real:
    """Return g (rint(values / g) + rint(noise / g)), row by row; without noise the values stay as they are.

    ``values`` and ``noise`` are (clients, D) in float64, ``noise_std`` is (clients,).
    """
    step = grid_step(noise_std)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = step * (np.rint(values / step) + np.rint(noise / step))
    return found if (noise_std > 0).all() else np.where(step > 0, found, values)
