"""The final model on test data: its outputs once, and small data for pictures, ``evaluation.json``.

All of it is computed from records that no epsilon covers: of a restricted run it is the holder's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from upcycled.core.objective import Objective
from upcycled.core.vectors import Ints, Outputs, Real, Shards
from upcycled.data import FederatedData
from upcycled.engines.determinism import one_thread, to_torch
from upcycled.engines.scoring import in_place, pieces
from upcycled.losses import as_objective, is_balanced, with_counts
from upcycled.metrics import (
    BINS,
    Metric,
    answers_of,
    as_metrics,
    baseline,
    columns_of,
    measure,
    one_against_rest,
    positive_of,
    predictions_of,
)
from upcycled.models.prepare import as_input
from upcycled.training import Result
from upcycled.training.result import PersonalModels

MOST_CLASSES = 100
"""Of a confusion matrix."""
MOST_CURVES = 10
"""Of one class against the rest; beyond, one for all together."""
POINTS = 60
"""Of a curve."""


@dataclass(frozen=True)
class FinalModel:
    """A run's last model, or each client's own, with its outputs for all test samples."""

    objective: Objective
    metrics: tuple[Metric, ...]
    train_targets: NDArray[Any]
    test: Shards
    outputs: Outputs
    num_targets: int

    @property
    def targets(self) -> NDArray[Any]:
        """The test samples' targets, as the loss takes them."""
        return self.test.y if self.objective.targets == "classes" else self.test.y.astype(np.float32, copy=False)

    def scores_of_rows(self) -> tuple[Real, Real]:
        """Return, for each sample, whether the answer is right (NaN where that has no meaning), and its loss."""
        right, loss = np.zeros(self.test.num_rows), np.zeros(self.test.num_rows)
        for piece in pieces(self.test.num_rows):
            outputs, targets = torch.from_numpy(self.outputs[piece]), to_torch(self.targets[piece])
            answers = self.objective.is_right(outputs, targets)
            right[piece] = np.nan if answers is None else answers.numpy()
            loss[piece] = self.objective.per_sample(outputs.double(), targets).numpy()
        return right, loss

    def metrics_of_clients(self) -> dict[str, list[float | None]]:
        """Return every metric on each client's own test samples; None where it is not defined for them."""
        found: dict[str, list[float | None]] = {metric.name: [] for metric in self.metrics if metric.name != "accuracy"}
        if not found:
            return {}
        for client in range(self.test.num_clients):
            rows = slice(int(self.test.offsets[client]), int(self.test.offsets[client + 1]))
            # What a function makes of a single client's few samples is no reason to stop.
            own = measure(self.metrics, self.objective, self.targets[rows], self.outputs[rows], is_silent=True)
            for name, values in found.items():
                values.append(own.get(name))
        return found

    def baseline(self) -> dict[str, float]:
        """Return the scores of the majority class, or of the mean."""
        count = self.objective.num_outputs(self.num_targets)
        with np.errstate(all="ignore"):
            return baseline(self.metrics, self.objective, self.train_targets, self.targets, count, is_silent=True)

    def document(self) -> dict[str, Any]:
        """Return what ``evaluation.json`` holds: the baseline's scores, and what pictures are drawn of."""
        kind: str = self.objective.targets
        found: dict[str, Any] = {
            "targets": kind,
            "samples": self.test.num_rows,
            "baseline": self.baseline(),
            "confusion": None,
            "roc": [],
            "calibration": None,
        }
        if not np.isfinite(self.outputs).all():
            return found
        predictions = predictions_of(self.objective, self.outputs, self.targets)
        if kind == "classes":
            found["confusion"] = confusion(self.targets, answers_of(predictions), columns_of(predictions).shape[1])
        if kind != "numbers":
            found["roc"] = _curves(self.targets, predictions)
        with np.errstate(all="ignore"):
            return found | {"calibration": calibration(self.targets, predictions, kind)}


def final_model(data: FederatedData, result: Result, personal: PersonalModels | None) -> FinalModel | None:
    """Return the run's last model at work on the test samples; None without any."""
    if data.test is None or data.test.num_rows == 0:
        return None
    objective = _objective(data, result)
    metrics = as_metrics(None if result.spec is None else result.spec.metrics)
    seen = data.train.y if objective.targets == "classes" else data.train.y.astype(np.float32, copy=False)
    count = 1 if objective.targets != data.targets else data.num_classes
    return FinalModel(objective, metrics, seen, data.test, _outputs(result.model, personal, data.test), count)


def _objective(data: FederatedData, result: Result) -> Objective:
    """Return the run's loss, its weights found as the run found them."""
    objective = as_objective(result.settings["loss"], data.targets)
    is_counted = is_balanced(objective) and data.targets == "classes"
    counts = np.bincount(data.train.y, minlength=data.num_classes).tolist() if is_counted else None
    return with_counts(objective, counts)


@torch.no_grad()
def _outputs(model: nn.Module, personal: PersonalModels | None, test: Shards) -> Outputs:
    owner = np.repeat(np.arange(test.num_clients), test.sizes)
    own: Mapping[int, nn.Module] = personal or {}
    found: list[tuple[Ints | slice, torch.Tensor | Outputs]] = []
    with one_thread():
        for module, rows in (
            (model, np.flatnonzero(~np.isin(owner, list(own)))),
            *((own[client], np.flatnonzero(owner == client)) for client in own),
        ):
            for piece in pieces(len(rows)):
                here = rows[piece]
                found.append((here, module(to_torch(as_input(module, test.x[here])))))
    return in_place(found, test)


def confusion(targets: Ints, answers: Ints, classes: int) -> list[list[int]] | None:
    """Return how many samples of each class (a row) were answered with each (a column); None of too many.

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
    [[1, 1], [0, 1]]
    """
    if classes > MOST_CLASSES:
        return None
    return np.bincount(targets * classes + answers, minlength=classes**2).reshape(classes, classes).tolist()


def roc(is_it: NDArray[Any], scores: Real) -> dict[str, list[float]] | None:
    """Return false and true positive rates over thresholds, in few points; None where one of the two has no samples.

    >>> roc(np.array([0, 1, 1]), np.array([0.1, 0.9, 0.2]))
    {'false': [0.0, 0.0, 0.0, 1.0], 'true': [0.0, 0.5, 1.0, 1.0]}
    """
    order = np.argsort(-scores, kind="stable")
    hits, ranked = np.asarray(is_it, dtype=bool)[order], scores[order]
    if hits.all() or not hits.any():
        return None
    last = np.append(np.flatnonzero(np.diff(ranked)), hits.size - 1)  # of equal scores together
    true, false = np.cumsum(hits)[last] / hits.sum(), np.cumsum(~hits)[last] / (~hits).sum()
    true, false = np.append(0.0, true), np.append(0.0, false)
    # Evenly along the way, not along thresholds: most of them may lie in one place.
    way = true + false
    kept = (
        np.unique(np.searchsorted(way, np.linspace(0, way[-1], POINTS))) if way.size > POINTS else np.arange(way.size)
    )
    return {"false": false[kept].tolist(), "true": true[kept].tolist()}


def _curves(targets: NDArray[Any], predictions: Real) -> list[dict[str, Any]]:
    """Return a curve for each class against the rest, or for each label; one for all where they are many."""
    columns = list(one_against_rest(targets, predictions))
    if len(columns) > MOST_CURVES:
        is_it = np.concatenate([np.asarray(one, dtype=bool) for one, _ in columns])
        return [
            {"of": "all together", **found} for found in [roc(is_it, np.concatenate([s for _, s in columns]))] if found
        ]
    first = 1 if len(columns) == 1 else 0
    curves = ((k, roc(is_it, scores)) for k, (is_it, scores) in enumerate(columns, start=first))
    return [{"of": str(k), **found} for k, found in curves if found is not None]


def calibration(targets: NDArray[Any], predictions: Real, kind: str) -> dict[str, Any]:
    """Return mean prediction and mean outcome in groups of samples, and how many there are in each.

    Of two classes the second one's probability, of several that of the most likely one, of labels all of them, in
    groups of equal width; of numbers in groups of equal size.

    >>> calibration(np.array([0, 1, 1]), np.array([0.12, 0.14, 0.9]), "classes")
    {'of': 'class 1', 'predicted': [0.13, 0.9], 'observed': [0.5, 1.0], 'samples': [2, 1]}
    """
    if kind == "numbers":
        said, seen = predictions.ravel(), targets.ravel().astype(np.float64)
        place = np.argsort(np.argsort(said, kind="stable"), kind="stable") * BINS // max(said.size, 1)
        of = "numbers"
    elif kind == "labels":
        said, seen, of = predictions.ravel(), targets.ravel().astype(np.float64), "labels"
        place = np.minimum((said * BINS).astype(np.int64), BINS - 1)
    else:
        columns, answers = columns_of(predictions), answers_of(predictions)
        if columns.shape[1] == 2:
            said, seen, of = positive_of(predictions), (targets == 1).astype(np.float64), "class 1"
        else:
            said = columns[np.arange(len(answers)), answers]
            seen, of = (answers == targets).astype(np.float64), "the most likely class"
        place = np.minimum((said * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(place, minlength=BINS)
    there = counts > 0
    sums = (np.bincount(place, weights=values, minlength=BINS)[there] / counts[there] for values in (said, seen))
    predicted, observed = (values.round(9).tolist() for values in sums)
    return {"of": of, "predicted": predicted, "observed": observed, "samples": counts[there].tolist()}
