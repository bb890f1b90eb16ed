"""Robust aggregators: the median and the trimmed mean of each coordinate.

The median of each coordinate (Yin et al. 2018, arXiv:1803.01498): less than half of the clients cannot move it far.

Every client counts the same, whatever its n_i: a weight that a client names itself is no protection. Numbers that are
no numbers sort behind all others, so a client that diverged, or sends rubbish, is one more at the end.

The trimmed mean of each coordinate (Yin et al. 2018, arXiv:1803.01498): the ends are left out, the rest is averaged.

Of a cohort of S the floor(fraction S) smallest and as many of the largest numbers are left out; every client counts the
same. Numbers that are no numbers sort behind all others. Where the floor is 0 this is the plain mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import numpy as np

from upcycled.core.aggregator import AggregatorState, Combination, Received
from upcycled.core.errors import Limits, check_fields
from upcycled.core.vectors import Vector


@dataclass(frozen=True)
class Median:
    """Take each coordinate's median over the cohort; of an even number the mean of the two in the middle.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=5, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.FedAvg(), aggregation="median", iterations=4, progress=False)
    >>> run.accuracy > 0.5
    True
    """

    needs_noise_std: ClassVar[bool] = False
    is_weighted: ClassVar[bool] = False

    def start(self) -> AggregatorState:
        return {}

    def combine(self, own: AggregatorState, received: Received) -> tuple[Combination | None, AggregatorState]:
        """The same in every round."""
        return Combination(median_of), own


def median_of(vectors: Vector) -> Vector:
    """Return the median over the cohort axis (second to last), made in float64.

    >>> median_of(np.array([[1.0, 9.0], [3.0, np.nan], [2.0, 8.0]], dtype=np.float32)).tolist()
    [2.0, 9.0]
    """
    clients = vectors.shape[-2]
    middle = sorted({(clients - 1) // 2, clients // 2})
    parted = np.partition(vectors, middle, axis=-2)
    median: Vector = parted[..., middle, :].mean(axis=-2, dtype=np.float64).astype(np.float32)
    return median


@dataclass(frozen=True)
class TrimmedMean:
    """Average each coordinate without its smallest and largest values over the cohort.

    Args:
        fraction: the part of the cohort that is left out at either end.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=10, sizes=40, seed=0)
    >>> trimmed = up.aggregators.TrimmedMean(fraction=0.2)
    >>> run = up.train(data, algorithm=up.FedAvg(), aggregation=trimmed, iterations=4, progress=False)
    >>> run.accuracy > 0.5
    True
    """

    fraction: Annotated[float, Limits(at_least=0, below=0.5)] = 0.1

    needs_noise_std: ClassVar[bool] = False
    is_weighted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self) -> AggregatorState:
        return {}

    def combine(self, own: AggregatorState, received: Received) -> tuple[Combination | None, AggregatorState]:
        """The same in every round."""
        return Combination(partial(trimmed_mean_of, fraction=self.fraction)), own


def trimmed_mean_of(vectors: Vector, fraction: float) -> Vector:
    """Return the trimmed mean over the cohort axis (second to last), summed in float64.

    >>> trimmed_mean_of(np.array([[1.0], [2.0], [4.0], [100.0]], dtype=np.float32), fraction=0.25).tolist()
    [3.0]
    """
    clients = vectors.shape[-2]
    # A fraction such as 0.1 of 30 is 3, whatever its last binary digit says.
    cut = min(math.floor(fraction * clients + 1e-9), (clients - 1) // 2)
    ordered = np.sort(vectors, axis=-2)
    mean: Vector = ordered[..., cut : clients - cut, :].mean(axis=-2, dtype=np.float64).astype(np.float32)
    return mean
