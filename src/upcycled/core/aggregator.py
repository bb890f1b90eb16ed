"""How the releases of a data round become one vector: the contract of everything that is passed as ``aggregation=``.

An aggregator sees releases and public numbers only, so whatever it does is post-processing: it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

from numpy.typing import NDArray

from upcycled.core.layout import EffectiveDirections
from upcycled.core.mechanism import Release
from upcycled.core.vectors import Real, Vector, weighted_mean

AggregatorState: TypeAlias = Mapping[str, NDArray[Any]]
"""What an aggregator carries from round to round; checkpoints keep it."""


@dataclass(frozen=True)
class Received:
    """All that an aggregator may look at: a data round's releases, and public numbers."""

    release: Release
    sent: Vector
    """y, the model that the clients were sent."""
    shares: Real
    """p_i: what each release weighs in the algorithm's own mean; they sum to 1."""
    noise_std: Real | None
    """The known std per coordinate of the noise in each release, zero without any; None where it is not known."""
    offsets: Vector | None
    """b_i/a of an algorithm with a linear and a quadratic term (FedDyn: -h_i/alpha): r_i - y + b_i/a is where the
    client's own data pull. None where there is none."""
    horizon: int
    """M, the data rounds planned."""
    directions: EffectiveDirections
    """What of a vector the model's predictions can tell apart."""


@dataclass(frozen=True)
class Combination:
    """How the vectors of one round's cohort become one."""

    mean_of: Callable[[Vector], Vector]
    """Takes one vector a client, (cohort, D), in the release's order: the releases, or what an algorithm made of
    them, such as changes of its control variates."""
    weights: Real | None = None
    """w_i, where it is a mean with weights, which sum to 1; None where it is none, as a median."""


def weighted(weights: Real) -> Combination:
    """Make the mean with these weights.

    Args:
        weights: one for each client of the cohort, in the release's order; they sum to 1.

    Returns:
        What an aggregator's ``combine`` gives.

    >>> import numpy as np
    >>> weighted(np.array([0.25, 0.75])).mean_of(np.array([[0.0], [4.0]], dtype=np.float32)).tolist()
    [3.0]
    """
    return Combination(partial(weighted_mean, weights), weights)


@runtime_checkable
class Aggregator(Protocol):
    """A frozen dataclass of options with these pure methods.

    One of your own, as ``train``'s ``aggregation=`` takes it; a file names it ``"my_module:Largest"``. This one
    believes the client with the most samples:

    >>> import numpy as np
    >>> import upcycled as up
    >>> @dataclass(frozen=True)
    ... class Largest:
    ...     needs_noise_std = is_weighted = False
    ...     def start(self):
    ...         return {}
    ...     def combine(self, own, received):
    ...         first = int(np.argmax(received.release.num_samples))
    ...         return up.Combination(lambda vectors: vectors[first]), own
    >>> data = up.data.synthetic("iid", clients=4, seed=0)
    >>> len(up.train(data, algorithm=up.FedAvg(), aggregation=Largest(), iterations=4, progress=False).history)
    4
    """

    @property
    def needs_noise_std(self) -> bool:
        """Whether it cannot do without the std of the noise in each release."""

    @property
    def is_weighted(self) -> bool:
        """Whether what it makes always has weights, so that the noise in it is known."""

    def start(self) -> AggregatorState:
        """Return its own state before the first round."""

    def combine(self, own: AggregatorState, received: Received) -> tuple[Combination | None, AggregatorState]:
        """Return how this round's vectors become one, and its own new state; None is the algorithm's own mean."""
