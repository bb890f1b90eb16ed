"""The contract between the round loop and an engine: a cohort's problem in, trained vectors out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from upcycled.core.layout import Layout
from upcycled.core.mechanism import Ask, NoiseSource, Trained
from upcycled.core.objective import Objective
from upcycled.core.solvers import Solver
from upcycled.core.vectors import Ints, Outputs, Shards, Vector


@dataclass(frozen=True)
class Task:
    """What stays the same for a whole run; an engine is opened on it once."""

    module: nn.Module
    """A private copy: an engine may write into it."""
    layout: Layout
    num_classes: int
    """Classes, or labels or numbers of a target."""
    train: Shards
    test: Shards | None
    solver: Solver
    seed: int
    objective: Objective
    rounds: int = 1
    """M, all data rounds: schedules are over them."""
    cohort_size: int = 1
    """Clients expected in a data round: engines choose their way of working by it."""
    device: str = "cpu"
    statistics: Layout | None = None
    """The running statistics of batch norm that training changes; None where the model has none."""


@dataclass(frozen=True)
class Scores:
    """Accuracy and mean loss over ``num_samples`` test samples."""

    accuracy: float | None
    """None where right answers have no meaning."""
    loss: float
    num_samples: int


class Engine(Protocol):
    """Trains cohorts and scores models; engines differ in speed, never in what they compute."""

    @property
    def name(self) -> str:
        """The name a user asks for it by."""

    @property
    def way(self) -> str:
        """How it works on this task, where it has a choice; a fixed function of the task."""

    def train(self, asked: Ask, noise: NoiseSource | None = None) -> Trained:
        """Do a cohort's local work.

        ``noise`` is for solvers that draw noise inside their steps; the same source as the release's.
        """

    def score(self, model: Vector, statistics: Vector | None = None) -> Scores:
        """Score the global model, with its running statistics where it has some, on all test samples."""

    def score_personal(self, model: Vector, clients: Ints, personal: Vector) -> Scores:
        """Score each client's own model on its own test samples; clients not listed use ``model``."""

    def outputs(self, model: Vector, statistics: Vector | None = None) -> Outputs:
        """Return the global model's outputs for all test samples, in the order of their rows."""

    def outputs_personal(self, model: Vector, clients: Ints, personal: Vector) -> Outputs:
        """Return those of each client's own model for its own test samples; clients not listed use ``model``."""

    def close(self) -> None:
        """Give back threads and processes."""


@dataclass(frozen=True)
class EngineKind:
    """An engine's row in the table: its name, why it would refuse a task (or None), and how to open it."""

    name: str
    refuses: Callable[[Task], str | None]
    open: Callable[[Task, int | None], Engine]
    """(task, threads) -> engine; threads None means one per core."""
    runs_without_lock: bool = False
    """Whether its work releases the interpreter's lock, so that runs in threads of one process do not wait."""
