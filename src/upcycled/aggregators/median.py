"""The median of each coordinate (Yin et al. 2018, arXiv:1803.01498): less than half of the clients cannot move it far.

Every client counts the same, whatever its n_i: a weight that a client names itself is no protection. Numbers that are
no numbers sort behind all others, so a client that diverged, or sends rubbish, is one more at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from upcycled.core.aggregator import AggregatorState, Combination, Received
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
