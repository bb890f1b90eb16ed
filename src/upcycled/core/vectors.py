"""Array types, the two means every server step is made of, and rows of many clients in one flat array.

Array types, and the two means every server step is made of.

Rows of many clients in one flat array: client i owns rows offsets[i] .. offsets[i+1]-1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.floating[Any]]
"""A flat float32 model, or a stack of them along leading axes: (..., D)."""

Real: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Outputs: TypeAlias = NDArray[np.float32]
"""What a model gives for samples: (samples,) or (samples, outputs)."""


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

    Noise added in floating point leaks: which numbers are reachable depends on what it was added to. With the value
    rounded to a grid and the noise a whole number of its steps, every sum is reachable from every value, and the exact
    formula holds with the sensitivity grown by g sqrt(D).

    >>> grid_step(np.array([1.0, 0.3, 0.0])).tolist() == [2.0**-20, 2.0**-22, 0.0]
    True
    """
    with np.errstate(divide="ignore"):
        step: Real = np.exp2(np.floor(np.log2(noise_std)) - 20)
    return step


def grid_scale(noise_std: Real) -> Real:
    """Return std/g, the noise's scale in steps of its grid: from 2^20 to 2^21, or zero for no noise.

    >>> grid_scale(np.array([1.0, 0.375, 0.0])).tolist() == [2.0**20, 1.5 * 2.0**20, 0.0]
    True
    """
    step = grid_step(noise_std)
    return np.divide(noise_std, step, out=np.zeros_like(step), where=step > 0)


def on_grid(values: Real, steps: Real, noise_std: Real) -> Real:
    """Return g (rint(values / g) + steps), row by row; without noise the values stay as they are.

    ``values`` (clients, D) are in float64, ``steps`` is their noise in grid steps, ``noise_std`` is (clients,).
    """
    step = grid_step(noise_std)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = step * (np.rint(values / step) + steps)
    return found if (noise_std > 0).all() else np.where(step > 0, found, values)


@dataclass(frozen=True)
class Shards:
    """Features ``x`` (rows, ...), targets ``y`` (rows, ...) and ``offsets`` (clients + 1,); may be memory-mapped."""

    x: NDArray[Any]
    y: NDArray[Any]
    """int64 classes (rows,), or float32 numbers or labels (rows,) or (rows, m)."""
    offsets: Ints

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_rows(self) -> int:
        return int(self.offsets[-1])

    @property
    def sizes(self) -> Ints:
        return np.diff(self.offsets)

    def sizes_of(self, clients: Ints) -> Ints:
        """Samples of the given clients, at the cost of the given clients."""
        sizes: Ints = self.offsets[clients + 1] - self.offsets[clients]
        return sizes

    def client(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return one client's features and targets (views, not copies)."""
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return self.x[rows], self.y[rows]
