"""MLflow, in files below the results folder: ``mlflow ui --backend-store-uri results/mlruns``.

MLflow 3 wants the word for plain files: set ``MLFLOW_ALLOW_FILE_STORE=true`` for that command too.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from upcycled._utils.extras import needs
from upcycled.config.experiment import NOT_IN_BITS, flat
from upcycled.experiments.train import document_of
from upcycled.trackers import TrackedRun, Tracker, epsilons_of, numbers_of
from upcycled.training import Record
from upcycled.training.plan import Plan
from upcycled.training.publication import publication_of

if TYPE_CHECKING:
    from upcycled.training.state import Run


STORE = "mlruns"
TAG = "upcycled.config"
"""Marks an MLflow run with what it is a run of, so that a resumed one is found again."""
FLUSH_SECONDS = 1.0
MOST_AT_ONCE = 500
"""MLflow takes 1000 numbers in a call."""


def opened() -> Tracker:
    """Return what gives each run its observer."""
    # Before the import, which reads them: nothing is reported to anybody, and plain files are wanted.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    needs("--tracker mlflow", "mlflow")

    lock = threading.Lock()

    return lambda watched: Mlflow(watched, lock)


class Mlflow:
    """An MLflow run per seed, in an MLflow experiment per experiment."""

    def __init__(self, watched: TrackedRun, lock: threading.Lock) -> None:
        self._home, self._seed = watched.home.resolve(), watched.seed
        self._settings = {} if watched.settings is None else _kept(watched.settings)
        self._lock = lock
        """Runs that start together look for the same MLflow experiment."""
        self._client: Any = None
        self._epsilons: Callable[[], dict[int, float]] = dict
        self._run = ""
        self._logged: dict[str, int] = {}
        """The last step of each number that is there already."""
        self._waiting: list[Any] = []
        self._flushed = 0.0
        self._iteration = self._total = 0
        self._shows_times = True
        """Whether numbers have the time at which they were written; in a restricted run that follows from the data."""

    def start(self, plan: Plan, before: Sequence[Record]) -> None:
        """Begin the MLflow run, or go on with it; what of ``before`` it lacks is added."""
        from mlflow import MlflowClient

        self._settings = self._settings or _kept(flat(document_of(plan.spec)))
        store = self._home.parent / STORE
        self._client = MlflowClient(tracking_uri=store.as_uri())
        self._total = plan.iterations
        self._epsilons = partial(epsilons_of, plan)
        self._shows_times = not publication_of(plan).is_restricted
        with self._lock:
            self._run = self._found() or self._created()
        self._flushed = time.monotonic()
        for record in before:
            self.record(record, None)

    def record(self, record: Record, run: Run | None) -> None:
        """Take an iteration's numbers; they are written every second."""
        from mlflow.entities import Metric

        self._iteration, now = record.iteration, self._now()
        for name, value in numbers_of(record).items():
            if record.iteration > self._logged.get(name, 0):
                self._waiting.append(Metric(name, value, now, record.iteration))
        if time.monotonic() - self._flushed >= FLUSH_SECONDS or len(self._waiting) >= MOST_AT_ONCE:
            self._flush()

    def finish(self) -> None:
        """Write what is left, what each data round cost, and say how it ended."""
        if self._run:
            from mlflow.entities import Metric

            for iteration, epsilon in self._epsilons().items():
                if iteration > self._logged.get("epsilon", 0):
                    self._waiting.append(Metric("epsilon", epsilon, self._now(), iteration))
                if len(self._waiting) >= MOST_AT_ONCE:
                    self._flush()
            self._flush()
            status = "FINISHED" if self._iteration == self._total else "KILLED"
            self._client.set_terminated(self._run, status, self._now())

    def _now(self) -> int:
        """Return the milliseconds that MLflow wants beside a number; it takes zero for none, and asks the clock."""
        return int(1000 * time.time()) if self._shows_times else 1

    def _flush(self) -> None:
        self._client.log_batch(self._run, metrics=self._waiting)
        self._waiting, self._flushed = [], time.monotonic()

    @property
    def _mark(self) -> str:
        return hashlib.sha256(repr(sorted(self._settings.items())).encode()).hexdigest()[:16]

    def _found(self) -> str | None:
        experiment = self._client.get_experiment_by_name(self._home.name)
        if experiment is None:
            return None
        runs = self._client.search_runs([experiment.experiment_id], f"tags.`{TAG}` = '{self._mark}'", max_results=1)
        if not runs:
            return None
        for name in runs[0].data.metrics:
            steps = [metric.step for metric in self._client.get_metric_history(runs[0].info.run_id, name)]
            self._logged[name] = max(steps, default=0)
        self._client.update_run(runs[0].info.run_id, status="RUNNING")
        return str(runs[0].info.run_id)

    def _created(self) -> str:
        from mlflow.entities import Param

        experiment = self._client.get_experiment_by_name(self._home.name)
        place = self._client.create_experiment(self._home.name) if experiment is None else experiment.experiment_id
        tags = {TAG: self._mark}
        run = self._client.create_run(place, start_time=self._now(), run_name=f"seed-{self._seed}", tags=tags)
        settings = [Param(key, str(value)) for key, value in self._settings.items()]
        self._client.log_batch(run.info.run_id, params=settings)
        return str(run.info.run_id)


def _kept(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what does not change a run."""
    return {key: value for key, value in settings.items() if key not in ("results", *NOT_IN_BITS)}
