"""A metric: a number of a model's predictions on test samples, what it has a meaning for, and which way is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError
from upcycled.core.objective import TargetKind

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
