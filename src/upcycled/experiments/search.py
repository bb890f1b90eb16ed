"""Optuna's search over a sweep's space: points are asked for in batches, and a stopped search is replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from upcycled.config.ranges import Range
from upcycled.core.errors import check_number
from upcycled.experiments.grid import Point, Space
from upcycled.support.extras import needs

AT_ONCE = 8
"""Points asked for together; the same on every machine, for the answers depend on it."""


def search(
    space: Space,
    count: int,
    seed: int,
    evaluate: Callable[[Sequence[Point]], Sequence[float | None]],
    worst: float | None = 0.0,
) -> None:
    """Ask for points and tell their scores, higher being better, until there are ``count``.

    The sampler is seeded and told in order, so the same scores lead to the same points: a search that was stopped goes
    through those that are there at once.

    Args:
        space: lists and ranges.
        count: points in all; Optuna may ask for one more than once.
        seed: of the sampler.
        evaluate: gives the score of each point; None where it has none (the run diverged).
        worst: what no score is below, and such a point counts as; None where there is no such number.
    """
    check_number("--optuna", count, at_least=1, integer=True)
    check_number("--draw-seed", seed, at_least=0, below=2**32, integer=True)
    needs("--optuna", "optuna")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True, n_startup_trials=min(10, max(1, count // 3)))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for start in range(0, count, AT_ONCE):
        trials = [study.ask() for _ in range(min(AT_ONCE, count - start))]
        points = [
            Point(tuple((key, _suggested(trial, key, values)) for key, values in space.items())) for trial in trials
        ]
        for trial, score in zip(trials, evaluate(points), strict=True):
            known = worst if score is None else score
            if known is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, known)


def _suggested(trial: Any, key: str, values: tuple[Any, ...] | Range) -> Any:
    if not isinstance(values, Range):
        # By place: a list may hold lists, which Optuna does not take.
        return values[trial.suggest_categorical(key, list(range(len(values))))]
    if values.integer:
        return int(trial.suggest_int(key, int(values.low), int(values.high), log=values.log))
    return float(f"{trial.suggest_float(key, float(values.low), float(values.high), log=values.log):.12g}")
