"""The engine: lays out a round's arrays, has the threads run a kernel on them, and hands back the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from upcycled._utils.compilation import prepare
from upcycled.core.engine import Scores, Task
from upcycled.core.errors import InputError
from upcycled.core.mechanism import Ask, NoiseSource, Trained
from upcycled.core.randomness import Purpose, round_key
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import LocalAdam, LocalSGD, MoreauSGD, NoisySGD, Problem, Solver
from upcycled.core.vectors import Ints, Outputs, Real, Vector, grid_scale, grid_step
from upcycled.engines.certified import CERTIFIED
from upcycled.engines.determinism import one_thread
from upcycled.engines.flat_module import FlatModule, flat_module
from upcycled.engines.fused.certified_kernel import descend, numbers_of, passes_of
from upcycled.engines.fused.dpsgd_kernel import noisy_room, train_noisy
from upcycled.engines.fused.scoring_kernels import score_clients, score_rows
from upcycled.engines.fused.supported import loss_of, stack_of
from upcycled.engines.fused.training_kernels import train_moreau, train_optimised, train_sgd
from upcycled.engines.fused.workspace import CLASSES, CROSS_ENTROPY, SIZE, TILE, Floats, plain, rows_of, workspace_for
from upcycled.engines.scoring import NO_SCORES, module_outputs, personal_outputs
from upcycled.engines.thread_pool import ThreadPool, cores

Kernel: TypeAlias = Callable[..., None]

TARGETS_PLACE = 3
"""Where every kernel takes the targets: int64 for cross-entropy, else float32, and each is compiled by itself."""
_PART = 256
"""Test samples that a thread scores before it takes the next part."""
_SMALL = 3_000_000
"""Samples times parameters below which waking the helpers takes longer than the work."""
_PER_SAMPLE = 200
"""What a sample costs beside its products, in parameters: drawing its place, copying its row, its exponentials."""


_NUMBERS = 1 << 18
"""Coins and numbers of noise that are asked for at a time, where they are not those of a stream."""
_PER_DRAW = 50
"""What a number of noise costs, in parameters of a sample."""
_NOTHING = np.zeros(0)


@dataclass(frozen=True)
class _Local:
    """A solver as its kernel takes it."""

    kernel: Kernel
    numbers: Floats
    keeps_private: bool = False
    extra: tuple[int, ...] = ()


def _local_of(solver: Solver) -> _Local:
    """Translate a solver; ``support.SOLVERS`` names the same ones."""
    if type(solver) in CERTIFIED:
        return _Local(descend, np.zeros(0, dtype=np.float32))
    if type(solver) is LocalAdam:
        (first, second), variant = solver.betas, float(solver.decoupled)
        return _optimised(
            solver, [solver.weight_decay, variant, solver.max_grad_norm or 0.0, second, solver.eps], first
        )
    if type(solver) is LocalSGD and solver.has_extras:
        options = [solver.weight_decay, float(solver.nesterov), solver.max_grad_norm or 0.0, 0.0, 0.0]
        return _optimised(solver, options, solver.momentum)
    if type(solver) is LocalSGD:
        return _Local(train_sgd, np.array([solver.rate, solver.momentum], dtype=np.float32))
    if type(solver) is MoreauSGD:
        numbers = np.array([solver.local.rate * solver.lam, solver.lam, solver.inner_rate], dtype=np.float32)
        return _Local(train_moreau, numbers, keeps_private=True, extra=(solver.inner_steps,))
    if type(solver) is NoisySGD:
        plain = _local_of(solver.plain)
        return _Local(train_noisy, plain.numbers, plain.keeps_private, plain.extra or (0,))
    raise InputError(f"the fused engine has no kernel for {type(solver).__name__}")


def _optimised(solver: LocalSGD | LocalAdam, options: list[float], momentum: float) -> _Local:
    numbers = np.array([solver.local.rate, momentum, *options], dtype=np.float32)
    return _Local(train_optimised, numbers)


class FusedEngine:
    """Trains one cohort at a time; every Python thread that wants to train opens its own."""

    def __init__(self, task: Task, threads: int | None) -> None:
        stack = stack_of(task.module, task.layout)
        if isinstance(stack, str):
            raise InputError(stack)
        helpers = cores() if threads is None else max(1, threads)
        self._task = task
        self._dense = stack.layers[0]
        loss = loss_of(task, stack.layers[-1].outputs)
        if isinstance(loss, str):
            raise InputError(loss)
        self._has_classes, self._threshold = loss.classes > 0, float(loss.threshold)
        self._local = _local_of(task.solver.at(1, task.rounds))
        self._batch = task.solver.local.batch_size or 0
        as_labels = loss.code == CROSS_ENTROPY
        self._train = rows_of(task.train, as_labels)
        self._test = None if task.test is None else rows_of(task.test, as_labels)
        self._no_b = np.zeros((0, task.layout.size), dtype=np.float32)
        workspace = workspace_for(stack, loss)
        self._table, self._places = workspace.table, workspace.places
        self._cost = int(workspace.places[SIZE]) + _PER_SAMPLE
        longest = max(int(task.train.sizes.max(initial=0)), TILE)
        self._room = noisy_room(workspace.table, workspace.places, task.layout.size)
        self._own = [(workspace.new_work(), np.zeros(longest + 1, dtype=np.int32)) for _ in range(helpers)]
        self._noisy = [self._room.new() if self._local.kernel is train_noisy else () for _ in self._own]
        self._pool = ThreadPool(0)
        if not all(self._is_ready(kernel) for kernel in self._kernels()):
            prepare(self._warm, "the fused kernels")
        self._pool = ThreadPool(helpers - 1)

    @property
    def name(self) -> str:
        return "fused"

    @property
    def way(self) -> str:
        return "compiled kernels"

    def train(self, asked: Ask, noise: NoiseSource | None = None) -> Trained:
        if self._local.kernel is descend:
            return self._train_certified(asked)
        if isinstance(self._task.solver, NoisySGD):
            return self._train_noisy(asked, noise, self._task.solver)
        data, task = self._train, self._task
        local = _local_of(task.solver.at(asked.round, task.rounds)) if callable(task.solver.local.lr) else self._local
        clients, epochs = plain(asked.cohort.clients, np.int64), plain(asked.cohort.epochs, np.int64)
        rows = plain(asked.cohort.rows, np.int64)
        samples = data.offsets[rows + 1] - data.offsets[rows]
        passes = samples * epochs
        num_steps = task.solver.local.num_steps(samples, epochs)
        if self._batch == 0:
            num_steps = num_steps * (samples > 0)
        model, problem = plain(asked.model, np.float32), asked.problem
        b = self._no_b if problem.b is None else plain(problem.b, np.float32)
        key = np.uint64(round_key(task.seed, Purpose.BATCHES, asked.round, asked.attempt))
        faults = np.zeros(clients.size, dtype=np.int64)
        out = np.empty((clients.size, task.layout.size), dtype=np.float32)
        private = np.empty_like(out) if local.keeps_private else None
        given = (
            np.zeros(1, dtype=np.int64),
            np.argsort(-passes, kind="stable"),
            *(data.x, data.y, data.offsets, rows, clients, epochs, key, self._batch, local.numbers),
            *(model, np.float32(problem.a), b),
        )
        results = (faults, out, *local.extra) if private is None else (faults, out, private, *local.extra)
        self._run(local.kernel, given, results, int(passes.sum()) * task.solver.gradients_per_step)
        if faults.any():
            raise InputError(f"train.y: {self._wrong_label(int(rows[faults.argmax()]))}")
        return Trained(out, num_steps, private)

    def _train_certified(self, asked: Ask) -> Trained:
        """Do it in float64; the vectors stay in float64 until the mechanism has added its noise."""
        data, task, dense = self._train, self._task, self._dense
        clients, passes = plain(asked.cohort.clients, np.int64), passes_of(task, asked)
        rows = plain(asked.cohort.rows, np.int64)
        samples = data.offsets[rows + 1] - data.offsets[rows]
        effort = passes * samples
        key = np.uint64(round_key(task.seed, Purpose.BATCHES, asked.round, asked.attempt))
        out = np.empty((clients.size, task.layout.size))
        given = (
            np.zeros(1, dtype=np.int64),
            np.argsort(-effort, kind="stable"),
            *(data.x, data.y, data.offsets, rows, clients, passes, key, self._batch),
            *numbers_of(task, asked),
        )
        bias = -1 if dense.bias is None else dense.bias
        self._run(descend, given, (out, dense.weight, bias, dense.inputs, self._threshold), int(effort.sum()))
        num_steps = task.solver.local.num_steps(samples, asked.cohort.epochs)
        return Trained(out, num_steps)

    def _train_noisy(self, asked: Ask, noise: NoiseSource | None, solver: NoisySGD) -> Trained:
        """Do DP-SGD's local work: simulated noise is computed in the kernel, other noise is asked for between calls."""
        data, task, local = self._train, self._task, self._local
        assert noise is not None or asked.cohort.clients.size == 0  # the round loop brings it
        clients, rows = plain(asked.cohort.clients, np.int64), plain(asked.cohort.rows, np.int64)
        samples = data.offsets[rows + 1] - data.offsets[rows]
        num_steps = solver.local.num_steps(samples, asked.cohort.epochs)
        gradients = plain(num_steps * solver.gradients_per_step, np.int64)
        rates = np.array([solver.rate_for(int(n)) for n in samples])
        std = plain(solver.noise_std, np.float64)[rows]
        keys = [0 if noise is None else noise.round_key(purpose) for purpose in (Purpose.POISSON, Purpose.NOISE)]
        is_seeded = None not in keys
        faults = np.zeros(clients.size, dtype=np.int64)
        out = np.empty((clients.size, task.layout.size), dtype=np.float32)
        private = np.empty((clients.size if local.keeps_private else 0, task.layout.size), dtype=np.float32)
        b = self._no_b if asked.problem.b is None else plain(asked.problem.b, np.float32)
        cohort = (data.x, data.y, data.offsets, rows, clients, gradients)
        settings = (
            *(rates, grid_step(std), grid_scale(std), float(solver.clip_norm), *local.extra, local.numbers),
            *(plain(asked.model, np.float32), np.float32(asked.problem.a), b, self._room.factors),
        )
        streams = np.array([key or 0 for key in keys], dtype=np.uint64)
        order = np.argsort(-gradients * samples * rates, kind="stable")

        def call(thread: int, queue: Ints, lanes: Ints, begin: int, end: int, coins: Real, given: Real) -> None:
            source = (begin, end, is_seeded, streams, coins, given)
            own = (self._table, self._places, *self._own[thread], *self._noisy[thread])
            train_noisy(queue, lanes, *cohort, *source, *settings, *own, faults, out, private)

        queue, turns, most = np.zeros(1, dtype=np.int64), count(), int(gradients.max(initial=0))

        def with_streams(thread: int) -> None:
            call(thread, queue, order, 0, most, _NOTHING, _NOTHING)

        def with_given_noise(thread: int) -> None:
            assert noise is not None
            while (turn := next(turns)) < order.size:
                lane = order[turn : turn + 1]
                scale = grid_scale(std[lane])
                shape = (int(gradients[lane[0]]), int(samples[lane[0]]), self._room.numbers)
                for begin, end, coins, given in _drawn(noise, clients[lane], scale, *shape):
                    call(thread, np.zeros(1, dtype=np.int64), lane, begin, end, coins, given)

        work_units = gradients @ (samples * rates * self._cost + _PER_DRAW * task.layout.size)
        self._pool.run(with_streams if is_seeded else with_given_noise, alone=work_units < _SMALL)
        if faults.any():
            raise InputError(f"train.y: {self._wrong_label(int(rows[faults.argmax()]))}")
        return Trained(out, num_steps, private if local.keeps_private else None)

    def score(self, model: Vector, statistics: Vector | None = None) -> Scores:
        test = self._test
        if test is None or test.count == 0:
            return NO_SCORES
        return self._scored(score_rows, self._parts, (test.x, test.y, plain(model, np.float32)), test.count)

    def score_personal(self, model: Vector, clients: Ints, personal: Vector) -> Scores:
        test = self._test
        if test is None or test.count == 0:
            return NO_SCORES
        slots = np.full(test.offsets.size - 1, -1, dtype=np.int64)
        slots[clients] = np.arange(len(clients))
        models = (plain(personal, np.float32), plain(model, np.float32))
        data = (test.x, test.y, test.offsets, slots, *models)
        return self._scored(score_clients, test.client_parts(_PART), data, test.count)

    @cached_property
    def _parts(self) -> Ints:
        """The bounds of the parts in which test samples are scored."""
        return np.zeros(1, dtype=np.int64) if self._test is None else self._test.row_parts(_PART)

    @cached_property
    def _flat(self) -> FlatModule:
        """The task's module in torch, for outputs, which few runs ask for: a kernel of theirs would be compiled."""
        return flat_module(self._task)

    @one_thread()
    def outputs(self, model: Vector, statistics: Vector | None = None) -> Outputs:
        return module_outputs(self._flat, model, self._task.test)

    @one_thread()
    def outputs_personal(self, model: Vector, clients: Ints, personal: Vector) -> Outputs:
        return personal_outputs(self._flat, model, clients, personal, self._task.test)

    def close(self) -> None:
        self._pool.close()

    def _run(self, kernel: Kernel, given: tuple[Any, ...], results: tuple[Any, ...], samples: int) -> None:
        def job(thread: int) -> None:
            kernel(*given, self._table, self._places, *self._own[thread], *results)

        self._pool.run(job, alone=samples * self._cost < _SMALL)

    def _scored(self, kernel: Kernel, bounds: Ints, data: tuple[Any, ...], count: int) -> Scores:
        parts = max(bounds.size - 1, 0)
        hits, losses = np.zeros(parts, dtype=np.int64), np.zeros(parts, dtype=np.float64)
        self._run(kernel, (np.zeros(1, dtype=np.int64), bounds, *data), (hits, losses), count)
        if hits.min(initial=0) < 0:
            raise InputError(f"test.y: {self._wrong_label(None)}")
        accuracy = int(hits.sum()) / max(count, 1) if self._has_classes else None
        return Scores(accuracy, float(losses.sum()) / max(count, 1), count)

    def _is_ready(self, kernel: Kernel) -> bool:
        """Say whether a kernel is compiled in this process, for targets of this type: its fourth argument."""
        compiled = [str(given[TARGETS_PLACE].dtype) for given in getattr(kernel, "signatures", ())]
        return str(self._train.y.dtype) in compiled

    def _kernels(self) -> list[Kernel]:
        """Return what the run will call."""
        scoring = [] if self._test is None else [score_rows]
        personal = [score_clients] if self._test is not None and self._local.keeps_private else []
        return [self._local.kernel, *scoring, *personal]

    def _warm(self) -> None:
        """Call every kernel that the run will need, on nothing."""
        nobody = np.zeros(0, dtype=np.int64)
        model = np.zeros(self._task.layout.size, dtype=np.float32)
        self.train(Ask(1, 1, 0, Cohort(nobody, nobody), model, Problem()))
        if self._test is not None:
            self._scored(score_rows, nobody, (self._test.x, self._test.y, model), 0)
            if self._local.keeps_private:
                data = (self._test.x, self._test.y, self._test.offsets, nobody, self._no_b, model)
                self._scored(score_clients, nobody, data, 0)

    def _wrong_label(self, client: int | None) -> str:
        whose = "there is" if client is None else f"client {client} has"
        return f"{whose} a label that is not one of the model's {self._places[CLASSES]} classes"


def _drawn(
    noise: NoiseSource, client: Ints, scale: Real, gradients: int, samples: int, numbers: int
) -> Iterator[tuple[int, int, Real, Real]]:
    """Yield begin, end, coins and noise of a client's noisy gradients, some at a time; at least once."""
    at_once = max(1, _NUMBERS // (samples + numbers))
    for begin in range(0, max(gradients, 1), at_once):
        end = min(begin + at_once, gradients)
        coins = noise.uniforms(client, (end - begin) * samples, Purpose.POISSON, start=begin * samples)
        given = _NOTHING
        if scale[0] > 0:
            given = noise.gaussian_steps(client, (end - begin) * numbers, scale, start=begin * numbers).reshape(-1)
        yield begin, end, coins.reshape(-1), given
