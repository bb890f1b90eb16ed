"""Rounds of the real loop, each beside itself without noise, and neighbours that answer with the same releases.

The noise inside an objective, recovered from its minimiser: n = -(grad F(x) + a (x - w) + b), by plain torch.

How much of each step's noise is left in the model that noisy SGD ends with, where records say nothing.

Without gradients a local solver is a linear map of its noise, the same for every number of the model. Written down here
once more, on its own: the engines are what is tested by it.

Rounds of the real loop, each beside itself without noise, and what is left of a release over its ledger line.

The noise comes from where training takes it: from the run's own seed, round and attempt, or from the system. The round
without noise starts from the same state of the server and has the same local work.

Neighbours that answer with the same releases: whatever the server then has must be the same, bit for bit.

It finds memories made of models that were never released, upcycled iterations that look at data, steps or charges that
follow from records.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv
from torch.func import functional_call, grad

from upcycled.audit.findings import Finding
from upcycled.audit.replays import Silence, World, copied, released_by
from upcycled.core.mechanism import Charge, NoiseSource, Release, Trained
from upcycled.core.objective import mean_loss
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import MoreauSGD, NoisySGD, Problem
from upcycled.core.vectors import Ints, Real, Shards, Vector
from upcycled.privacy.charge_kinds import kind_of
from upcycled.training.plan import Plan
from upcycled.training.state import Run


def tilts_in(world: World, seen: Seen) -> Real:
    """Return each client's tilt, as its release shows it to whoever has its records."""
    plan = world.heard
    a, b = seen.problem.a + plan.mechanism.prox_mu, seen.problem.b
    sent = seen.sent.astype(np.float64)
    rows = []
    for i, client in enumerate(seen.clients.tolist()):
        x = seen.released[i]
        pull = a * (x - sent) + (0.0 if b is None else b[i].astype(np.float64))
        rows.append(-(gradient_at(world, client, x) + pull))
    return np.stack(rows)


def gradient_at(world: World, client: int, point: Vector) -> Real:
    """Return the gradient of a client's mean loss, in float64."""
    task = world.heard.task
    module = copy.deepcopy(world.heard.module).double()
    x, y = task.train.client(client)
    features, targets = torch.from_numpy(np.array(x, dtype=np.float64)), torch.from_numpy(np.array(y))

    def loss(flat: torch.Tensor) -> torch.Tensor:
        outputs = functional_call(module, task.layout.split(flat), (features,))
        return mean_loss(task.objective, outputs, targets)

    with torch.enable_grad():
        found: Real = grad(loss)(torch.from_numpy(np.array(point, dtype=np.float64))).numpy()
    return found


def responses(solver: NoisySGD, a: float, steps: int) -> Real:
    """Return what one unit in each noisy gradient of a round does to the model in the end, one number a gradient.

    >>> from upcycled.core.solvers import LocalSGD
    >>> responses(NoisySGD(LocalSGD(lr=0.5), 1.0, np.ones(1)), 0.0, 3).tolist()
    [-0.5, -0.5, -0.5]
    >>> responses(NoisySGD(LocalSGD(lr=0.5), 1.0, np.ones(1)), 1.0, 3).tolist()
    [-0.125, -0.25, -0.5]
    """
    plain = solver.plain
    if isinstance(plain, MoreauSGD):
        many = steps * plain.inner_steps
        x, theta, unit = np.zeros(many), np.zeros(many), np.eye(many)
        for step in range(steps):
            for inner in range(plain.inner_steps):
                pull = a * theta + plain.lam * (theta - x)
                theta = theta - plain.inner_rate * (unit[step * plain.inner_steps + inner] + pull)
            x = x - plain.local.rate * plain.lam * (x - theta)
        return x
    x, velocity = np.zeros(steps), np.zeros(steps)
    for step, unit_of_step in enumerate(np.eye(steps)):
        assert step < steps  # one unit in each
        velocity = plain.momentum * velocity + unit_of_step + a * x
        x = x - plain.rate * velocity
    return x


def noise_gain(solver: NoisySGD, a: float, num_steps: Ints, sizes: Ints) -> Real:
    """Return each client's std in the model over the std of the noise in a sum of gradients."""
    found = {int(steps): float(np.linalg.norm(responses(solver, a, int(steps)))) for steps in np.unique(num_steps)}
    return np.array([found[int(k)] / _divisor(solver, int(n)) for k, n in zip(num_steps, sizes, strict=True)])


def first_gain(solver: NoisySGD, a: float, num_steps: Ints, sizes: Ints) -> Real:
    """Return how far one unit in each client's first sum of gradients moves its model in the end."""
    found = {int(steps): abs(float(responses(solver, a, int(steps))[0])) for steps in np.unique(num_steps)}
    return np.array([found[int(k)] / _divisor(solver, int(n)) for k, n in zip(num_steps, sizes, strict=True)])


def _divisor(solver: NoisySGD, samples: int) -> float:
    """Return q n, which every noisy sum is divided by."""
    return float(min(solver.local.batch_size or samples, samples))


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
    if kind_of(line).is_pure:
        return None if plan.mechanism.alpha is None else _as_normals(tilts_in(world, seen), plan.mechanism.alpha, seen)
    if not kind_of(line).is_noisy_vector or not (line.noise_std[mine] > 0).all():
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
