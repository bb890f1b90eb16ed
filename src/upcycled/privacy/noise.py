"""Where the noise of releases comes from: a simulation's streams, or the operating system's entropy."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import numpy as np

from upcycled.core.streams import Purpose, Words, box_muller, client_keys, uniforms, unit_interval
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.discrete_laplace import discrete_laplace
from upcycled.privacy.tilt_noise import exponentials_from, normals_from


@dataclass(frozen=True)
class SeededNoise:
    """Reproducible noise for simulations: keyed (seed, purpose, round, client, attempt). It protects nobody."""

    seed: int
    round: int
    attempt: int = 0
    name: str = "seeded"

    def uniforms(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE, start: int = 0) -> Real:
        """Return uniforms in (0, 1), one stream per client."""
        return uniforms(client_keys(self.seed, purpose, self.round, clients, self.attempt), count, start)

    def normals(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE, start: int = 0) -> Real:
        """Return standard normals, one stream per client."""
        return box_muller(self.uniforms(clients, count + count % 2, purpose, start))[:, :count]

    def exponentials(self, clients: Ints, count: int, purpose: Purpose, start: int = 0) -> Real:
        """Return standard exponentials, one stream per client."""
        return -np.log(self.uniforms(clients, count, purpose, start))

    def gaussian_steps(
        self, clients: Ints, count: int, scale: Real, purpose: Purpose = Purpose.NOISE, start: int = 0
    ) -> Real:
        """Return normals of std ``scale`` rounded to integers."""
        return np.rint(scale[:, None] * self.normals(clients, count, purpose, start))

    def laplace_steps(
        self, clients: Ints, count: int, scale: Real, purpose: Purpose = Purpose.NOISE, start: int = 0
    ) -> Real:
        """Return Laplace numbers of this scale rounded to integers, by inverse transform."""
        return np.rint(scale[:, None] * _laplace(self.uniforms(clients, count, purpose, start)))


@dataclass(frozen=True)
class SystemNoise:
    """Noise that protects: SHAKE-256, keyed for every call with 32 fresh bytes of operating-system entropy.

    No key outlives its call, so none can be logged, copied, inherited by a forked process or stored, and a private run
    cannot be replayed. What remains is the error of float64 arithmetic in Box-Muller, which does not depend on data.
    """

    name: str = "system"

    def draw_words(self, count: int) -> Words:
        """Return words that were never drawn before."""
        drawn = hashlib.shake_256(os.urandom(32)).digest(8 * count)
        return np.frombuffer(drawn, dtype="<u8").astype(np.uint64)

    def uniforms(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE, start: int = 0) -> Real:
        """Return uniforms in (0, 1) that were never drawn before."""
        return unit_interval(self.draw_words(clients.size * count)).reshape(clients.size, count)

    def exponentials(self, clients: Ints, count: int, purpose: Purpose, start: int = 0) -> Real:
        """Return standard exponentials, of full relative precision."""
        return exponentials_from(self.draw_words, clients.size * count).reshape(clients.size, count)

    def normals(self, clients: Ints, count: int, purpose: Purpose, start: int = 0) -> Real:
        """Return standard normals, of full relative precision."""
        return normals_from(self.draw_words, clients.size * count).reshape(clients.size, count)

    def gaussian_steps(
        self, clients: Ints, count: int, scale: Real, purpose: Purpose = Purpose.NOISE, start: int = 0
    ) -> Real:
        """Return normals of std ``scale`` rounded to integers."""
        return np.rint(scale[:, None] * self.normals(clients, count, purpose, start))

    def laplace_steps(
        self, clients: Ints, count: int, scale: Real, purpose: Purpose = Purpose.NOISE, start: int = 0
    ) -> Real:
        """Return exact draws of the discrete Laplace distribution, its scale rounded up to an integer."""
        each = np.repeat(np.ceil(scale).astype(np.int64), count).reshape(clients.size, count)
        return discrete_laplace(each, self.draw_words).astype(np.float64)


def _laplace(uniform: Real) -> Real:
    """Turn uniforms into numbers of density exp(-|x|) / 2."""
    found: Real = np.where(uniform < 0.5, np.log(2 * uniform), -np.log(2 * (1 - uniform)))
    return found
