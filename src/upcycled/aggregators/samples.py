"""The usual mean: sum p_i r_i, p_i = n_i / n over the cohort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from upcycled.core.aggregator import AggregatorState, Combination, Received


@dataclass(frozen=True)
class Samples:
    """Weigh releases by their sample counts, or as the algorithm or a central mechanism has it: the default.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> both = [
    ...     up.train(data, algorithm=up.FedAvg(), iterations=2, progress=False, **more).params
    ...     for more in ({}, {"aggregation": up.aggregators.Samples()})
    ... ]
    >>> bool((both[0] == both[1]).all())
    True
    """

    needs_noise_std: ClassVar[bool] = False
    is_weighted: ClassVar[bool] = True

    def start(self) -> AggregatorState:
        return {}

    def combine(self, own: AggregatorState, received: Received) -> tuple[Combination | None, AggregatorState]:
        """Leave it to the algorithm."""
        return None, own
