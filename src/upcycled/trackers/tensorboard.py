"""TensorBoard: ``tensorboard --logdir results``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycled._utils.extras import needs
from upcycled.trackers import Tracker, epsilons_of, numbers_of
from upcycled.training import Record
from upcycled.training.plan import Plan
from upcycled.training.publication import publication_of

if TYPE_CHECKING:
    from upcycled.training.state import Run


def opened() -> Tracker:
    """Return what gives each run its callback."""
    needs("--tracker tensorboard", "tensorboard")

    return lambda watched: TensorBoard(watched.home / f"seed-{watched.seed}" / "tensorboard")


class TensorBoard:
    """Writes event files; a resumed run writes its earlier records anew, so that no step is there twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._epsilons: Callable[[], dict[int, float]] = dict
        self._shows_times = True
        """Whether numbers have the time at which they were written; in a restricted run that follows from the data."""

    def start(self, plan: Plan, before: Sequence[Record]) -> None:
        """Begin the run's event file."""
        from torch.utils.tensorboard import SummaryWriter

        self._shows_times = not publication_of(plan).is_restricted
        self._epsilons = partial(epsilons_of, plan)
        for path in self._folder.glob("events.out.tfevents.*"):
            path.unlink()
        self._writer = SummaryWriter(str(self._folder))
        for record in before:
            self.record(record, None)

    def record(self, record: Record, run: Run | None) -> None:
        for name, value in numbers_of(record).items():
            self._add(name, value, record.iteration)

    def finish(self) -> None:
        """Write what each data round cost, and close the file."""
        if self._writer is not None:
            for iteration, epsilon in self._epsilons().items():
                self._add("epsilon", epsilon, iteration)
            self._writer.close()

    def _add(self, name: str, value: float, iteration: int) -> None:
        self._writer.add_scalar(name, value, iteration, walltime=None if self._shows_times else 0.0)
