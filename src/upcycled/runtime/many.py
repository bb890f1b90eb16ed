"""``train_many``: a batch of runs, all cores busy, bit for bit what the runs give one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from upcycled.core.errors import InputError
from upcycled.engines.vectorised.workers import IDLE_SECONDS
from upcycled.runtime.batch_progress import BatchProgress
from upcycled.runtime.history import Record
from upcycled.runtime.loop import Run
from upcycled.runtime.plan import Plan, make_plan
from upcycled.runtime.result import Result
from upcycled.runtime.train import run_plan


@dataclass(frozen=True)
class Failed:
    """A run of a batch that could not start or did not finish."""

    error: Exception
    settings: Mapping[str, Any]


def train_many(runs: Sequence[Mapping[str, Any]], *, progress: bool = True) -> list[Result | Failed]:
    """Train many runs at once; each is a dict of :func:`train`'s arguments. Results come in order.

    A run that cannot start or diverges comes back as :class:`Failed` with its ``error``; the others finish. A
    ``Result`` has ``error`` None.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, seed=0)
    >>> runs = [dict(data=data, algorithm=up.FedAvg(), iterations=2, seed=seed) for seed in (0, 1)]
    >>> [len(result.history) for result in up.train_many(runs, progress=False)]
    [2, 2]
    """
    found = dict(train_each(runs, progress=progress))
    return [found[i] for i in range(len(runs))]


def train_each(runs: Sequence[Mapping[str, Any]], *, progress: bool = True) -> Iterator[tuple[int, Result | Failed]]:
    """Yield (place, result) of each run as it ends: :func:`train_many` for who wants to keep results one by one."""
    plans: dict[int, Plan] = {}
    for i, arguments in enumerate(runs):
        try:
            plans[i] = make_plan(**_checked(i, arguments))
        except Exception as error:
            yield i, Failed(error, dict(arguments))
    watching = BatchProgress(sum(plan.iterations for plan in plans.values()), len(plans), progress)
    with watching.shown():
        for i, result in _carry_out(plans, watching.iteration):
            watching.run_done()
            yield i, result if isinstance(result, Result) else Failed(result, dict(runs[i]))


def _checked(place: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(arguments, Mapping):
        raise InputError(f"run {place} is {type(arguments).__name__}, but it must be a dict of train's arguments")
    # Progress of single runs would fight for the screen: the batch has its own.
    return {key: value for key, value in arguments.items() if key != "progress"}


def _carry_out(plans: Mapping[int, Plan], tick: Callable[[], None]) -> Iterator[tuple[int, Result | Exception]]:
    """Yield (place, result or error) as runs end.

    Engines whose kernels run without the interpreter's lock share this process, a run per thread; the others get a
    process per core. Either way a run has one thread to itself, so it computes what it computes alone.
    """
    threaded = {i: plan for i, plan in plans.items() if plan.engine.runs_without_lock}
    separate = {i: plan for i, plan in plans.items() if i not in threaded}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threaded:
        with ThreadPoolExecutor(min(cores, len(threaded))) as pool:
            started = {pool.submit(_attempt, plan, tick): i for i, plan in _longest_first(threaded)}
            yield from _ended(started, pool)
    if separate:
        from loky import get_reusable_executor

        workers = get_reusable_executor(max_workers=min(cores, len(separate)), timeout=IDLE_SECONDS)
        started = {workers.submit(_attempt, plan, None): i for i, plan in _longest_first(separate)}
        yield from _ended(started, workers)


def _ended(started: dict[Any, int], pool: Any) -> Iterator[tuple[int, Result | Exception]]:
    try:
        for future in as_completed(started):
            yield started[future], _outcome(future)
    except BaseException:
        for future in started:
            future.cancel()
        raise


def _outcome(future: Future[Result | Exception]) -> Result | Exception:
    try:
        return future.result()
    except Exception as error:  # a worker process that died
        return error


def _longest_first(plans: Mapping[int, Plan]) -> list[tuple[int, Plan]]:
    def work(plan: Plan) -> float:
        samples = plan.task.train.num_rows * plan.participation.fraction * plan.task.solver.local.epochs
        return plan.data_rounds * samples * plan.task.layout.size * plan.task.solver.gradients_per_step

    return sorted(plans.items(), key=lambda item: -work(item[1]))


@dataclass(frozen=True)
class _Ticking:
    """Tells the batch's progress of each iteration."""

    tick: Callable[[], None]

    def start(self, plan: Plan, before: Sequence[Record]) -> None: ...

    def record(self, record: Record, run: Run) -> None:
        self.tick()

    def finish(self) -> None: ...


def _attempt(plan: Plan, tick: Callable[[], None] | None) -> Result | Exception:
    """Carry out one run on one thread; an error is a value, so that it crosses processes whole."""
    try:
        return run_plan(plan, [] if tick is None else [_Ticking(tick)], threads=1)
    except Exception as error:
        return error
