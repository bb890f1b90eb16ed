"""Where the noise of releases comes from: a simulation's streams, or the operating system's entropy."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import numpy as np

from upcycled.core.randomness import Purpose, Words, client_keys, normals, round_key, uniforms, unit_interval
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.noise.discrete import WordSource, discrete_gaussian, discrete_laplace
from upcycled.privacy.noise.gamma import exponentials_from, normals_from

_MANY = 1 << 15
"""Numbers of one call that are worth half a second of Numba's import: a run has many calls."""


@dataclass(frozen=True)
class SeededNoise:
    """Reproducible noise for simulations: keyed (seed, purpose, round, client, attempt). It protects nobody."""

    seed: int
    round: int
    attempt: int = 0
    name: str = "seeded"

    def round_key(self, purpose: Purpose) -> int | None:
        """Return the key that ``core.randomness`` makes these numbers from."""
        return round_key(self.seed, purpose, self.round, self.attempt)

    def uniforms(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE, start: int = 0) -> Real:
        """Return uniforms in (0, 1), one stream per client."""
        return uniforms(client_keys(self.seed, purpose, self.round, clients, self.attempt), count, start)

    def normals(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE, start: int = 0) -> Real:
        """Return standard normals, one stream per client."""
        keys = client_keys(self.seed, purpose, self.round, clients, self.attempt)
        if keys.size * count < _MANY and "numba" not in sys.modules:
            return normals(keys, count, start)
        # The same bits, compiled; only who draws many, or has Numba already, waits for it.
        from upcycled.privacy.noise.kernels import normal_rows

        out = np.empty((keys.size, count + count % 2))
        normal_rows(keys, start, out)
        return out[:, :count]

    def exponentials(self, clients: Ints, count: int, purpose: Purpose, start: int = 0) -> Real:
        """Return standard exponentials, one stream per client."""
        return -np.log(self.uniforms(clients, count, purpose, start))

    def gaussian_steps(
        self, clients: Ints, count: int, scale: Real, purpose: Purpose = Purpose.NOISE, start: int = 0
    ) -> Real:
        """Return normals of std ``scale`` rounded to integers."""
        found = self.normals(clients, count, purpose, start)
        return np.rint(np.multiply(found, scale[:, None], out=found), out=found)

    def laplace_steps(
        self, clients: Ints, count: int, scale: Real, purpose: Purpose = Purpose.NOISE, start: int = 0
    ) -> Real:
        """Return Laplace numbers of this scale rounded to integers."""
        return np.rint(scale[:, None] * _laplace(self.uniforms(clients, count, purpose, start)))


def fresh_words(count: int) -> Words:
    """Return random 64-bit words: AES-256 in counter mode, keyed with 32 fresh bytes of operating-system entropy.

    No key outlives its call, so none can be logged, copied, inherited by a forked process or stored.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    stream = Cipher(AES(os.urandom(32)), CTR(bytes(16))).encryptor().update(bytes(8 * count))
    found: Words = np.frombuffer(stream, dtype="<u8").astype(np.uint64)  # a copy: kernels are compiled for such
    return found


@dataclass(frozen=True)
class SystemNoise:
    """Noise that protects: exact discrete samplers (see ``privacy.sampling``), fed with words that nobody can know.

    A private run cannot be replayed. Tests and audits may put words of their own in the place of ``words`` and run this
    very code; such noise protects nobody.
    """

    words: WordSource = fresh_words
    name: str = "system"

    def round_key(self, purpose: Purpose) -> int | None:
        """There is none: nobody can compute these numbers."""
        return None

    def uniforms(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE, start: int = 0) -> Real:
        """Return uniforms in (0, 1) that were never drawn before."""
        return unit_interval(self.words(clients.size * count)).reshape(clients.size, count)

    def exponentials(self, clients: Ints, count: int, purpose: Purpose, start: int = 0) -> Real:
        """Return standard exponentials of full relative precision."""
        return exponentials_from(self.words, clients.size * count).reshape(clients.size, count)

    def normals(self, clients: Ints, count: int, purpose: Purpose, start: int = 0) -> Real:
        """Return standard normals of full relative precision: inside objectives only. No release adds them."""
        return normals_from(self.words, clients.size * count).reshape(clients.size, count)

    def gaussian_steps(
        self, clients: Ints, count: int, scale: Real, purpose: Purpose = Purpose.NOISE, start: int = 0
    ) -> Real:
        """Return discrete Gaussian integers that were never drawn before."""
        return discrete_gaussian(scale, count, self.words)

    def laplace_steps(
        self, clients: Ints, count: int, scale: Real, purpose: Purpose = Purpose.NOISE, start: int = 0
    ) -> Real:
        """Return discrete Laplace integers, of the next whole scale, that were never drawn before."""
        return discrete_laplace(scale, count, self.words)


def _laplace(uniform: Real) -> Real:
    """Turn uniforms into numbers of density exp(-|x|) / 2, by inverse transform."""
    found: Real = np.where(uniform < 0.5, np.log(2 * uniform), -np.log(2 * (1 - uniform)))
    return found
