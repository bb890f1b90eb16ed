"""The comparison on the four official synthetic sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from studies.coefficients import settings as s
from studies.coefficients.choices import Wanted, best_way, key, places, three_lrs
from studies.common.store import Cells


@dataclass(frozen=True)
class Place:
    """Where contestants meet: everything but the contestant, the seed and the reading."""

    data: str
    algorithm: str
    stragglers: float
    regime: str
    lr: float

    def key(self, contestant: str, seed: int) -> str:
        return key("test", self.data, self.algorithm, self.stragglers, self.regime, contestant, seed)


def all_places(choices: Cells, sets: tuple[str, ...], algorithms: tuple[str, ...]) -> Iterator[Place]:
    for name, algorithm, stragglers in places(sets, algorithms):
        for regime, lr in zip(s.REGIMES, three_lrs(choices, name, algorithm, stragglers), strict=True):
            yield Place(name, algorithm, stragglers, regime, lr)


def contestants(choices: Cells, place: Place) -> dict[str, s.Way]:
    """Return who meets there; the tuned server step only where the algorithm has one."""
    where = (place.data, place.algorithm, place.stragglers, place.lr)
    constant, server = best_way(choices, *where, kind="rho"), best_way(choices, *where, kind="server")
    found = {"vanilla": s.VANILLA} | {name: s.Way(name, upcycle=rule) for name, rule in s.RULES.items()}
    found |= {} if constant is None else {s.CONSTANT: constant}
    return found | ({} if server is None else {s.SERVER: server})


def runs(choices: Cells, sets: tuple[str, ...], algorithms: tuple[str, ...], seeds: tuple[int, ...]) -> Wanted:
    wanted: Wanted = {}
    for place in all_places(choices, sets, algorithms):
        for name, way in contestants(choices, place).items():
            for seed in seeds:
                made = partial(s.arguments, s.syn(place.data), place.algorithm, place.lr, place.stragglers, way, seed)
                wanted[place.key(name, seed)] = made
    return wanted
