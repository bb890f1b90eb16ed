"""The reference: plain torch, one client after the other, any module. Faster engines are held to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from upcycled.core.engine import EngineKind, Scores, Task
from upcycled.core.errors import InputError
from upcycled.core.layout import read_statistics, write_statistics
from upcycled.core.mechanism import Ask, NoiseSource, Trained
from upcycled.core.randomness import Purpose, client_keys, permutations
from upcycled.core.solvers import Local, LocalOptimizer, LocalSGD, MoreauSGD, NoisySGD, Solver
from upcycled.core.vectors import Ints, Outputs, Vector
from upcycled.engines.certified import CERTIFIED, Certified, refuses_certified, train_certified
from upcycled.engines.determinism import one_thread, to_torch
from upcycled.engines.dpsgd.ghost import Ghost, noisy_gradients
from upcycled.engines.dpsgd.noisy import train_noisy
from upcycled.engines.dpsgd.per_sample import PerSample, refuses_per_sample
from upcycled.engines.flat_module import (
    FlatModule,
    OptimiserStep,
    add_correction,
    flat_module,
    optimiser_step,
    scale_down,
)
from upcycled.engines.scoring import module_outputs, personal_outputs, score_module, score_personal_modules
from upcycled.engines.thread_pool import ThreadPool, cores

Batches: TypeAlias = Iterator[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Sequential:
    """One client after the other, in plain torch."""

    task: Task
    flat: FlatModule
    lanes: Sequence[PerSample | Ghost] = ()
    """Gradients of each sample or their clipped sums, for DP-SGD: one for each thread."""
    threads: ThreadPool = field(default_factory=lambda: ThreadPool(0))
    name: str = "sequential"
    way: str = "one by one"
    has_channels_last: bool = False
    """Whether images are laid out with their channels side by side, as convolutions like them best."""

    @one_thread()
    @torch.no_grad()
    def train(self, asked: Ask, noise: NoiseSource | None = None) -> Trained:
        task, cohort = self.task, asked.cohort
        if isinstance(task.solver, Certified):
            return train_certified(task, task.solver, asked)
        if isinstance(task.solver, NoisySGD):
            return train_noisy(task, task.solver, self.lanes, self.threads, asked, noise)
        device, solver = self.flat.values.device, task.solver.at(asked.round, task.rounds)
        start = to_torch(asked.model, device)
        orders = client_keys(task.seed, Purpose.BATCHES, asked.round, cohort.clients, asked.attempt)
        dropout = client_keys(task.seed, Purpose.DROPOUT, asked.round, cohort.clients, asked.attempt)
        models = np.empty((cohort.clients.size, task.layout.size), dtype=np.float32)
        private = np.empty_like(models) if isinstance(solver, MoreauSGD) else None
        size = None if task.statistics is None else task.statistics.size
        statistics = None if size is None else np.empty((cohort.clients.size, size), dtype=np.float32)
        self.flat.module.train()
        # Layers that draw (dropout) read torch's generator: each client gets its own seed, the caller's state returns.
        with torch.random.fork_rng(devices=[]):
            for i, row in enumerate(cohort.rows.tolist()):
                torch.manual_seed(int(dropout[i]) >> 1)
                x, y = task.train.client(row)
                laid_out = channels_last if self.has_channels_last else _as_it_is
                batches = _batches(x, y, int(cohort.epochs[i]), solver.local, int(orders[i]), device, laid_out)
                b = None if asked.problem.b is None else to_torch(asked.problem.b[i], device)
                self.flat.values.copy_(start)
                if asked.statistics is not None:
                    write_statistics(self.flat.module, asked.statistics)
                if isinstance(solver, MoreauSGD):
                    model = self._moreau(batches, solver, start, asked.problem.a, b)
                    private[i] = self.flat.values.cpu().numpy()  # type: ignore[index]
                elif isinstance(solver, LocalSGD) and not solver.has_extras:
                    model = self._sgd(batches, solver, start, asked.problem.a, b)
                else:
                    model = self._optimise(batches, solver, start, asked.problem.a, b)
                models[i] = model.cpu().numpy()
                if statistics is not None:
                    statistics[i] = read_statistics(self.flat.module)
        steps = task.solver.local.num_steps(task.train.sizes_of(cohort.rows), cohort.epochs)
        return Trained(models, steps, private, statistics)

    def _sgd(
        self, batches: Batches, local: LocalSGD, start: torch.Tensor, a: float, b: torch.Tensor | None
    ) -> torch.Tensor:
        """Run v <- momentum v + g, x <- x - lr v, with g the gradient of F_i + a/2 ||x - w||^2 + <b, x>.

        torch adds a gradient to what is there, so the flat gradient itself serves as v: no copy, no clearing.
        """
        x, v = self.flat.values, self.flat.gradient.zero_()
        for features, labels in batches:
            v.mul_(local.momentum)
            self.flat.add_gradient(features, labels)
            add_correction(v, x, start, a, b)
            x.sub_(v, alpha=local.rate)
        return x

    def _optimise(
        self, batches: Batches, solver: Solver, start: torch.Tensor, a: float, b: torch.Tensor | None
    ) -> torch.Tensor:
        """Run any other optimiser on the gradient of F_i + a/2 ||x - w||^2 + <b, x>."""
        x, g = self.flat.values, self.flat.gradient
        step = self._torch_step(solver) if isinstance(solver, LocalOptimizer) else optimiser_step(solver, x)
        for features, labels in batches:
            g.zero_()
            self.flat.add_gradient(features, labels)
            add_correction(g, x, start, a, b)
            scale_down(g, solver)
            step(x, g)
        return x

    def _torch_step(self, solver: LocalOptimizer) -> OptimiserStep:
        """Return a step of the user's optimiser, which works on the parameters where they lie."""
        optimiser = solver.make([p for p in self.flat.module.parameters() if p.requires_grad])
        if not isinstance(optimiser, torch.optim.Optimizer):
            but = f"its function returned {type(optimiser).__name__}, and must return a torch optimiser"
            raise InputError(field="local", value=solver.make, but=but)
        return lambda x, g: optimiser.step()

    def _moreau(
        self, batches: Batches, solver: MoreauSGD, start: torch.Tensor, a: float, b: torch.Tensor | None
    ) -> torch.Tensor:
        """Approximate theta, the proximal point of a minibatch loss at x, then move x towards it."""
        theta, g, x = self.flat.values, self.flat.gradient, start.clone()
        for features, labels in batches:
            for _ in range(solver.inner_steps):
                g.zero_()
                self.flat.add_gradient(features, labels)
                add_correction(g, theta, start, a, b)
                g.add_(theta - x, alpha=solver.lam)
                theta.sub_(g, alpha=solver.inner_rate)
            x.sub_(x - theta, alpha=solver.local.rate * solver.lam)
        return x

    @one_thread()
    def score(self, model: Vector, statistics: Vector | None = None) -> Scores:
        if statistics is not None:
            write_statistics(self.flat.module, statistics)
        return score_module(self.flat, model, self.task.test)

    @one_thread()
    def score_personal(self, model: Vector, clients: Ints, personal: Vector) -> Scores:
        return score_personal_modules(self.flat, model, clients, personal, self.task.test)

    @one_thread()
    def outputs(self, model: Vector, statistics: Vector | None = None) -> Outputs:
        if statistics is not None:
            write_statistics(self.flat.module, statistics)
        return module_outputs(self.flat, model, self.task.test)

    @one_thread()
    def outputs_personal(self, model: Vector, clients: Ints, personal: Vector) -> Outputs:
        return personal_outputs(self.flat, model, clients, personal, self.task.test)

    def close(self) -> None:
        """Let the helpers go."""
        self.threads.close()


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """Return images (samples, channels, height, width) with the channels of a point side by side in memory.

    Convolutions and what follows then keep it so. torch's own function leaves one channel as it is, which says nothing
    of the layout.

    >>> channels_last(torch.zeros(2, 1, 4, 3)).stride()
    (12, 1, 3, 1)
    """
    samples, channels, height, width = x.shape
    strides = (channels * height * width, 1, width * channels, channels)
    return torch.empty_strided((samples, channels, height, width), strides, dtype=x.dtype, device=x.device).copy_(x)


def _batches(
    x: NDArray[Any],
    y: Ints,
    epochs: int,
    local: LocalSGD,
    key: int,
    device: torch.device,
    laid_out: Callable[[torch.Tensor], torch.Tensor],
) -> Batches:
    """Yield the minibatches of a client's local work in order; the last one of an epoch may be short."""
    features, labels = to_torch(x, device), to_torch(y, device)
    if local.batch_size is None:
        yield from itertools.repeat((laid_out(features), labels), epochs)
        return
    for epoch in range(epochs):  # one order at a time: all of them may not fit into memory
        order = torch.from_numpy(permutations(key, len(y), 1, epoch)[0]).to(device)
        # Rows are put in order once an epoch: the batches are then slices.
        x_epoch, y_epoch = laid_out(features.index_select(0, order)), labels.index_select(0, order)
        for first in range(0, len(y), local.batch_size):
            rows = slice(first, first + local.batch_size)
            yield x_epoch[rows], y_epoch[rows]


def _refuses(task: Task) -> str | None:
    if isinstance(task.solver, CERTIFIED):
        return refuses_certified(task)
    if isinstance(task.solver, NoisySGD):
        return refuses_per_sample(task) if task.device == "cpu" else f"DP-SGD runs on the cpu, not on {task.device}"
    if not isinstance(task.solver, Local | MoreauSGD):
        return f"the sequential engine has no {type(task.solver).__name__}"
    return None


def open_sequential(task: Task, threads: int | None) -> Sequential:
    """Get a task ready; one thread is all it uses, except for DP-SGD's clipped sums."""
    flat = flat_module(task)
    if not isinstance(task.solver, NoisySGD):
        has_images = task.train.x.ndim == 4 and any(isinstance(layer, nn.Conv2d) for layer in flat.module.modules())
        return Sequential(task, flat, has_channels_last=has_images)
    lanes = noisy_gradients(task, min(threads or cores(), task.train.sizes.size))
    return Sequential(task, flat, lanes, ThreadPool(len(lanes) - 1))


SEQUENTIAL = EngineKind("sequential", _refuses, open_sequential)
