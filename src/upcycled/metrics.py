"""Metrics: ``up.metrics``. A name is enough for those of the table; :class:`Metric` says more about one of your own.

A metric: a number of a model's predictions on test samples, what it has a meaning for, and which way is better.

What a model predicts: its outputs as probabilities or values; and what one predicts that has learnt nothing.

The metrics that have a name: scikit-learn's, on predictions.

Each asks for what it needs before it calls scikit-learn, and is None where that is not there: nothing warns. Of classes
and labels a mean is over those that are there. Two classes: the second one is the positive one.

From what a user asks for to numbers: metrics by name or as functions, held to the targets, and computed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from upcycled._utils.extras import needs
from upcycled.core.errors import InputError, reason_of, shown, unknown
from upcycled.core.objective import Objective, TargetKind
from upcycled.core.user_code import looked_up, names_code
from upcycled.core.vectors import Real
from upcycled.losses import OBJECTIVES, Poisson

Fit: TypeAlias = Literal["two classes", "classes", "labels", "numbers"]
"""What a metric may be of: two classes, three or more, several labels of 0 or 1 a sample, or numbers."""
FITS: tuple[Fit, ...] = get_args(Fit)
Function: TypeAlias = Callable[[NDArray[Any], NDArray[np.float64]], Any]
"""(targets, predictions) -> a number; None or NaN where it is not defined."""


@dataclass(frozen=True)
class Metric:
    """A function of your own as a metric, with a name and the way that is better.

    The function takes the targets of all test samples and what the model predicts for them: probabilities (samples,
    classes) of classes; (samples,) of the second class where the model has one output; (samples, labels) of labels; and
    values of numbers. It gives a number, or None where it is not defined.

    Raises:
        InputError: in one sentence, for what is no function, name or target.

    >>> def cost(targets, probabilities):
    ...     return float(np.mean(5 * (targets == 1) * (probabilities[:, 1] < 0.5)))
    >>> metric = Metric(cost, lower_is_better=True)
    >>> metric.name, metric.function(np.array([0, 1]), np.array([[0.9, 0.1], [0.8, 0.2]]))
    ('cost', 2.5)
    """

    function: Function
    """(targets, predictions) -> a number."""
    name: str = ""
    """What records and files call it; the function's own name if left out."""
    lower_is_better: bool = False
    """Whether comparisons and sweeps look for a small one."""
    fits: tuple[Fit, ...] = FITS
    """What it has a meaning for: ``"two classes"``, ``"classes"`` (three or more), ``"labels"``, ``"numbers"``."""

    def __post_init__(self) -> None:
        if not callable(self.function) or isinstance(self.function, type):
            raise InputError(
                field="metrics", value=self.function, must="a function (targets, predictions) -> a number, or a name"
            )
        name = self.name or getattr(self.function, "__name__", type(self.function).__name__)
        fits = tuple(self.fits)
        if not fits or not set(fits) <= set(FITS):
            raise InputError(field="fits", of="Metric", value=fits, must=f"one or more of {', '.join(FITS)}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "fits", fits)


def fit_of(targets: TargetKind, count: int) -> Fit:
    """Return what metrics of a run are of: its loss's targets, and how many classes there are.

    >>> fit_of("classes", 2), fit_of("classes", 10), fit_of("numbers", 1)
    ('two classes', 'classes', 'numbers')
    """
    if targets == "classes":
        return "two classes" if count == 2 else "classes"
    return targets


RAREST = 1e-7
"""The least probability that a constant answer gives, so that its loss is finite."""


def predictions_of(objective: Objective, outputs: NDArray[Any], targets: NDArray[Any]) -> Real:
    """Return probabilities for classes and labels, and values for numbers, in float64.

    One output a sample stands as (samples,), as targets do; of classes it is the second one's probability.

    >>> from upcycled.losses import CrossEntropy, Poisson
    >>> predictions_of(CrossEntropy(), np.array([[0.0, np.log(3.0)]]), np.array([1])).tolist()
    [[0.25, 0.75]]
    >>> predictions_of(Poisson(), np.array([[0.0]]), np.array([2.0])).tolist()
    [1.0]
    """
    from scipy.special import expit, softmax

    exact: Real = outputs.astype(np.float64)
    if exact.ndim == targets.ndim + 1 and exact.shape[-1] == 1:
        exact = exact[..., 0]
    with np.errstate(all="ignore"):
        if objective.targets == "numbers":
            return np.exp(exact) if isinstance(objective, Poisson) else exact
        is_one_of_several = objective.targets == "classes" and exact.ndim == 2
        found: Real = softmax(exact, axis=1) if is_one_of_several else expit(exact)
    return found


def constant_outputs(objective: Objective, targets: NDArray[Any], outputs: int) -> Real:
    """Return the outputs (outputs,) of a model that has seen targets and no features.

    It predicts the classes' or the labels' shares, and so answers with the class that most samples have; of numbers it
    predicts the mean.

    >>> from upcycled.losses import CrossEntropy, SquaredError
    >>> np.exp(constant_outputs(CrossEntropy(), np.array([0, 0, 0, 1]), 2)).round(3).tolist()
    [0.75, 0.25]
    >>> constant_outputs(SquaredError(), np.array([1.0, 2.0]), 1).tolist()
    [1.5]
    """
    if objective.targets == "numbers":
        mean = np.atleast_1d(np.mean(targets, axis=0, dtype=np.float64))
        found: Real = np.log(np.maximum(mean, RAREST)) if isinstance(objective, Poisson) else mean
        return found
    if objective.targets == "labels":
        shares = np.atleast_1d(np.mean(targets, axis=0, dtype=np.float64))
    else:
        counts = np.bincount(targets, minlength=max(outputs, 2)) / max(len(targets), 1)
        if outputs > 1:
            return np.log(np.maximum(counts, RAREST))
        shares = counts[1:2]
    shares = np.clip(shares, RAREST, 1 - RAREST)
    logits: Real = np.log(shares / (1 - shares))
    return logits


Array: TypeAlias = NDArray[Any]
Value: TypeAlias = float | None

BINS = 10
"""Of calibration."""


def sklearn_metrics() -> Any:
    """Return scikit-learn's metrics, or refuse in the sentence that installs them."""
    needs("metrics", "sklearn")
    from sklearn import metrics

    return metrics


def answers_of(predictions: Array) -> Array:
    """Return the most likely class of each sample, the first of equals.

    >>> answers_of(np.array([[0.2, 0.8], [0.5, 0.5]])).tolist(), answers_of(np.array([0.5, 0.6])).tolist()
    ([1, 0], [0, 1])
    """
    return (predictions > 0.5).astype(np.int64) if predictions.ndim == 1 else predictions.argmax(axis=1)


def columns_of(predictions: Array) -> Array:
    """Return probabilities as a column for each class, also where the model gives the second class's only."""
    return np.stack([1 - predictions, predictions], axis=1) if predictions.ndim == 1 else predictions


def positive_of(predictions: Array) -> Array:
    """Return the probability of the second of two classes."""
    return predictions if predictions.ndim == 1 else predictions[:, 1]


def one_against_rest(targets: Array, predictions: Array) -> Iterator[tuple[Array, Array]]:
    """Yield (whether a sample is of it, its score) for the positive class, for each of several, or for each label."""
    if np.issubdtype(targets.dtype, np.floating):
        for k in range(targets.shape[1] if targets.ndim > 1 else 1):
            yield (targets[:, k], predictions[:, k]) if targets.ndim > 1 else (targets, predictions)
    elif columns_of(predictions).shape[1] == 2:
        yield targets == 1, positive_of(predictions)
    else:
        yield from ((targets == k, predictions[:, k]) for k in range(predictions.shape[1]))


def _mean_over_columns(score: Callable[[Array, Array], Any], needs_others: bool) -> Callable[[Array, Array], Value]:
    """Return the mean of a score over the classes or labels that it is defined for."""

    def mean(targets: Array, predictions: Array) -> Value:
        found = [
            float(score(is_it.astype(np.int64), column))
            for is_it, column in one_against_rest(targets, predictions)
            if is_it.any() and not (needs_others and is_it.all())
        ]
        return float(np.mean(found)) if found else None

    return mean


def _roc_auc(is_it: Array, column: Array) -> Any:
    return sklearn_metrics().roc_auc_score(is_it, column)


def _average_precision(is_it: Array, column: Array) -> Any:
    return sklearn_metrics().average_precision_score(is_it, column)


def _answered(targets: Array, predictions: Array) -> tuple[Array, Array]:
    """Return targets and answers as whole numbers; several labels each have their own."""
    if np.issubdtype(targets.dtype, np.floating):
        return targets.astype(np.int64), (predictions > 0.5).astype(np.int64)
    return targets, answers_of(predictions)


def _averaged(name: str, average: str) -> Callable[[Array, Array], Value]:
    """Return one of scikit-learn's precision_score, recall_score, f1_score with its way to average over classes."""

    def averaged(targets: Array, predictions: Array) -> Value:
        return float(
            getattr(sklearn_metrics(), name)(*_answered(targets, predictions), average=average, zero_division=0.0)
        )

    return averaged


def _of_positive(name: str, positive: int = 1) -> Callable[[Array, Array], Value]:
    """Return such a score of one of two classes; not defined where no sample is of it."""

    def score(targets: Array, predictions: Array) -> Value:
        is_it, is_said = targets == positive, answers_of(predictions) == positive
        return float(getattr(sklearn_metrics(), name)(is_it, is_said, zero_division=0.0)) if is_it.any() else None

    return score


def _accuracy(targets: Array, predictions: Array) -> Value:
    return float(sklearn_metrics().accuracy_score(targets, answers_of(predictions)))


def _balanced_accuracy(targets: Array, predictions: Array) -> Value:
    answers, there = answers_of(predictions), np.unique(targets)
    return float(sklearn_metrics().recall_score(targets, answers, labels=there, average="macro", zero_division=0.0))


def _of_answers(name: str) -> Callable[[Array, Array], Value]:
    """Return a score that compares answers with chance: not defined where all samples are of one class."""

    def score(targets: Array, predictions: Array) -> Value:
        return (
            float(getattr(sklearn_metrics(), name)(targets, answers_of(predictions)))
            if np.unique(targets).size > 1
            else None
        )

    return score


def _log_loss(targets: Array, predictions: Array) -> Value:
    columns = columns_of(predictions)
    return float(sklearn_metrics().log_loss(targets, columns, labels=np.arange(columns.shape[1])))


def _brier(targets: Array, predictions: Array) -> Value:
    """Return the mean squared distance of probabilities, over two classes (or labels) that of one of them."""
    if np.issubdtype(targets.dtype, np.floating):
        return float(np.mean((predictions - targets) ** 2))
    columns = columns_of(predictions)
    distances = ((columns - (targets[:, None] == np.arange(columns.shape[1]))) ** 2).sum(axis=1)
    return float(distances.mean() / (2 if columns.shape[1] == 2 else 1))


def _calibration_error(targets: Array, predictions: Array) -> Value:
    """Return the expected calibration error of the most likely class, over bins of equal width."""
    columns, answers = columns_of(predictions), answers_of(predictions)
    sure = columns[np.arange(len(answers)), answers]
    place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    surplus = np.bincount(place, weights=sure - (answers == targets), minlength=BINS)
    return float(np.abs(surplus).sum() / len(targets))


def _of_numbers(name: str, fewest: int = 1) -> Callable[[Array, Array], Value]:
    def score(targets: Array, predictions: Array) -> Value:
        return float(getattr(sklearn_metrics(), name)(targets, predictions)) if len(targets) >= fewest else None

    return score


def _percentage_error(targets: Array, predictions: Array) -> Value:
    return (
        float(sklearn_metrics().mean_absolute_percentage_error(targets, predictions)) if np.all(targets != 0) else None
    )


_TWO: tuple[Fit, ...] = ("two classes",)
_CLASSES: tuple[Fit, ...] = ("two classes", "classes")
_ANSWERS: tuple[Fit, ...] = ("two classes", "classes", "labels")
_NUMBERS: tuple[Fit, ...] = ("numbers",)
_AUROC = _mean_over_columns(_roc_auc, needs_others=True)
_AUPRC = _mean_over_columns(_average_precision, needs_others=False)

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(_accuracy, "accuracy", fits=_CLASSES),
        Metric(_balanced_accuracy, "balanced_accuracy", fits=_CLASSES),
        Metric(_AUROC, "auroc", fits=_ANSWERS),
        Metric(_AUPRC, "auprc", fits=_ANSWERS),
        Metric(_AUPRC, "average_precision", fits=_ANSWERS),
        Metric(_of_positive("f1_score"), "f1", fits=_TWO),
        *(Metric(_averaged("f1_score", way), f"f1_{way}", fits=_ANSWERS) for way in ("macro", "micro", "weighted")),
        Metric(_of_positive("precision_score"), "precision", fits=_TWO),
        Metric(_averaged("precision_score", "macro"), "precision_macro", fits=_ANSWERS),
        Metric(_of_positive("recall_score"), "recall", fits=_TWO),
        Metric(_averaged("recall_score", "macro"), "recall_macro", fits=_ANSWERS),
        Metric(_of_positive("recall_score"), "sensitivity", fits=_TWO),
        Metric(_of_positive("recall_score", positive=0), "specificity", fits=_TWO),
        Metric(_of_answers("matthews_corrcoef"), "mcc", fits=_CLASSES),
        Metric(_of_answers("cohen_kappa_score"), "kappa", fits=_CLASSES),
        Metric(_brier, "brier", True, _ANSWERS),
        Metric(_log_loss, "log_loss", True, _CLASSES),
        Metric(_calibration_error, "ece", True, _CLASSES),
        Metric(_of_numbers("root_mean_squared_error"), "rmse", True, _NUMBERS),
        Metric(_of_numbers("mean_absolute_error"), "mae", True, _NUMBERS),
        Metric(_of_numbers("median_absolute_error"), "median_absolute_error", True, _NUMBERS),
        Metric(_percentage_error, "mape", True, _NUMBERS),
        Metric(_of_numbers("r2_score", fewest=2), "r2", fits=_NUMBERS),
        Metric(_of_numbers("explained_variance_score", fewest=2), "explained_variance", fits=_NUMBERS),
    )
}
"""By name. ``recall`` and ``sensitivity``, ``auprc`` and ``average_precision`` are two names of one."""

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


__all__ = ["Metric"]
