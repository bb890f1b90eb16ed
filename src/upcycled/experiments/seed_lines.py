"""What is said on standard error of each seed as it is done; live tables are the batch's own."""

from __future__ import annotations

from upcycled.config.experiment import Experiment
from upcycled.experiments.batch import SeedOutcome, Tell
from upcycled.support.formats import fixed
from upcycled.support.said import is_terminal, say


def seed_line(outcome: SeedOutcome) -> str:
    """Return what became of a seed, in one line."""
    if outcome.status == "stopped":
        return f"seed {outcome.seed} stopped: {outcome.error}"
    if outcome.status == "reused":
        return f"seed {outcome.seed} is already there with this config and was not run again"
    how = ", from the checkpoint of an earlier command on" if outcome.went_on else ""
    return f"seed {outcome.seed} finished{how}: {outcome.folder}"


def tell_failures(experiment: Experiment, outcome: SeedOutcome) -> None:
    """Name runs that gave no result, and say nothing of the others: for batches of many."""
    if outcome.error is not None:
        say(f"{experiment.name}, {seed_line(outcome)}")


def tell_scores() -> Tell:
    """Return what says how each run ended; in a terminal the live table shows that, and only failures are said."""
    return tell_failures if is_terminal() else _tell_score


def _tell_score(experiment: Experiment, outcome: SeedOutcome) -> None:
    summary = outcome.summary
    if summary is None or summary["accuracy"] is None:
        tell_failures(experiment, outcome)
        return
    accuracy, rounds = fixed(summary["accuracy"], 2, 100), summary["data_rounds"]
    say(f"{experiment.name}, seed {outcome.seed}: accuracy {accuracy} % after {rounds} data rounds")
