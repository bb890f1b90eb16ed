"""Where the noise of releases comes from."""

from __future__ import annotations

from dataclasses import dataclass

from upcycled.core.streams import Purpose, client_keys, normals
from upcycled.core.vectors import Ints, Real


@dataclass(frozen=True)
class SeededNoise:
    """Reproducible noise for simulations: keyed (seed, client, round, attempt). It protects nobody."""

    seed: int
    round: int
    attempt: int = 0
    name: str = "seeded"

    def normals(self, clients: Ints, count: int) -> Real:
        """Return standard normals, one stream per client."""
        return normals(client_keys(self.seed, Purpose.NOISE, self.round, clients, self.attempt), count)
