"""Small models: the clients of a cohort stacked along one axis, every step one call of torch for all of them.

Which clients share a stack, and which rows each of them reads in each step.

A lane is one client's local work in a stack of clients. Everything about a lane (its width, its batches) is a
function of its own client, never of its company: so a client's result does not depend on who trains beside it.

``torch.func`` differentiates the module once for the whole stack. Clients that are done leave it, and nothing is
padded beyond a client's own batch.

The same cohort gives the same bits on a CPU, always. A client's last bits may depend on its place in the stack, and so
on its company: a matrix product rounds by where its result begins in memory, which differs from lane to lane.

Nothing here is for the CPU only, but on CUDA it could not be tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap

from upcycled.core.engine import Scores, Task
from upcycled.core.layout import Layout
from upcycled.core.mechanism import Ask, NoiseSource, Trained
from upcycled.core.objective import Objective
from upcycled.core.randomness import Purpose, Words, client_keys, permutations, words
from upcycled.core.solvers import LocalSGD, MoreauSGD, Solver
from upcycled.core.vectors import Ints, Outputs, Shards, Vector
from upcycled.engines.determinism import one_thread, to_torch
from upcycled.engines.flat_module import FlatModule, add_correction, flat_module, optimiser_step, scale_down
from upcycled.engines.scoring import (
    NO_SCORES,
    Tally,
    in_place,
    module_outputs,
    others_of,
    outputs_of,
    score_module,
    scores_of,
    tallied,
    tally_others,
)

FLOATS_ON_CPU = 2**22
"""The most parameters, or features of a batch, in one stack: more lanes share a call, fewer stay in the cache."""
FLOATS_ON_DEVICE = 2**28
"""The same where memory is the only limit; not measured."""
LANES_AT_ONCE = 256

FEW_ROWS = 64
"""Permutations below which the plain loop over one client beats the loop over columns."""


@dataclass(frozen=True)
class LaneSchedule:
    """What every lane of a stack reads, step by step."""

    rows: Ints
    """Rows of the lane's own samples (steps, lanes, width); padding reads the lane's first row."""
    weights: NDArray[np.float32]
    """1/m for the m samples of a minibatch and 0 for padding (steps, lanes, width)."""


def width_of(samples: int, batch_size: int | None) -> int:
    """Return how many rows a lane reads at once: its batch, on a ladder of few sizes; at most a third is padding.

    A client with at least ``batch_size`` samples has exactly that width.

    >>> [width_of(n, 32) for n in (1, 5, 9, 25, 33)], [width_of(n, None) for n in (25, 33, 50)]
    ([1, 6, 12, 32, 32], [32, 48, 64])
    """
    rows = samples if batch_size is None else min(samples, batch_size)
    if rows < 3:
        return rows
    power = 1 << (rows - 1).bit_length()
    step = power * 3 // 4 if rows <= power * 3 // 4 else power
    return step if batch_size is None else min(step, batch_size)


def stacks_of(
    samples: Ints, steps: Ints, batch_size: int | None, size: int, features: int, device: str
) -> Iterator[tuple[int, Ints]]:
    """Yield (width, places in the cohort) of each stack: equal widths together, most steps first.

    Lanes that end together lie together, so that a stack's finished lanes are always its last ones. Clients without
    samples are left out.
    """
    widths = np.array([width_of(n, batch_size) for n in samples.tolist()])
    for width in np.unique(widths[widths > 0]).tolist():
        places = np.flatnonzero(widths == width)
        places = places[np.argsort(-steps[places], kind="stable")]
        floats = FLOATS_ON_CPU if device == "cpu" else FLOATS_ON_DEVICE
        most = max(2, min(LANES_AT_ONCE, floats // max(size, width * features)))
        for first in range(0, len(places), most):
            yield width, places[first : first + most]


def schedule_of(keys: Words, samples: Ints, steps: Ints, local: LocalSGD, width: int) -> LaneSchedule:
    """Lay out the minibatches of a stack's lanes: core's permutations, cut into batches, padded to ``width``."""
    most = int(steps.max()) if local.batch_size is not None else 1
    rows = np.zeros((most, len(keys), width), dtype=np.int64)
    weights = np.zeros(rows.shape, dtype=np.float32)
    for n in np.unique(samples).tolist():
        lanes = np.flatnonzero(samples == n)
        batch = local.batch_for(n)
        per_epoch = -(-n // batch)
        epochs = -(-int(steps[lanes].max()) // per_epoch) if local.batch_size is not None else 1
        order = np.arange(n)[None, None, :] if local.batch_size is None else orders_of(keys[lanes], n, epochs)
        # One row for each minibatch; the places of a short last one that are left over stay zero.
        cut = np.zeros((len(lanes), epochs, per_epoch * batch), dtype=np.int64)
        cut[:, :, :n] = order
        count = np.full(per_epoch, batch)
        count[-1] = n - batch * (per_epoch - 1)
        share = (np.arange(width) < count[:, None]) / count[:, None].astype(np.float32)
        rows[: epochs * per_epoch, lanes, :batch] = cut.reshape(len(lanes), -1, batch).transpose(1, 0, 2)
        weights[: epochs * per_epoch, lanes] = np.tile(share, (epochs, 1))[:, None, :]
    return LaneSchedule(rows, weights)


def orders_of(keys: Words, size: int, epochs: int) -> Ints:
    """Return core's permutations for many clients of one size, shape (clients, epochs, size).

    >>> keys = np.arange(7, dtype=np.uint64)
    >>> np.array_equal(orders_of(keys, 5, 10)[3], permutations(int(keys[3]), 5, 10))
    True
    """
    if len(keys) * epochs < FEW_ROWS:
        return np.stack([permutations(int(key), size, epochs) for key in keys])
    drawn = words(keys, epochs * size).reshape(len(keys) * epochs, size) >> np.uint64(32)
    bounds = np.arange(1, size + 1, dtype=np.uint64)
    targets = np.ascontiguousarray(((drawn * bounds) >> np.uint64(32)).astype(np.int64).T)
    # Fisher-Yates on all permutations at once: place i of every one of them in one go.
    order = np.repeat(np.arange(size)[:, None], len(keys) * epochs, axis=1)
    columns = np.arange(len(keys) * epochs)
    for i in range(size - 1, 0, -1):
        there = order[targets[i], columns]
        order[targets[i], columns] = order[i]
        order[i] = there
    return np.ascontiguousarray(order.T).reshape(len(keys), epochs, size)


Named = dict[str, torch.Tensor]
Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Samples (lanes, width, ...), their targets (lanes, width, ...), and their weights (lanes, width)."""
Gradient: TypeAlias = Callable[[torch.Tensor, Batch], torch.Tensor]
"""(models (lanes, D), batch) -> gradients (lanes, D)"""


def stacked_gradient(module: nn.Module, layout: Layout, objective: Objective) -> Gradient:
    """Return a function that gives the gradient of sum_s weight_s loss_s in every lane.

    A weight is 1/m for a minibatch of m, and nothing for padding.
    """

    def loss(parameters: Named, x: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = functional_call(module, parameters, (x,))
        return (weights * objective.per_sample(outputs, targets)).sum()

    by_name = vmap(grad(loss))

    def gradient(models: torch.Tensor, batch: Batch) -> torch.Tensor:
        found = by_name(layout.split(models), *batch)
        return torch.cat([found[name].reshape(len(models), -1) for name in layout.names], dim=1)

    return gradient


def stacked_logits(module: nn.Module, layout: Layout) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a function that maps models (lanes, D) and samples (lanes, width, ...) to logits."""

    def logits(parameters: Named, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = functional_call(module, parameters, (x,))
        return found

    by_name = vmap(logits)
    return lambda models, x: by_name(layout.split(models), x)


@dataclass(frozen=True)
class Stack:
    """The lanes that train together, most steps first, and everything they read."""

    steps: list[int]
    features: torch.Tensor
    """The rows of all lanes, one lane after the other."""
    targets: torch.Tensor
    rows: torch.Tensor
    weights: torch.Tensor

    def batches(self) -> Iterator[tuple[int, Batch]]:
        """Yield (lanes still at work, their batch) of every step; lanes that are done have left."""
        lanes = len(self.steps)
        whole = self._batch(0, lanes) if len(self.rows) == 1 else None
        for step in range(self.steps[0]):
            while self.steps[lanes - 1] <= step:
                lanes -= 1
            features, targets, weights = self._batch(step, lanes) if whole is None else whole
            yield lanes, (features[:lanes], targets[:lanes], weights[:lanes])

    def _batch(self, step: int, lanes: int) -> Batch:
        rows = self.rows[step, :lanes]
        return self.features[rows], self.targets[rows], self.weights[step, :lanes]


def gather(train: Shards, who: Ints, steps: Ints, schedule: LaneSchedule, device: str) -> Stack:
    """Copy the rows of a stack's clients once, and point the schedule at them."""
    parts = [train.client(row) for row in who.tolist()]
    first = np.cumsum([0, *(len(y) for _, y in parts[:-1])])
    return Stack(
        steps=steps.tolist(),
        features=torch.from_numpy(np.concatenate([x for x, _ in parts])).to(device),
        targets=torch.from_numpy(np.concatenate([y for _, y in parts])).to(device),
        rows=torch.from_numpy(schedule.rows + first[:, None]).to(device),
        weights=torch.from_numpy(schedule.weights).to(device),
    )


@dataclass(frozen=True)
class Stacked:
    """All clients of a cohort in a few stacks."""

    task: Task
    flat: FlatModule
    """For scoring; the stacks bring their own parameters."""
    gradient: Gradient
    logits: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    name: str = "vectorised"
    way: str = "stacked"

    @one_thread()
    @torch.no_grad()
    def train(self, asked: Ask, noise: NoiseSource | None = None) -> Trained:
        task, clients = self.task, asked.cohort.clients
        solver = task.solver.at(asked.round, task.rounds)
        local = solver.local
        sizes = task.train.sizes_of(asked.cohort.rows)
        steps = local.num_steps(sizes, asked.cohort.epochs)
        keys = client_keys(task.seed, Purpose.BATCHES, asked.round, clients, asked.attempt)
        models = np.repeat(asked.model[None], clients.size, axis=0)
        private = models.copy() if isinstance(solver, MoreauSGD) else None
        start = to_torch(asked.model, task.device)
        self.flat.module.train()
        for width, places in self._stacks(sizes, steps, local.batch_size, task.train):
            schedule = schedule_of(keys[places], sizes[places], steps[places], local, width)
            stack = gather(task.train, asked.cohort.rows[places], steps[places], schedule, task.device)
            b = None if asked.problem.b is None else to_torch(asked.problem.b[places], task.device)
            if isinstance(solver, MoreauSGD):
                x, theta = self._moreau(stack, solver, start, asked.problem.a, b)
                private[places] = theta.cpu().numpy()  # type: ignore[index]
            elif isinstance(solver, LocalSGD) and not solver.has_extras:
                x = self._sgd(stack, solver, start, asked.problem.a, b)
            else:
                x = self._optimise(stack, solver, start, asked.problem.a, b)
            models[places] = x.cpu().numpy()
        return Trained(models, steps, private)

    def _sgd(
        self, stack: Stack, local: LocalSGD, start: torch.Tensor, a: float, b: torch.Tensor | None
    ) -> torch.Tensor:
        """Run v <- momentum v + g, x <- x - lr v in every lane, with g as in the sequential engine."""
        x = start.repeat(len(stack.steps), 1)
        v = torch.zeros_like(x)
        for lanes, batch in stack.batches():
            here, speed = x[:lanes], v[:lanes]
            speed.mul_(local.momentum).add_(self.gradient(here, batch))
            add_correction(speed, here, start, a, None if b is None else b[:lanes])
            here.sub_(speed, alpha=local.rate)
        return x

    def _optimise(
        self, stack: Stack, solver: Solver, start: torch.Tensor, a: float, b: torch.Tensor | None
    ) -> torch.Tensor:
        """Run any other optimiser in every lane, as in the sequential engine."""
        x = start.repeat(len(stack.steps), 1)
        step = optimiser_step(solver, x)
        for lanes, batch in stack.batches():
            here = x[:lanes]
            g = self.gradient(here, batch)
            add_correction(g, here, start, a, None if b is None else b[:lanes])
            scale_down(g, solver)
            step(here, g)
        return x

    def _moreau(
        self, stack: Stack, solver: MoreauSGD, start: torch.Tensor, a: float, b: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Approximate theta, the proximal point of a minibatch loss at x, then move x towards it; return both."""
        x = start.repeat(len(stack.steps), 1)
        theta = x.clone()
        for lanes, batch in stack.batches():
            here, near = x[:lanes], theta[:lanes]
            for _ in range(solver.inner_steps):
                g = self.gradient(near, batch)
                add_correction(g, near, start, a, None if b is None else b[:lanes])
                g.add_(near - here, alpha=solver.lam)
                near.sub_(g, alpha=solver.inner_rate)
            here.sub_(here - near, alpha=solver.local.rate * solver.lam)
        return x, theta

    @one_thread()
    def score(self, model: Vector, statistics: Vector | None = None) -> Scores:
        return score_module(self.flat, model, self.task.test)

    @one_thread()
    @torch.no_grad()
    def score_personal(self, model: Vector, clients: Ints, personal: Vector) -> Scores:
        """Score each client's own model on its own test samples, many clients at once."""
        test = self.task.test
        if test is None or test.num_rows == 0:
            return NO_SCORES
        found = tally_others(self.flat, model, clients, test)
        self.flat.module.eval()
        sizes = test.sizes_of(clients)
        for width, lanes in self._stacks(sizes, sizes, None, test):
            found.append(self._tally(test, width, clients[lanes], personal[lanes]))
        return scores_of(found, test.num_rows)

    def _tally(self, test: Shards, width: int, clients: Ints, personal: Vector) -> Tally:
        """Count right answers and sum losses of a stack; places beyond a client's samples count for nothing."""
        device = self.task.device
        rows, is_real = _padded(test, width, clients)
        targets, real = to_torch(test.y[rows], device), to_torch(is_real, device)
        outputs = self.logits(to_torch(personal, device), to_torch(test.x[rows], device))
        return tallied(self.task.objective, outputs.flatten(0, 1), targets.flatten(0, 1), real.flatten())

    @one_thread()
    def outputs(self, model: Vector, statistics: Vector | None = None) -> Outputs:
        return module_outputs(self.flat, model, self.task.test)

    @one_thread()
    @torch.no_grad()
    def outputs_personal(self, model: Vector, clients: Ints, personal: Vector) -> Outputs:
        """Return the outputs of each client's own model for its own test samples, many clients at once."""
        test, device = self.task.test, self.task.device
        if test is None:
            return in_place([], test)
        found: list[tuple[Ints | slice, torch.Tensor | Outputs]] = [
            (rows, outputs_of(self.flat, model, test.x[rows])) for rows in others_of(clients, test)
        ]
        self.flat.module.eval()
        sizes = test.sizes_of(clients)
        for width, lanes in self._stacks(sizes, sizes, None, test):
            rows, is_real = _padded(test, width, clients[lanes])
            outputs = self.logits(to_torch(personal[lanes], device), to_torch(test.x[rows], device))
            found.append((rows[is_real], outputs.cpu().numpy()[is_real]))
        return in_place(found, test)

    def _stacks(self, samples: Ints, steps: Ints, batch_size: int | None, rows: Shards) -> Iterator[tuple[int, Ints]]:
        features = math.prod(rows.x.shape[1:])
        return stacks_of(samples, steps, batch_size, self.task.layout.size, features, self.task.device)

    def close(self) -> None:
        """Nothing to give back."""


def _padded(test: Shards, width: int, clients: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the rows of a stack's clients (clients, width), and which of them are no padding."""
    place, sizes = np.arange(width), test.sizes_of(clients)[:, None]
    rows: Ints = test.offsets[clients][:, None] + np.minimum(place, sizes - 1)
    return rows, place < sizes


def open_stacked(task: Task) -> Stacked:
    flat = flat_module(task)
    return Stacked(
        task, flat, stacked_gradient(flat.module, task.layout, task.objective), stacked_logits(flat.module, task.layout)
    )
