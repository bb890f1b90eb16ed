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
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from upcycled.coefficients.energy import dot, noise_energy, usual_energy, without_noise
from upcycled.core.algorithm import Server
from upcycled.core.errors import NOT_NEGATIVE, POSITIVE, Limits, check_fields
from upcycled.core.rule import Move, Observed, RuleState
from upcycled.core.vectors import Real, Vector


@dataclass(frozen=True)
class Anderson:
    """Combine the last few points and updates so that the combined update is smallest.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(
    ...     data, algorithm=up.FedAvg(), upcycle=up.coefficients.Anderson(points=3), iterations=12, progress=False
    ... )
    >>> run.history[-1].coefficient is None  # a combination of several points has no single one
    True
    """

    points: Annotated[int, Limits(at_least=2, integer=True)] = 3
    """How many are combined."""
    ridge: Annotated[float, POSITIVE] = 0.1
    """Weight of sum a_j^2, as a part of the mean squared update."""
    most: Annotated[float, NOT_NEGATIVE] = 2.0
    """The longest move, in lengths of the last update."""
    growth: Annotated[float, Limits(at_least=1)] = 2.0
    """An update longer than this many times the usual one starts the collection anew."""

    depth: ClassVar[int] = 2
    per_round: ClassVar[int] = 1
    uses_spread: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self) -> RuleState:
        return {}

    def move(self, own: RuleState, seen: Observed, moves: tuple[str, ...]) -> tuple[Move, RuleState]:
        """Go to the combination; further iterations after the same data round repeat the iterate."""
        before, now = seen.iterates[-2], seen.iterates[-1]
        if seen.phase > 0:
            return Move(now, 0.0), own
        size = now.model.size
        arrived = _flat(now, moves)
        update = arrived - _flat(before, moves)
        energy = without_noise(dot(update[:size], update[:size]), noise_energy(seen))
        usual = float(own["usual"]) if own else energy
        collected = bool(own) and energy <= self.growth**2 * usual and np.isfinite(energy)
        ends: list[Vector] = [arrived]
        updates: list[Vector] = [update]
        if collected:
            ends = [*_listed(own, "end"), arrived][-self.points :]
            updates = [*_listed(own, "update"), update][-self.points :]
        after = _named("end", ends) | _named("update", updates) | {"usual": np.array(usual_energy(usual, energy))}
        if len(ends) == 1:
            return Move(now, 0.0), after
        weights = self._weights([one[:size] for one in updates])
        # The newest point itself contributes nothing: the weights have the sum one.
        step = np.zeros_like(arrived)
        for weight, end in zip(weights[:-1], ends[:-1], strict=True):
            step += np.float32(weight) * (end - arrived)
        length, limit = np.sqrt(dot(step[:size], step[:size])), self.most * np.sqrt(dot(update[:size], update[:size]))
        if not np.isfinite(length) or length == 0 or not np.isfinite(limit):
            return Move(now, 0.0), after
        step = np.float32(min(1.0, limit / length)) * step
        return Move(_moved(now, step, moves), None), after

    def _weights(self, updates: list[Vector]) -> Real:
        gram = np.zeros((len(updates), len(updates)))
        for i, one in enumerate(updates):
            for j, other in enumerate(updates[: i + 1]):
                gram[i, j] = gram[j, i] = dot(one, other)
        gram = gram + self.ridge * np.trace(gram) / len(gram) * np.eye(len(gram))
        if not np.isfinite(gram).all() or np.trace(gram) == 0:
            return _last(len(gram))
        solved = np.linalg.solve(gram, np.ones(len(gram)))
        weights: Real = solved / solved.sum()
        return weights


def _named(kind: str, vectors: list[Vector]) -> dict[str, NDArray[Any]]:
    return {f"{kind}{i}": vector for i, vector in enumerate(vectors)}


def _listed(own: RuleState, kind: str) -> list[Vector]:
    count = sum(name.startswith(kind) for name in own)
    return [own[f"{kind}{i}"] for i in range(count)]


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
