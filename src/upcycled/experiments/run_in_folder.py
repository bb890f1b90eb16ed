"""The one procedure by which runs are carried out in their folders: batches, runs from Python and federations.

The folder is begun, the run is carried out with checkpoint, ledger and key in it, and the results are written, the
summary last. Then the checkpoint is removed, for nothing reads it any more. After a kill between two of these steps the
same command goes on: from the checkpoint while there is no summary, afterwards by removing what is left of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from upcycled._utils.lock import locked
from upcycled.core.errors import UpcycledError
from upcycled.data import FederatedData
from upcycled.experiments.results import write_run
from upcycled.run_folder import DATA_KEY, RunFolder, Summary
from upcycled.training import Result
from upcycled.training.checkpoint.files import keep_newest
from upcycled.training.executor import Failed, Job
from upcycled.training.plan import Plan
from upcycled.training.publication import Publication
from upcycled.training.spec import RunSpec
from upcycled.training.train import ENDED_EARLY

CarryOut: TypeAlias = Callable[[Sequence[Job]], Generator[tuple[int, Result | Failed], None, None]]
"""Carries out runs, and yields (place, result) of each as it ends."""


@dataclass(frozen=True)
class FolderRun:
    """A run, and the folder that it is carried out in."""

    folder: RunFolder
    config: bytes
    """Its complete file."""
    spec: RunSpec
    fingerprint: str
    data: FederatedData
    shown: Publication
    """What may be seen of it."""
    about: Mapping[str, Any]
    """What may be said of its data."""
    scored_on: str = "test"
    is_given_back: bool = False
    """Whether a finished run is asked for again as a whole result, which is read from its last checkpoint."""

    @property
    def places(self) -> dict[str, Any]:
        """The fields of ``RunSpec`` that have a place in the folder."""
        spec, checkpoint = self.spec, self.folder.checkpoint(self.shown.is_restricted)
        found: dict[str, Any] = {"checkpoint": checkpoint}
        if self.is_given_back and not spec.is_reproducible:  # there will be nothing to give back
            found["checkpoint"] = None
        if spec.privacy is not None:
            found["ledger"] = self.folder.open_ledger(spec.noise, checkpoint)
            # The holder's own, which nobody who gets the folder's other files needs.
            found["ledger_key"] = self.folder.ledger_key if spec.noise == "system" else None
        return found

    def begin(self) -> None:
        """Make the folder this run's, which its caller has locked, or the folder above."""
        self.folder.begin(self.config, self.shown.is_restricted)

    def end(self) -> None:
        """Remove what nothing reads of a run that has its summary."""
        drop_checkpoint(self.folder, self.shown.is_restricted, is_given_back=self.is_given_back)

    def write(self, result: Result, parquet: bool = False) -> Summary:
        """Write the results of a run that is finished, or stopped for good."""
        summary = write_run(
            self.folder,
            self.config,
            self.spec,
            self.fingerprint,
            self.scored_on,
            self.data,
            self.about,
            result,
            parquet=parquet,
        )
        self.end()
        return summary


def run_in_folders(
    runs: Sequence[FolderRun],
    job: Callable[[int, Mapping[str, Any]], Job],
    carry_out: CarryOut,
    *,
    parquet: bool = False,
) -> Generator[tuple[int, Result | Failed, Summary | None], None, None]:
    """Carry out runs in their folders, and write the results of each as soon as it is there.

    Args:
        runs: the runs, whose folders the caller has locked, or the folder above.
        job: gives the run at a place, kept where it is said.
        carry_out: how jobs are run.
        parquet: write ``metrics.parquet`` too.

    Yields:
        The place, what the run gave, and its summary; None for a run that is to be asked for again.
    """
    jobs = []
    for place, run in enumerate(runs):
        run.begin()
        jobs.append(job(place, run.places))
    # Closed, not left to the collector: an error here must stop the runs that are under way.
    with closing(carry_out(jobs)) as ended:
        for place, found in ended:
            result = found.result if isinstance(found, Failed) else found
            is_over = found.error is None or isinstance(found.error, ENDED_EARLY)
            summary = runs[place].write(result, parquet) if is_over and result is not None else None
            yield place, found, summary


def run_in_folder(
    run: FolderRun, plan: Callable[[Mapping[str, Any]], Plan], carry_out: Callable[[Plan], Result]
) -> tuple[Result, Summary | None]:
    """Carry out one run in its folder, as :func:`run_in_folders` does.

    Raises:
        DivergedError, BudgetSpentError: if that ends the run before its first iteration; what is left is written.
    """

    def alone(jobs: Sequence[Job]) -> Generator[tuple[int, Result | Failed], None, None]:
        (job,) = jobs
        assert isinstance(job, Plan)
        try:
            yield 0, carry_out(job)
        except ENDED_EARLY as error:
            yield 0, Failed(error, job.settings, error.result)

    ((_, found, summary),) = run_in_folders([run], lambda _, places: plan(places), alone)
    if isinstance(found, Failed):
        raise found.error
    return found, summary


def drop_checkpoint(folder: RunFolder, is_restricted: bool, *, is_given_back: bool = False) -> None:
    """Remove the checkpoint of a run that has its summary; a run that is given back keeps the newest file.

    The key of the data's hashes stays, beside it. What cannot be removed does no harm, and goes when the run is asked
    for again; a folder in which somebody works is left alone.
    """
    checkpoint = folder.checkpoint(is_restricted)
    if not checkpoint.is_dir():
        return
    with suppress(OSError, UpcycledError), locked(checkpoint, is_private=is_restricted):
        if is_given_back:
            keep_newest(checkpoint)
            return
        if (checkpoint / DATA_KEY).exists():
            os.replace(checkpoint / DATA_KEY, folder.private / DATA_KEY)
        shutil.rmtree(checkpoint)
