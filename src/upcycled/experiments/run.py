"""Run one experiment: all its seeds."""

from __future__ import annotations

from pathlib import Path

from upcycled.config.experiment import Experiment
from upcycled.experiments.batch import Options, Outcome, prepare_batch
from upcycled.support.lock import locked


def run_experiment(experiment: Experiment, source: str, options: Options | None = None) -> Outcome:
    """Run every seed that has no result yet, and write each as soon as it is there.

    Everything is checked before the first byte is written. A seed that diverges is reported; the others go on.

    Args:
        experiment: from :func:`upcycled.config.experiment.load_config`.
        source: the file's name, for error sentences.
        options: how it is shown, and what is kept.
    """
    batch = prepare_batch([experiment], source)
    if batch.is_finished:
        return batch.run(options)[0]
    with locked(experiment_folder(experiment)):
        return batch.run(options)[0]


def experiment_folder(experiment: Experiment) -> Path:
    """Return the folder that all results of an experiment lie below."""
    return Path(experiment.results) / experiment.name
