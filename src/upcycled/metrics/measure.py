"""From what a user asks for to numbers: metrics by name or as functions, held to the targets, and computed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from upcycled.core.errors import InputError, reason_of, shown, unknown
from upcycled.core.lookup import looked_up, names_code
from upcycled.core.objective import Objective, TargetKind
from upcycled.losses.table import OBJECTIVES
from upcycled.metrics.built_in import METRICS, sklearn_metrics
from upcycled.metrics.metric import Metric, fit_of
from upcycled.metrics.predictions import constant_outputs, predictions_of

GLOBAL = "global_"
"""What the names of the global model's metrics begin with, where others are of personal models."""
_KEPT = (GLOBAL, "noisy_", "validation_")
"""Beginnings of names that records have for other numbers."""
_WORDS = {
    "two classes": "two classes",
    "classes": "three or more classes",
    "labels": "several labels of 0 or 1 a sample",
    "numbers": "numbers",
}


def as_metrics(asked: object) -> tuple[Metric, ...]:
    """Return the metrics that a user asks for.

    Args:
        asked: None, or a list of names, functions (targets, predictions) -> a number, ``up.metrics.Metric`` and
            ``"module:name"``; or a mapping of names to functions, which may also be one of the list.

    Raises:
        InputError: in one sentence, for what is none of these, or a name that is taken.

    >>> [metric.name for metric in as_metrics(["auroc", {"cost": len}])]
    ['auroc', 'cost']
    """
    if asked is None:
        return ()
    if not isinstance(asked, Sequence | Mapping) or isinstance(asked, str):
        must = "a list of names such as 'auroc', of functions (targets, predictions) -> a number, or of both"
        raise InputError(field="metrics", value=asked, must=must)
    found = [metric for one in ([asked] if isinstance(asked, Mapping) else asked) for metric in _made(one)]
    names = [metric.name for metric in found]
    for name in names:
        if names.count(name) > 1:
            raise InputError(field="metrics", value=names, but=f"each must have a name of its own, not {name!r} twice")
        if name.startswith(_KEPT):
            raise InputError(field="metrics", value=name, must=f"a name that begins with none of {', '.join(_KEPT)}")
    return tuple(found)


def _made(one: object) -> Iterator[Metric]:
    if isinstance(one, Mapping):
        for name, function in one.items():
            made = next(_made(function))
            yield Metric(made.function, name, made.lower_is_better, made.fits)
        return
    if isinstance(one, str) and not names_code(one):
        if one not in METRICS:
            raise unknown("metrics", one, METRICS)
        yield METRICS[one]
        return
    found = looked_up(one, "metrics") if isinstance(one, str) else one
    yield found if isinstance(found, Metric) else Metric(found)  # type: ignore[arg-type]


def is_built_in(metric: Metric) -> bool:
    """Say whether it is one of the table's."""
    return METRICS.get(metric.name) is metric


def names_of(metrics: Iterable[Metric]) -> frozenset[str]:
    """Return the names that records may have for them, those of the global model beside personal ones included."""
    return frozenset(f"{which}{metric.name}" for metric in metrics for which in ("", GLOBAL))


def check_metrics(metrics: Iterable[Metric], targets: TargetKind, count: int) -> None:
    """Refuse metrics without a meaning for a run's targets, and those that need what is not installed.

    Raises:
        InputError: in one sentence.
    """
    fit = fit_of(targets, count)
    for metric in metrics:
        if fit not in metric.fits:
            fitting = ", ".join(name for name, one in METRICS.items() if fit in one.fits)
            but = f"it has no meaning for {_WORDS[fit]}, which the loss is computed against; these have: {fitting}"
            raise InputError(field="metrics", value=metric.name, but=but)
        if is_built_in(metric):
            sklearn_metrics()


def measure(
    metrics: Sequence[Metric],
    objective: Objective,
    targets: NDArray[Any],
    outputs: NDArray[Any],
    is_silent: bool = False,
) -> dict[str, float]:
    """Return the metrics of a model's outputs by name, without those that are not defined for them.

    Args:
        metrics: of the run.
        objective: its loss, which says what outputs are.
        targets: of the samples.
        outputs: of the model for the samples.
        is_silent: what a function of the user's raises leaves its metric out: whether it does may follow from records.

    Raises:
        InputError: in one sentence, if a function of the user's fails, or gives no number.
    """
    if not metrics or not len(targets) or not np.isfinite(outputs).all():
        return {}
    truth = targets if objective.targets == "classes" else targets.astype(np.float64)
    predictions = predictions_of(objective, outputs, targets)
    if not np.isfinite(predictions).all():
        return {}
    found = {metric.name: _value(metric, truth, predictions, is_silent) for metric in metrics}
    return {name: value for name, value in found.items() if value is not None and np.isfinite(value)}


def _value(metric: Metric, targets: NDArray[Any], predictions: NDArray[Any], is_silent: bool) -> float | None:
    if is_built_in(metric):
        value = metric.function(targets, predictions)
        return None if value is None else float(value)
    try:
        with _without_warnings(), np.errstate(all="ignore"):
            # Copies: a function that writes into them changes nobody else's.
            value = metric.function(targets.copy(), predictions.copy())
    except Exception as error:
        if is_silent:
            return None
        reason = f"failed with {type(error).__name__}: {reason_of(error)}"
        raise InputError(f"{metric.name!r} {reason}", field="metrics") from error
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError) as error:
        if is_silent:
            return None
        raise InputError(
            f"{metric.name!r} returned {shown(value)}; it must return a number", field="metrics"
        ) from error


_FILTERS = Lock()
"""Filters of warnings belong to the process, and runs may be threads of it."""


@contextmanager
def _without_warnings() -> Iterator[None]:
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def baseline(
    metrics: Sequence[Metric],
    objective: Objective,
    seen: NDArray[Any],
    targets: NDArray[Any],
    num_outputs: int,
    is_silent: bool = False,
) -> dict[str, float]:
    """Return accuracy, loss and metrics of a model that has learnt nothing from features.

    It answers with the class that most samples have, and with their mean where targets are numbers.

    Args:
        metrics: of the run.
        objective: its loss.
        seen: the targets of the training samples.
        targets: of the samples it is scored on.
        num_outputs: of the run's model.
        is_silent: as in :func:`measure`.

    >>> from upcycled.losses import CrossEntropy
    >>> found = baseline((), CrossEntropy(), np.array([0, 0, 1]), np.array([0, 0, 0, 1]), 2)
    >>> found["accuracy"], round(found["loss"], 3)
    (0.75, 0.579)
    """
    constant = constant_outputs(objective, seen, num_outputs)
    outputs = np.broadcast_to(constant, (len(targets), constant.size)).copy()
    found: dict[str, float] = {}
    # What outputs mean to somebody else's loss is not known.
    if type(objective) in OBJECTIVES.values():
        given, expected = torch.from_numpy(outputs), torch.from_numpy(np.ascontiguousarray(targets))
        right = objective.is_right(given, expected)
        found = {} if right is None else {"accuracy": float(right.double().mean())}
        found["loss"] = float(objective.per_sample(given, expected).mean())
    return found | measure(metrics, objective, targets, outputs, is_silent)
