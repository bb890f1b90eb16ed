"""Where the noise of releases comes from: a simulation's streams, or the operating system's entropy."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from upcycled.core.streams import Purpose, Words, box_muller, client_keys, uniforms, unit_interval
from upcycled.core.vectors import Ints, Real


@dataclass(frozen=True)
class SeededNoise:
    """Reproducible noise for simulations: keyed (seed, purpose, round, client, attempt). It protects nobody."""

    seed: int
    round: int
    attempt: int = 0
    name: str = "seeded"

    def uniforms(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE) -> Real:
        """Return uniforms in (0, 1), one stream per client."""
        return uniforms(client_keys(self.seed, purpose, self.round, clients, self.attempt), count)

    def normals(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE) -> Real:
        """Return standard normals, one stream per client."""
        return box_muller(self.uniforms(clients, count + count % 2, purpose))[:, :count]


@dataclass(frozen=True)
class SystemNoise:
    """Noise that protects: SHAKE-256 keyed with 32 bytes of operating-system entropy, each block used once.

    The key is never logged, shown or stored, so a private run cannot be replayed. What remains is the error of
    float64 arithmetic in Box-Muller, which does not depend on data.
    """

    name: str = "system"
    _key: bytes = field(default_factory=lambda: os.urandom(32), repr=False, compare=False)
    _blocks: Iterator[int] = field(default_factory=itertools.count, repr=False, compare=False)

    def __reduce__(self) -> tuple[type[SystemNoise], tuple[()]]:
        # A copy in another process must not share the stream: it draws a key of its own.
        return SystemNoise, ()

    def uniforms(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE) -> Real:
        """Return uniforms in (0, 1); every call uses a new block of the stream."""
        block = next(self._blocks).to_bytes(16, "little")
        drawn = hashlib.shake_256(self._key + block).digest(8 * clients.size * count)
        found: Words = np.frombuffer(drawn, dtype="<u8").astype(np.uint64)
        return unit_interval(found).reshape(clients.size, count)

    def normals(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE) -> Real:
        """Return standard normals; every call uses a new block of the stream."""
        return box_muller(self.uniforms(clients, count + count % 2, purpose))[:, :count]


def grid_step(noise_std: Real) -> Real:
    """Return the spacing g = 2^(floor(log2 std) - 20) of the grid that releases lie on.

    Noise added in floating point leaks: which numbers are reachable depends on what it was added to. With both the
    value and the noise rounded to one grid, their sum is post-processing of the continuous Gaussian, and the exact
    formula holds with the sensitivity grown by g sqrt(D).

    >>> grid_step(np.array([1.0, 0.3])).tolist() == [2.0**-20, 2.0**-22]
    True
    """
    step: Real = np.exp2(np.floor(np.log2(noise_std)) - 20)
    return step


def on_grid(values: Real, noise: Real, noise_std: Real) -> Real:
    """Return g (rint(values / g) + rint(noise / g)), row by row; without noise the values stay as they are.

    ``values`` and ``noise`` are (clients, D) in float64, ``noise_std`` is (clients,).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        step = grid_step(noise_std)[:, None]
        found = step * (np.rint(values / step) + np.rint(noise / step))
    return np.where(noise_std[:, None] > 0, found, values)
