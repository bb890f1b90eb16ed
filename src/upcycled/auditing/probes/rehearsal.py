"""Rounds of the real loop, each beside itself without noise, and what is left of a release over its ledger line.

The noise comes from where training takes it: from the run's own seed, round and attempt, or from the system. The round
without noise starts from the same state of the server and has the same local work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv

from upcycled.auditing.probes.noise_gain import noise_gain
from upcycled.auditing.probes.tilts import tilts_in
from upcycled.auditing.worlds import Silence, World, copied, released_by
from upcycled.core.mechanism import Charge
from upcycled.core.solvers import NoisySGD, Problem
from upcycled.core.vectors import Ints, Real, Vector
from upcycled.runtime.plan import Plan
from upcycled.runtime.state import Run

SERVER = -1
"""Stands for a client where only the aggregate is released."""
MOST_NUMBERS, MOST_IN_ALL = 2048, 20_000_000
"""Of a release, and of all, that are held against others: a sample where there are more."""


@dataclass(frozen=True, eq=False)
class Seen:
    """One data round: what the server was handed, the same without noise, and what the ledger says of it."""

    round: int
    clients: Ints
    released: Vector
    silent: Vector
    sent: Vector
    problem: Problem
    """The algorithm's part."""
    num_steps: Ints
    line: Charge | None
    """The ledger's; None where there is none for this round."""

    @property
    def is_charged(self) -> bool:
        """Whether the ledger has a line for everybody who released something."""
        return self.line is not None and set(self.clients.tolist()) <= set(self.line.clients.tolist())


def rehearse(world: World, rounds: int) -> Iterator[tuple[Run, Seen]]:
    """Go through so many data rounds of a world, and the iterations between them."""
    run, plan = world.begin(), world.heard
    done = 0
    while done < rounds and run.state.iteration < plan.iterations:
        before = _apart(run, plan)
        clients, number = run.state.data_rounds, run.state.data_rounds + 1
        known = 0 if run.ledger is None else len(tuple(run.ledger))
        run = world.iterate(run)
        if run.state.data_rounds == clients:
            continue
        done += 1
        arrived, released = world.arrived, released_by(world).astype(np.float64)
        asked = plan.strategy.algorithm.problem(before.state.server, before.memory.gather(arrived.release.clients))
        lines = () if run.ledger is None else tuple(run.ledger)[known:]
        charges = [one.charge for one in lines if one.kind == "data" and one.round == number]
        world.iterate(replace(before, noise=Silence(cohort=frozenset(arrived.release.clients.tolist()))))
        yield (
            run,
            Seen(
                round=number,
                clients=arrived.release.clients,
                released=released,
                silent=released_by(world).astype(np.float64),
                sent=before.state.server.model,
                problem=asked,
                num_steps=arrived.release.num_steps,
                line=charges[-1] if charges else None,
            ),
        )


def _apart(run: Run, plan: Plan) -> Run:
    """Return the run with memories of its own, and without a ledger."""
    many, size = plan.facts.num_clients, plan.layout.size
    return replace(
        run, memory=copied(run.memory, many, size), private=copied(run.private, many, size), ledger=None, noise=None
    )


def whitened(world: World, seen: Seen, unit: float) -> Real | None:
    """Return the residuals over the noise that the ledger states: standard normals if it is right; None if unknown.

    ``unit`` is how far one unit of a sum moves the aggregate, where noise joins a sum.
    """
    plan, line = world.heard, seen.line
    if line is None:
        return None
    if plan.mechanism.is_central:
        return (seen.released - seen.silent) / (float(line.noise_std.max()) * unit)
    places = {client: i for i, client in enumerate(line.clients.tolist())}
    mine = np.array([places[client] for client in seen.clients.tolist() if client in places], dtype=np.int64)
    if mine.size != seen.clients.size:
        return None
    if isinstance(plan.solver, NoisySGD):
        sizes = plan.task.train.sizes_of(seen.clients)
        gain = noise_gain(plan.solver.at(seen.round, plan.data_rounds), seen.problem.a, seen.num_steps, sizes)
        return (seen.released - seen.silent) / (line.noise_std[mine] * gain)[:, None]
    if line.kind == "pure":
        return None if plan.mechanism.alpha is None else _as_normals(tilts_in(world, seen), plan.mechanism.alpha, seen)
    if line.kind != "gaussian" or not (line.noise_std[mine] > 0).all():
        return None
    return (seen.released - seen.silent) / line.noise_std[mine][:, None]


def _as_normals(tilts: Real, alpha: Real, seen: Seen) -> Real:
    """Return vectors of density ~ exp(-alpha ||n||) stretched to standard normals.

    The norm of one is Gamma(D, 1/alpha) distributed, the other's square a chi-square; the direction is uniform.
    """
    size, lengths = tilts.shape[1], np.sqrt(np.einsum("cd,cd->c", tilts, tilts))
    rates = alpha[seen.clients] * lengths
    below, above = gammainc(size, rates), np.maximum(gammaincc(size, rates), 1e-300)
    squares = np.where(below < 0.5, 2 * gammaincinv(size / 2, below), 2 * gammainccinv(size / 2, above))
    found: Real = tilts * (np.sqrt(squares) / np.maximum(lengths, 1e-300))[:, None]
    return found


def sample_of(size: int, rows: int, seed: int) -> Ints:
    """Return which numbers of so many releases are held against each other: all of a small model, else a sample."""
    most = min(MOST_NUMBERS, max(64, MOST_IN_ALL // max(1, rows)))
    if size <= most:
        return np.arange(size)
    return np.sort(np.random.default_rng(seed).choice(size, most, replace=False))
