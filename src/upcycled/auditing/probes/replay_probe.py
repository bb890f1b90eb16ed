"""Neighbours that answer with the same releases: whatever the server then has must be the same, bit for bit.

It finds memories made of models that were never released, upcycled iterations that look at data, steps or charges that
follow from records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np

from upcycled.auditing.probes.findings import Finding
from upcycled.auditing.worlds import Silence, World
from upcycled.core.mechanism import NoiseSource, Release, Trained
from upcycled.core.sampler import Cohort
from upcycled.core.shards import Shards
from upcycled.core.vectors import Ints, Vector
from upcycled.runtime.plan import Plan


@dataclass
class _Tape:
    """What one world released, for the other to release again."""

    cohorts: list[frozenset[int]] = field(default_factory=list)
    releases: list[Vector] = field(default_factory=list)
    means: list[Vector] = field(default_factory=list)
    played: int = 0


def replay_finding(plan: Plan, worlds: tuple[Shards, Shards], clients: list[int], rounds: int) -> Finding:
    """Go through data rounds in a world, and once more in its neighbour with what the first one released."""
    tape = _Tape()
    again = replace(plan, mechanism=replace(plan.mechanism, **_played(plan, tape)))
    first, second = World(plan, worlds[0], clients), World(again, worlds[1], clients)
    looked_at = f"{rounds} data rounds of neighbours that answer with the same releases, at {len(clients)} clients"
    try:
        for one, two in zip(_states(first, rounds, tape, False), _states(second, rounds, tape, True), strict=True):
            for name, value in one.items():
                if value != two[name]:
                    where = f"after iteration {one['iteration']}"
                    return Finding("replay", looked_at, f"{name} {where} follows from records and not from releases")
            if one["upcycled"] and (one["trainings"] or two["trainings"]):
                return Finding("replay", looked_at, f"the upcycled iteration {one['iteration']} trained clients")
    finally:
        first.close()
        second.close()
    return Finding("replay", looked_at)


def _played(plan: Plan, tape: _Tape) -> dict[str, Any]:
    """Return hooks that do their work, and then hand over what is on the tape."""
    own = plan.mechanism

    def release(trained: Trained, sent: Vector, cohort: Cohort, num_samples: Ints, noise: NoiseSource) -> Release:
        made = own.release(trained, sent, cohort, num_samples, noise)
        tape.played += 1
        return made if own.is_central else replace(made, vectors=tape.releases[tape.played - 1])

    def aggregate(release: Release, sent: Vector, noise: NoiseSource) -> Vector:
        own.aggregate(release, sent, noise)
        return tape.means[tape.played - 1]

    return {"release": release} | ({"aggregate": aggregate} if own.is_central else {})


def _states(world: World, rounds: int, tape: _Tape, is_played: bool) -> Iterator[dict[str, Any]]:
    """Yield what is known after each iteration, by name: all of it public but for the number of trainings.

    The first world writes the tape. The second plays it: secret draws then give the cohorts of the first, because
    coins of the system would give two sound worlds different cohorts.
    """
    run, plan = world.begin(), world.heard
    while run.state.iteration < plan.iterations and run.state.data_rounds < rounds + 1:
        before, trained = run.state.data_rounds, world.engine.trainings
        if plan.strategy.kind(run.state) == "data":
            if before == rounds:
                return
            if is_played and plan.mechanism.draws_secretly:
                run = replace(run, noise=Silence(cohort=tape.cohorts[tape.played]))
        run = world.iterate(run)
        is_upcycled = run.state.data_rounds == before
        found = {"iteration": run.state.iteration, "upcycled": is_upcycled}
        found |= {"trainings": world.engine.trainings - trained}
        if not is_upcycled:
            arrived = world.arrived
            if not is_played:
                tape.cohorts.append(frozenset(arrived.release.clients.tolist()))
                tape.releases.append(np.array(arrived.release.vectors))
                tape.means.append(np.array(arrived.mean))
            found |= {"the cohort": _plain(arrived.release.clients)}
            found |= {"the number of local steps": _plain(arrived.release.num_steps)}
        found |= {"the server's state": _plain(run.state), "what is remembered of clients": _plain(_rows(run.memory))}
        found |= {"the ledger": _plain([] if run.ledger is None else [one.charge for one in run.ledger])}
        yield found


def _rows(memory: Any) -> Any:
    return memory.content() if memory.names else ()


def _plain(value: Any) -> Any:
    """Return a value that is equal exactly if all bits are."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, np.ascontiguousarray(value).tobytes())
    if is_dataclass(value) and not isinstance(value, type):
        return tuple((one.name, _plain(getattr(value, one.name))) for one in fields(value))
    if isinstance(value, Mapping):
        return tuple((name, _plain(one)) for name, one in value.items())
    if isinstance(value, list | tuple):
        return tuple(_plain(one) for one in value)
    return repr(value)
