"""Central privacy for whole clients (McMahan et al. 2018, arXiv:1710.06963): noise on the sum of clipped updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from upcycled.core.errors import NOT_NEGATIVE, POSITIVE, InputError, check_fields
from upcycled.core.mechanism import Charge, Fitted, NoiseSource, Promise, Release, Setting, Trained
from upcycled.core.randomness import Purpose
from upcycled.core.sampling import Cohort
from upcycled.core.vectors import Ints, Real, Vector, grid_scale, grid_step
from upcycled.privacy.accounting import gdp_mu, sampled_gaussian_noise_multiplier
from upcycled.privacy.accounting.gaussian import ROOM
from upcycled.privacy.mechanisms.clipping import BELOW, INSIDE, NoisyCount, clip
from upcycled.privacy.mechanisms.gaussian_noise import delta_for_noise, settle
from upcycled.privacy.mechanisms.requirements import CLIP_NORM, DELTA, check_delta, check_noise


@dataclass(frozen=True)
class CentralDPFedAvg:
    """A trusted server publishes w + (sum of clipped updates + noise) / m, and nothing else of the clients.

    Guarantee: (epsilon, delta)-DP for one replaced **client** (all of its records), against whoever sees the
    aggregates only; the server is trusted with the clipped updates. Clients weigh the same (1/m with m the expected
    cohort, a public number), never by their n_i. One client moves the sum by 2 clip_norm; noise_multiplier is std
    over clip_norm.

    Needs an algorithm whose server step uses the aggregate alone: FedAvg, FedAvgM, FedProx, FedYogi, FedAdam; the
    memories of Scaffold and FedDyn, FedNova's K_i and pFedMe's personal models are refused. ``secret_sampling=True``
    claims amplification: it needs Poisson sampling with participation below 1 and cohorts (and the history's list of
    them) that stay secret; each round is then charged to every client at its rate, and empty rounds are noise alone.

    Give ``noise_multiplier``, or ``epsilon`` and ``delta`` (below 1/N, with a warning above 1/(10 N)): one noise for
    all, calibrated to the busiest client.

    Args:
        clip_norm: the norm that an update is scaled down to.
        noise_multiplier: the noise's standard deviation over the clip norm; or
        epsilon: what each client may spend in all, and
        delta: the delta that goes with it.
        secret_sampling: whether the epsilon relies on secret Poisson draws of the clients.
        quantile: the part of the clients whose updates are to lie below the bound; it then follows a noisy count of
            those that do, which is charged (see :mod:`upcycled.privacy.mechanisms.clipping`). None keeps the
            bound where it is.
        adapt_rate: how fast it follows.
        count_share: the count's share of what a round costs; the updates have the rest.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> privacy = up.privacy.CentralDPFedAvg(clip_norm=0.1, epsilon=2.0, delta=1e-4)
    >>> run = up.train(data, algorithm=up.FedAvg(), privacy=privacy, iterations=2, progress=False)
    >>> round(run.privacy.max_epsilon(1e-4), 6)
    2.0
    """

    clip_norm: Annotated[float, CLIP_NORM]
    noise_multiplier: Annotated[float, NOT_NEGATIVE] | None = None
    epsilon: Annotated[float, POSITIVE] | None = None
    delta: Annotated[float, DELTA] | None = None
    secret_sampling: bool = False
    quantile: Annotated[float, INSIDE] | None = None
    adapt_rate: Annotated[float, POSITIVE] = 0.2
    count_share: Annotated[float, INSIDE] = 0.05

    name: ClassVar[str] = "central_dp_fedavg"

    def __post_init__(self) -> None:
        check_fields(self)
        check_noise("CentralDPFedAvg", "noise_multiplier", self.noise_multiplier, self.epsilon, self.delta)

    def fit(self, setting: Setting) -> Fitted:
        """Check the table of needs, and calibrate."""
        if setting.remembers or setting.is_personal or setting.uses_releases:
            raise InputError(
                f"CentralDPFedAvg covers the noisy aggregate only, but {setting.algorithm} uses each client's own "
                "release: use FedAvg, FedAvgM, FedProx, FedYogi or FedAdam"
            )
        sampler, clients, size = setting.participation.sampler, setting.facts.num_clients, setting.num_parameters
        if self.secret_sampling and (sampler.name != "poisson" or sampler.fraction >= 1):
            raise InputError(
                f"secret_sampling needs sampling='poisson' with participation < 1, but sampling is "
                f"{sampler.name!r} and participation {sampler.fraction:g}: nothing is amplified by other draws"
            )
        check_delta(self.delta, np.broadcast_to(1, clients), "client")
        q = float(sampler.fraction)
        # A fixed denominator: under Poisson draws q N, whatever cohort comes.
        expected = q * clients if sampler.name == "poisson" else float(setting.participation.expected(clients))
        shared: Mapping[str, float]
        moves = np.array([self.clip_norm * (1.0 if self.secret_sampling else 2.0)])
        # What a noisy count costs is made up for by the updates' noise: together they cost what was asked for.
        counted = self.quantile is not None
        louder = float(1 / np.sqrt(1 - self.count_share)) if counted else 1.0
        paid = replace(setting, num_parameters=size + 1) if counted else setting
        if self.noise_multiplier is not None or self.epsilon is None or self.delta is None:
            std, shared = np.array([float(self.noise_multiplier or 0.0) * self.clip_norm * louder]), {}
        elif self.secret_sampling:
            rest = delta_for_noise(self.epsilon, self.delta, setting.data_rounds, paid)
            multiplier = sampled_gaussian_noise_multiplier(
                q=q, epsilon=self.epsilon, steps=setting.data_rounds, delta=float(rest)
            )
            std, shared = settle(lambda moved: multiplier * louder * moved, moves, setting, per_client=False)
        else:
            rounds = max(1, int(setting.rounds.max()))
            rest = delta_for_noise(self.epsilon, self.delta, rounds, paid)
            factor = np.sqrt(rounds) / gdp_mu(epsilon=self.epsilon, delta=float(rest)) * (1 + ROOM)
            std, shared = settle(lambda moved: factor * louder * moved, moves, setting, per_client=False)
        moves = moves + grid_step(std) * np.sqrt(size)
        noise = CentralNoise(
            float(self.clip_norm),
            clients,
            expected,
            float(moves[0]) * louder,
            float(std[0]),
            q,
            self.secret_sampling,
            paid.draws,
        )
        fitted = Fitted(
            name=self.name,
            promise=self._promise(expected),
            release=noise.release,
            aggregate=noise.aggregate,
            charge=noise.charge,
            mean_noise_std=noise.mean_std,
            is_central=True,
            draws_secretly=self.secret_sampling,
            shared=shared,
        )
        if self.quantile is None:
            return fitted
        # (moves / std)^2 is 1 - share of all; a bit moves the count by 1, or by 1/2 from none.
        ratio = float(moves[0] / std[0]) if std[0] > 0 else np.inf
        share = self.count_share / (1 - self.count_share)
        count_std = (0.5 if self.secret_sampling else 1.0) / (ratio * float(np.sqrt(share)))
        rule = (float(self.quantile), float(self.adapt_rate), count_std, expected, self.secret_sampling)
        return replace(fitted, adaptive=AdaptiveCentral(noise, NoisyCount(*rule)))

    def _promise(self, expected: float) -> Promise:
        secret = ("cohorts, their sizes and the history's lists of clients stay secret",)
        what = f"the sum of updates clipped to norm {self.clip_norm:g} with Gaussian noise, over {expected:g}"
        follows: tuple[str, ...] = ()
        if self.quantile is not None:
            what += ", and a noisy count of those below the bound"
            follows = (f"the bound begins at {self.clip_norm:g} and follows the noisy counts alone",)
        return Promise(
            what,
            ("equal public weights, a fixed denominator", "server steps get the noisy aggregate alone", *follows),
            ("the server keeps the clients' updates to itself", *(secret if self.secret_sampling else ())),
            unit="client",
            sees="aggregates",
            sampling_is_secret=self.secret_sampling,
            delta=self.delta,
        )


@dataclass(frozen=True)
class CentralNoise:
    """The clipped sum and its noise."""

    clip_norm: float
    num_clients: int
    expected: float
    """m, the denominator."""
    sensitivity: float
    noise_std: float
    """Of the sum."""
    rate: float
    is_secret: bool
    """Whether nobody learns who took part: everybody is charged, at the rate."""
    draws: int | None
    """Numbers of real noise in one round: see :attr:`Charge.draws`."""
    scale: float = 1.0
    """Of an adaptive bound: updates are divided by it, and their noisy sum is multiplied again."""

    def release(self, trained: Trained, sent: Vector, cohort: Cohort, num_samples: Ints, noise: NoiseSource) -> Release:
        """Send the model received plus the clipped update to the trusted server."""
        start = sent.astype(np.float64)
        vectors = start + self.scale * self.clipped(trained.vectors, start)
        return Release(cohort.clients, vectors, num_samples, trained.num_steps)

    def aggregate(self, release: Release, sent: Vector, noise: NoiseSource) -> Vector:
        """Return w + (sum of clipped updates + noise) / m, the sum on the grid of its noise.

        The server clips again: the bound is made true, not trusted. Each update is rounded to the grid by itself, so
        that their sum is exact.
        """
        start = sent.astype(np.float64)
        updates = self.clipped(release.vectors, start)
        if self.noise_std == 0:
            total = updates.sum(axis=0)
        else:
            std, server = np.array([self.noise_std]), np.zeros(1, dtype=np.int64)
            step = float(grid_step(std)[0])
            drawn = noise.gaussian_steps(server, sent.size, grid_scale(std), Purpose.CENTRAL)[0]
            total = step * (np.rint(updates / step).sum(axis=0) + drawn)
        mean: Vector = (start + self.scale * (total / self.expected)).astype(np.float32)
        return mean

    def clipped(self, vectors: Vector, start: Vector) -> Real:
        """Return updates over the scale, clipped to the first bound."""
        return clip((vectors - start) / self.scale, self.clip_norm)

    def charge(self, cohort: Cohort) -> Charge:
        """A Gaussian release of the cohort, or a sampled one of everybody."""
        who = np.arange(self.num_clients) if self.is_secret else cohort.clients
        moves, std = np.full(who.size, self.sensitivity), np.full(who.size, self.noise_std)
        draws = None if self.draws is None else np.full(who.size, self.draws)
        if not self.is_secret:
            return Charge("gaussian", who, moves, std, draws=draws)
        rate, once = np.full(who.size, self.rate), np.ones(who.size, dtype=np.int64)
        return Charge("sampled", who, moves, std, sampling_rate=rate, steps=once, draws=draws)

    def mean_std(self, release: Release) -> float:
        """noise_std / m, times the scale."""
        return self.scale * (self.noise_std / self.expected)


@dataclass(frozen=True)
class AdaptiveCentral:
    """A clipped sum whose bound follows noisy counts."""

    noise: CentralNoise
    count: NoisyCount

    def at(self, fitted: Fitted, scale: float) -> Fitted:
        """Return the mechanism of a round at this scale: its charge is the same."""
        now = replace(self.noise, scale=scale)
        return replace(fitted, release=now.release, aggregate=now.aggregate, mean_noise_std=now.mean_std)

    def after(self, scale: float, release: Release, sent: Vector, noise: NoiseSource) -> float:
        """Return the next round's scale, from the noisy count alone: it is covered by the round's charge."""
        updates = replace(self.noise, scale=scale).clipped(release.vectors, sent.astype(np.float64))
        norms = np.sqrt(np.einsum("cd,cd->c", updates, updates))
        is_below = norms < self.noise.clip_norm * BELOW
        return self.count.next_scale(scale, self.count.fraction(is_below, sent.size, noise))
