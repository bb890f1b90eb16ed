"""The grid that noisy numbers lie on: noise added in floating point would tell what it was added to."""

from __future__ import annotations

import numpy as np

from upcycled.core.vectors import Real


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
