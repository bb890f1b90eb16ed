"""Anderson's acceleration of the fixed-point iteration y -> y + u(y) that the data rounds are (Anderson 1965).

From the last few points sent y_j and the updates u_j that came back, find weights a_j with sum 1 that make the combined
update ||sum a_j u_j||^2 as small as it gets, and go to sum a_j (y_j + u_j). With two points on a line this is the
secant step, which finds the fixed point of a linear iteration at once.

Privacy noise of energy V_j in u_j adds sum a_j^2 V_j to what is made small, and that is exactly the noise that the
combination would carry: it stays in, and keeps the weights from chasing noise. It is subtracted where it is in the way,
in the test whether updates grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from upcycled.core.algorithm import Server
from upcycled.core.errors import check_number
from upcycled.core.rules.contract import Move, RuleState, Seen
from upcycled.core.rules.energy import dot, noise_energy, without_noise
from upcycled.core.vectors import Real, Vector


@dataclass(frozen=True)
class Anderson:
    """Combine the last few points and updates so that the combined update is smallest."""

    points: int = 3
    """How many are combined."""
    ridge: float = 0.1
    """Weight of sum a_j^2, as a part of the mean squared update."""
    most: float = 2.0
    """The longest move, in lengths of the last update."""
    growth: float = 2.0
    """An update longer than this many times the one before starts the collection anew."""

    depth: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_number("Anderson points", self.points, at_least=2, integer=True)
        check_number("Anderson ridge", self.ridge, above=0)
        check_number("Anderson most", self.most, at_least=0)
        check_number("Anderson growth", self.growth, at_least=1)

    def start(self) -> RuleState:
        """No points yet."""
        return {}

    def move(self, own: RuleState, seen: Seen, moves: tuple[str, ...]) -> tuple[Move, RuleState]:
        """Go to the combination; further iterations after the same data round repeat the iterate."""
        before, now = seen.iterates[-2], seen.iterates[-1]
        if seen.phase > 0:
            return Move(now, 0.0), own
        size = now.model.size
        arrived = _flat(now, moves)
        update = arrived - _flat(before, moves)
        energy = without_noise(dot(update[:size], update[:size]), noise_energy(seen))
        collected = bool(own) and energy <= self.growth**2 * float(own["energy"]) and np.isfinite(energy)
        ends = np.vstack([own["ends"], arrived])[-self.points :] if collected else arrived[None, :]
        updates = np.vstack([own["updates"], update])[-self.points :] if collected else update[None, :]
        after: RuleState = {"ends": ends, "updates": updates, "energy": np.array(energy)}
        if len(ends) == 1:
            return Move(now, 0.0), after
        weights = self._weights(updates[:, :size])
        step = np.einsum("p,pd->d", weights, ends - arrived)
        length, limit = np.sqrt(dot(step[:size], step[:size])), self.most * np.sqrt(dot(update[:size], update[:size]))
        if not np.isfinite(length) or length == 0 or not np.isfinite(limit):
            return Move(now, 0.0), after
        step *= min(1.0, limit / length)
        return Move(_moved(now, step.astype(np.float32), moves), None), after

    def _weights(self, updates: Vector) -> Real:
        gram = np.einsum("pd,qd->pq", updates, updates, dtype=np.float64, casting="same_kind")
        gram = gram + self.ridge * np.trace(gram) / len(gram) * np.eye(len(gram))
        if not np.isfinite(gram).all() or np.trace(gram) == 0:
            return _last(len(gram))
        solved = np.linalg.solve(gram, np.ones(len(gram)))
        weights: Real = solved / solved.sum()
        return weights


def _last(count: int) -> Real:
    weights = np.zeros(count)
    weights[-1] = 1.0
    return weights


def _flat(server: Server, moves: tuple[str, ...]) -> Vector:
    return np.concatenate([server.model, *(server.vectors[name] for name in moves)])


def _moved(now: Server, step: Vector, moves: tuple[str, ...]) -> Server:
    size = now.model.size
    parts = {name: step[size * (i + 1) : size * (i + 2)] for i, name in enumerate(moves)}
    return Server(now.model + step[:size], {**now.vectors, **{name: now.vectors[name] + parts[name] for name in moves}})
