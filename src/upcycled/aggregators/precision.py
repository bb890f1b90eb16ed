"""Precision weights: clients with much privacy noise count less, as far as the clients agree.

Noise calibrated per client makes small clients very noisy (sigma_i ~ 1/n_i), and weights n_i are not the best ones for
that. In a data round with cohort S, y sent and M rounds planned:

    pull_i = r_i - y + b_i/a            where client i's own data pull (b_i/a = -h_i/alpha in FedDyn, else 0)
    v_i   ~  sigma_i^-2,  pull = sum v_i pull_i
    tau^2  = mean over the rounds so far of
             [sum v_i ||pull_i - pull||^2 - D sum v_i (1 - v_i) sigma_i^2] / (1 - sum v_i^2),  at least 0
    w_i    = (tau^2 p_i + lambda) / (tau^2 + D sigma_i^2 / M),  lambda such that sum w_i = 1

D counts the directions that predictions can tell apart (class means of softmax regression are removed first). tau^2 is
how far the clients' own pulls lie apart, what the noise explains being subtracted. Clients that agree (tau = 0) get the
inverse of their variance; clients without noise get p_i, and the run is the usual one bit for bit; in between, the bias
of other weights than p_i is held against the variance of the mean, of which M rounds average.

All of it is made of releases and public numbers: it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from upcycled.core.aggregator import AggregatorState, Combination, Received, weighted
from upcycled.core.errors import InputError
from upcycled.core.layout import EffectiveDirections
from upcycled.core.vectors import Real

WIDTH = 1 << 12
"""Numbers of each release that are worked on at once."""

LEAST_SPREAD = 1e-9
"""1 - sum v_i^2 below this is one client's: it says nothing about how clients differ."""


@dataclass(frozen=True)
class Precision:
    """Weigh releases by how much of them is signal; for local mechanisms whose noise is known.

    FedDyn's h and Scaffold's c are averaged by the same weights; p_i are FedDyn's own weights there. Refused for
    central mechanisms, secret sampling and ``DPSGD``, whose noise in a release nobody knows.

    >>> import upcycled as up
    >>> data = up.data.synthetic(0.5, 0.5, clients=10, seed=0)
    >>> privacy = up.privacy.ErmOutput(norm_bound=1.0, epsilon=2.0, delta=1e-4)
    >>> spec = up.RunSpec(algorithm=up.FedProx(mu=0.5), privacy=privacy, iterations=20, progress=False)
    >>> weighed, usual = (up.train(data, spec.replace(aggregation=one)) for one in ("precision", "samples"))
    >>> weighed.privacy.max_epsilon(1e-4) == usual.privacy.max_epsilon(1e-4)
    True
    """

    needs_noise_std: ClassVar[bool] = True
    is_weighted: ClassVar[bool] = True

    def start(self) -> AggregatorState:
        """No round yet."""
        return {"total": np.array(0.0), "rounds": np.array(0)}

    def combine(self, own: AggregatorState, received: Received) -> tuple[Combination | None, AggregatorState]:
        """Add the round to tau^2, and weigh by it; without noise leave it to the algorithm."""
        std = received.noise_std
        if std is None:
            raise InputError("needs the noise of every release, which nobody knows here", field="aggregation")
        noise = _noise(std.tobytes())
        if noise is None:
            return None, own
        directions = received.directions
        found = _spread(_blocks(received), noise, directions)
        if found is not None:
            own = {"total": own["total"] + found, "rounds": own["rounds"] + 1}
        tau2 = max(0.0, float(own["total"]) / max(1, int(own["rounds"])))
        return weighted(_weights(tau2, received.shares, noise, directions.dimension / received.horizon)), own


@dataclass(frozen=True)
class _Noise:
    """What follows from the noise of a cohort alone."""

    variances: Real
    v: Real
    """~ 1 / variances, summing to 1."""
    others: float
    """sum v_i (1 - v_i)"""
    explained: float
    """sum v_i (1 - v_i) sigma_i^2: what of the pulls' distances, in each direction, is noise."""


@lru_cache(maxsize=16)
def _noise(std: bytes) -> _Noise | None:
    """Return what follows from float64 std, None without noise; most runs ask for the same in every round."""
    each: Real = np.frombuffer(std)
    if not each.max() > 0:
        return None
    v, variances = inverse_variances(each), np.square(each)
    v.flags.writeable = False  # it may be handed out as weights
    others = v * (1 - v)
    return _Noise(variances, v, float(others.sum()), float(others @ variances))


def _blocks(received: Received) -> Iterable[Real]:
    """Return r_i + b_i/a in blocks of columns, so that large models stay in the cache.

    y is in all of them alike, and how far they lie apart does not depend on it.
    """
    vectors, offsets = received.release.vectors, received.offsets
    size = vectors.shape[-1]
    if size <= WIDTH or received.directions.is_softmax:  # class means are those of whole vectors
        exact = vectors.astype(np.float64)
        return (exact if offsets is None else np.add(exact, offsets, out=exact),)
    parts = (slice(first, first + WIDTH) for first in range(0, size, WIDTH))
    if offsets is None:
        return (vectors[:, here].astype(np.float64) for here in parts)
    return (np.add(vectors[:, here], offsets[:, here], dtype=np.float64) for here in parts)


def _spread(blocks: Iterable[Real], noise: _Noise, directions: EffectiveDirections) -> float | None:
    """Return how far vectors lie apart (mean squared distance), without what their noise explains; None for one client.

    They come in blocks of columns; what stood in a block is lost.
    """
    if not noise.others > LEAST_SPREAD:
        return None
    squares = 0.0
    for block in blocks:
        block -= np.add.reduce(noise.v[:, None] * block, axis=0)
        squares += float(np.add.reduce(noise.v * directions.squares(block)))
    found = (squares - directions.dimension * noise.explained) / noise.others
    # A run that overflows is told by its model.
    return found if math.isfinite(found) else None


def squared_spread(pulls: Real, std: Real, directions: EffectiveDirections) -> float | None:
    """Return the tau^2 that one round's pulls tell of, which may be negative; None for one client.

    >>> from upcycled.core.layout import Layout
    >>> line = EffectiveDirections(Layout(("w",), ((1,),), (0, 1)))
    >>> squared_spread(np.array([[0.0], [4.0]]), np.array([1.0, 1.0]), line)  # (4 - 0.5) / 0.5
    7.0
    """
    noise = _noise(std.tobytes())
    return None if noise is None else _spread([pulls.copy()], noise, directions)


def inverse_variances(std: Real) -> Real:
    """Return v_i ~ std_i^-2, summing to 1; clients without noise share all of it.

    >>> inverse_variances(np.array([1.0, 2.0])).tolist(), inverse_variances(np.array([0.0, 2.0, 0.0])).tolist()
    ([0.8, 0.2], [0.5, 0.0, 0.5])
    """
    least = std.min()
    each = np.square(least / std) if least > 0 else (std == 0).astype(np.float64)
    v: Real = each / each.sum()
    return v


def precision_weights(tau2: float, shares: Real, std: Real, dimension: float) -> Real:
    """Return w_i = (tau^2 p_i + lambda) / (tau^2 + D std_i^2), with the lambda that makes them sum to 1.

    >>> precision_weights(0.0, np.array([0.5, 0.5]), np.array([1.0, 2.0]), 1.0).tolist()
    [0.8, 0.2]
    """
    noise = _noise(std.tobytes())
    return shares if noise is None else _weights(tau2, shares, noise, dimension)


def _weights(tau2: float, shares: Real, noise: _Noise, dimension: float) -> Real:
    if tau2 == 0:
        return noise.v
    part: Real = 1 / (tau2 + dimension * noise.variances)
    own = tau2 * shares
    rest = 1 - float(np.add.reduce(own * part))
    return part * (own + rest / float(np.add.reduce(part)))
