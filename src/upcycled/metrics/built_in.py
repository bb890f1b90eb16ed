"""The metrics that have a name: scikit-learn's, on predictions.

Each asks for what it needs before it calls scikit-learn, and is None where that is not there: nothing warns. Of classes
and labels a mean is over those that are there. Two classes: the second one is the positive one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from upcycled.metrics.metric import Fit, Metric
from upcycled.support.extras import needs

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
