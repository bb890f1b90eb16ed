"""``train_many``: a batch of runs, all cores busy, bit for bit what the runs give one by one."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from upcycled.core.errors import UpcycledError
from upcycled.core.machine import may_have_workers
from upcycled.data import FederatedData
from upcycled.engines.processes import are_warm, scratch_folder, worker_pool
from upcycled.training.charging import refused_together
from upcycled.training.history import Record
from upcycled.training.plan import Plan, make_plan
from upcycled.training.progress import BatchProgress, LiveProgress, Watched
from upcycled.training.result import Result
from upcycled.training.spec import RunSpec
from upcycled.training.train import spec_from
from upcycled.training.worker_processes import (
    STOP_FILE,
    EventStream,
    Parcel,
    Returned,
    Stopped,
    attempt,
    attempt_here,
    delivering,
)

if TYPE_CHECKING:
    from upcycled.training.state import Run


TINY_ROUND = 2e7
"""Multiplications by a parameter below which the Python around a round takes about as long as its kernel."""
RUNS_PER_CORE = 2
"""Tiny runs at once: where a run waits for the interpreter, another one's kernel has the core."""
INTERPRETED_SECONDS = 4e-4
"""What the Python around an iteration takes: of tiny runs in threads one at a time has the interpreter."""
START_SECONDS = 5.0
"""What worker processes take to begin: each loads torch and the kernels."""
SENDING_SECONDS = 1e-8
"""What a byte of a run's data takes on its way to a worker."""
PATIENCE_SECONDS = 2.0
"""How long worker processes may go on with the iteration they are in when a batch is stopped."""


@dataclass(frozen=True)
class Failed:
    """A run of a batch that could not start or did not finish."""

    error: Exception
    settings: Mapping[str, Any]
    """What was asked for."""
    result: Result | None = None
    """The run up to its last whole iteration, with its ledger; None if it never began, or a foreign error ended it."""


Job: TypeAlias = Mapping[str, Any] | tuple[FederatedData, RunSpec] | Plan
"""A run of a batch: data and spec; or a dict of :func:`train`'s arguments, data among them; or a plan ready made."""


def train_many(runs: Sequence[Job], *, progress: bool = True) -> list[Result | Failed]:
    """Train many runs at once, each given as ``(data, spec)`` or as a dict of :func:`train`'s arguments.

    Results come in order. A run that cannot start, or fails in a way of its own, comes back as :class:`Failed` with its
    ``error``, and what it had by then as its ``result``; one that ends early (diverged, budget spent) as a ``Result``
    with its ``error``; the others finish, and their ``error`` is None. Runs that an account cannot pay for together are
    all refused before the first of them trains.

    Args:
        runs: the runs, with callbacks of their own where they have some.
        progress: show a live table on standard error.

    Returns:
        The results, in the order of the runs.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, seed=0)
    >>> runs = [dict(data=data, algorithm=up.FedAvg(), iterations=2, seed=seed) for seed in (0, 1)]
    >>> [len(result.history) for result in up.train_many(runs, progress=False)]
    [2, 2]
    """
    found = dict(train_each(runs, progress=progress))
    return [found[i] for i in range(len(runs))]


def train_each(
    runs: Sequence[Job],
    *,
    progress: bool | BatchProgress = True,
    titles: Sequence[str] | None = None,
) -> Generator[tuple[int, Result | Failed], None, None]:
    """Yield (place, result) of each run as it ends: :func:`train_many` for who wants to keep results one by one.

    A run alone has all cores. When the iterator is closed, or the block around it fails, running runs stop after the
    iteration they are in.

    Args:
        runs: as for :func:`train_many`, callbacks included.
        progress: whether to show a table; or the table of a larger batch, which its owner shows.
        titles: what the table calls the runs.
    """
    jobs: list[_Job] = []
    for i, run in enumerate(runs):
        try:
            jobs.append(_Job(i, _planned(run), titles[i] if titles else None))
        except Exception as error:
            yield i, _failed(error, run)
    # Before the first of them trains: runs that do not fit together would each find out alone, half of them done.
    refused = refused_together([job.plan for job in jobs])
    for k, why in refused.items():
        yield jobs[k].place, _failed(why, runs[jobs[k].place])
    jobs = [job for k, job in enumerate(jobs) if k not in refused]
    own = isinstance(progress, bool)
    table = BatchProgress(len(jobs), progress) if isinstance(progress, bool) else progress
    carry_out = _alone if len(jobs) == 1 else _together
    with table.shown() if own else nullcontext():
        for i, result in carry_out(jobs, table):
            yield i, result if isinstance(result, Result) else _failed(result, runs[i])


@dataclass(frozen=True)
class _Job:
    place: int
    plan: Plan
    title: str | None

    @property
    def callbacks(self) -> Sequence[object]:
        return self.plan.spec.callbacks


_Ended = Iterator[tuple[int, Result | Exception]]


def _planned(run: Job) -> Plan:
    if isinstance(run, Plan):
        return run
    if isinstance(run, Mapping):
        arguments: Any = dict(run)
        return make_plan(arguments.pop("data"), spec_from(arguments.pop("spec", None), arguments))
    data, spec = run
    return make_plan(data, spec_from(spec, {}))


def _failed(error: Exception, run: Job) -> Failed:
    return Failed(error, _settings(run), error.result if isinstance(error, UpcycledError) else None)


def _settings(run: Job) -> Mapping[str, Any]:
    if isinstance(run, Mapping):
        return dict(run)
    if isinstance(run, Plan):
        return run.settings
    return run[1].settings() if isinstance(run[1], RunSpec) else {}


def _alone(jobs: Sequence[_Job], table: BatchProgress) -> _Ended:
    """Run the only one of a batch, or of what is left of it, here and on all cores."""
    job = jobs[0]
    row = table.row(job.title)
    display: list[object] = [row]
    if table.is_wanted and table.runs == 1:
        display.append(LiveProgress(job.title))
    result = attempt(job.plan, [*job.callbacks, *display], threads=None)
    table.run_done(row)
    yield job.place, result


def _together(jobs: Sequence[_Job], table: BatchProgress) -> _Ended:
    """Run all of them, as many at once as there are cores.

    Engines whose kernels run without the interpreter's lock share this process, a run per thread; the others get a
    process per core, and so do tiny runs that would wait for the lock longer than processes take to begin. Either way
    a run has one thread to itself, so it computes what it computes alone.
    """
    longest_first = sorted(jobs, key=lambda job: -_work(job.plan))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threaded = [job for job in longest_first if job.plan.engine.runs_without_lock]
    separate = [job for job in longest_first if not job.plan.engine.runs_without_lock]
    is_tiny = all(_work(job.plan) < TINY_ROUND * job.plan.data_rounds for job in threaded)
    if is_tiny and _pay_for_processes(threaded, cores):
        threaded, separate = [], longest_first
    if threaded:
        yield from _in_threads(threaded, table, (RUNS_PER_CORE if is_tiny else 1) * cores)
    if separate:
        yield from _in_processes(separate, table, cores)


def _pay_for_processes(jobs: Sequence[_Job], cores: int) -> bool:
    """Say whether tiny runs end sooner in processes: each has an interpreter of its own."""
    # A callback there hears of an iteration a little later, and would end a run elsewhere.
    if any(job.callbacks for job in jobs) or not may_have_workers():
        return False
    waiting = INTERPRETED_SECONDS * sum(job.plan.iterations for job in jobs) * (1 - 1 / cores)
    sending = SENDING_SECONDS * sum(job.plan.task.train.x.nbytes for job in jobs)
    return waiting > sending + (0.0 if are_warm(cores) else START_SECONDS)


def _in_threads(jobs: Sequence[_Job], table: BatchProgress, at_once: int) -> _Ended:
    stop = threading.Event()
    with ThreadPoolExecutor(min(at_once, len(jobs))) as pool:
        started = {}
        for job in jobs:
            row = table.row(job.title)
            watching = [*job.callbacks, row, _Stopping(stop)]
            started[pool.submit(attempt, job.plan, watching, 1)] = job.place, row
        try:
            for future in as_completed(started):
                place, row = started[future]
                table.run_done(row)
                yield place, _outcome(future)
        finally:
            stop.set()
            for future in started:
                future.cancel()


def _in_processes(jobs: Sequence[_Job], table: BatchProgress, cores: int) -> _Ended:
    if not may_have_workers():  # one after the other, as each computes alone
        for job in jobs:
            yield from _alone([job], table)
        return
    workers = worker_pool(min(cores, len(jobs)))
    with scratch_folder() as folder:
        started: dict[Any, tuple[int, Watched, EventStream]] = {}
        for job in jobs:
            row = table.row(job.title)
            mailbox = EventStream(folder, job.place, job.plan, job.callbacks, row)
            future = workers.submit(attempt_here, Parcel(job.plan), folder, job.place)
            started[future] = job.place, row, mailbox
        try:
            with delivering([mailbox for _, _, mailbox in started.values()]):
                for future in as_completed(started):
                    place, row, mailbox = started[future]
                    mailbox.deliver()
                    table.run_done(row)
                    yield place, mailbox.error or _outcome(future)
        finally:
            # Those that wait are not cancelled: loky fails over a cancelled one when it has to kill its workers. They
            # see the file, and end before they begin.
            running = [future for future in started if not future.done()]
            if running:
                (folder / STOP_FILE).touch()
                _wait_or_kill(running, workers)


def _wait_or_kill(running: Sequence[Any], workers: Any) -> None:
    from concurrent.futures import wait

    if wait(running, timeout=PATIENCE_SECONDS).not_done:
        workers.shutdown(wait=True, kill_workers=True)


def _outcome(future: Future[Result | Exception] | Future[Returned]) -> Result | Exception:
    try:
        found = future.result()
        return found.joined() if isinstance(found, Returned) else found
    except Exception as error:  # a worker process that died
        return error


def _work(plan: Plan) -> float:
    samples = plan.task.train.num_rows * plan.participation.sampler.fraction * plan.solver.local.epochs
    return plan.data_rounds * samples * plan.task.layout.size * plan.task.solver.gradients_per_step


@dataclass(frozen=True)
class _Stopping:
    """Ends a run after the iteration in which its batch was stopped."""

    stop: threading.Event

    def start(self, plan: Plan, before: Sequence[Record]) -> None: ...

    def record(self, record: Record, run: Run | None) -> None:
        if self.stop.is_set():
            raise Stopped("the run was stopped with its batch")

    def finish(self) -> None: ...
