"""Inner products of released vectors, less the privacy noise that is known to be in them.

In data round m the server sent y, and the aggregate came back as pull d = sum p_i r_i - y, which holds noise of energy
V = D noise_std^2. The noise of round m is independent of all that was sent before, so:

    E ||d||^2 = ||signal||^2 + V     subtract V;
    E <d, t>  = <signal, t>          for any t made of earlier releases: nothing to subtract.

A displacement s = (1 + rho) d that the server made of a pull holds (1 + rho)^2 V, and a sum of them the sum of that.
"""

from __future__ import annotations

import numpy as np

from upcycled.core.rule import Observed
from upcycled.core.vectors import Vector

LEAST_PART = 0.25
"""What is left of an energy is at least this part of it: a difference of two near numbers says little."""
USUAL_MEMORY, RISE = 0.85, 1.01
_PART = 4096


def pull(seen: Observed) -> Vector:
    """Return d: where the clients' aggregate lies, seen from what was sent to them."""
    sent, now = seen.iterates[-2].model, seen.iterates[-1].model
    return (now if seen.mean is None else seen.mean) - sent


def noise_energy(seen: Observed) -> float:
    """Return V, the expected squared norm of the privacy noise in the last aggregate."""
    return seen.iterates[-1].model.size * seen.noise_std**2


def dot(a: Vector, b: Vector) -> float:
    """Return <a, b>: parts too short for BLAS to share them out among threads, their sums added in float64."""
    return sum(float(np.dot(a[i : i + _PART], b[i : i + _PART])) for i in range(0, a.size, _PART))


def without_noise(energy: float, noise: float) -> float:
    """Return an energy less the expected noise in it, never less than a fixed part of it.

    >>> without_noise(10.0, 4.0), without_noise(10.0, 9.0)
    (6.0, 2.5)
    """
    return max(energy - noise, LEAST_PART * energy)


def cosine(product: float, one: float, other: float) -> float:
    """Return product / sqrt(one other) within -1 and 1; zero where it is not defined."""
    size = one * other
    if not size > 0 or not np.isfinite(size) or not np.isfinite(product):
        return 0.0
    return float(np.clip(product / np.sqrt(size), -1.0, 1.0))


def usual_energy(before: float, energy: float) -> float:
    """Return the energy that pulls usually have: it follows them down, and up by one per cent a round at most.

    So a run that drifts apart, however slowly, leaves it behind, and rules that allow a multiple of it fall back.

    >>> usual_energy(1.0, 0.0), usual_energy(1.0, 100.0)
    (0.85, 1.01)
    """
    return min(smoothed(before, energy, USUAL_MEMORY), RISE * before) if np.isfinite(energy) else before


def smoothed(before: float, now: float, memory: float) -> float:
    """Return the moving average memory before + (1 - memory) now."""
    return memory * before + (1 - memory) * now
