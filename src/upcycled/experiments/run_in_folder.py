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
from typing import Any, TypeAlias

from upcycled._utils.lock import locked
from upcycled.core.errors import UpcycledError
from upcycled.experiments.results import FolderRun, write_run
from upcycled.run_folder import DATA_KEY, RunFolder, Summary
from upcycled.training import Result
from upcycled.training.checkpoint.files import keep_newest
from upcycled.training.executor import Failed, Job
from upcycled.training.plan import Plan
from upcycled.training.train import ENDED_EARLY

CarryOut: TypeAlias = Callable[[Sequence[Job]], Generator[tuple[int, Result | Failed], None, None]]
"""Carries out runs, and yields (place, result) of each as it ends."""


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
        run.folder.begin(run.config, run.shown.is_restricted)
        jobs.append(job(place, run.places))
    # Closed, not left to the collector: an error here must stop the runs that are under way.
    with closing(carry_out(jobs)) as ended:
        for place, found in ended:
            result = found.result if isinstance(found, Failed) else found
            is_over = found.error is None or isinstance(found.error, ENDED_EARLY)
            run, summary = runs[place], None
            if is_over and result is not None:
                summary = write_run(run, result, parquet=parquet)
                drop_checkpoint(run.folder, run.shown.is_restricted, is_given_back=run.is_given_back)
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
