"""Gaussian noise of the clients: how much, on which grid, and what it costs: hooks that Gaussian mechanisms share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from upcycled.core.errors import InputError
from upcycled.core.mechanism import Charge, NoiseSource, Release, Setting, Trained
from upcycled.core.sampling import Cohort
from upcycled.core.vectors import Ints, Real, Vector, grid_scale, grid_step, on_grid
from upcycled.privacy.accounting import gdp_mu
from upcycled.privacy.accounting.discrete_noise import part_of_delta
from upcycled.privacy.accounting.gaussian import ROOM
from upcycled.privacy.mechanisms.requirements import rounds_paid


@dataclass(frozen=True, eq=False)
class GaussianNoise:
    """Each client's noise std per coordinate, and the sensitivity it answers for, grid included."""

    sensitivity: Real
    noise_std: Real
    shared: Mapping[str, float] = field(default_factory=dict)
    """The noise of all, where it follows from the sizes of all."""
    draws: int | None = None
    """Numbers of real noise in one release: see :attr:`Charge.draws`."""

    def add(self, values: Real, cohort: Cohort, source: NoiseSource) -> Real:
        """Return values + N(0, noise_std^2 I) on the grid, row by row."""
        std = self.noise_std[cohort.rows]
        return on_grid(values, source.gaussian_steps(cohort.clients, values.shape[-1], grid_scale(std)), std)

    def rounded(self, values: Real, cohort: Cohort) -> Real:
        """Return public values (D,) on each client's grid."""
        std = self.noise_std[cohort.rows]
        return on_grid(np.broadcast_to(values, (std.size, values.size)), np.zeros((std.size, 1)), std)

    def release(self, trained: Trained, sent: Vector, cohort: Cohort, num_samples: Ints, noise: NoiseSource) -> Release:
        """Add each client's own noise on its grid, in float64, and only then round to float32."""
        vectors = self.add(trained.vectors.astype(np.float64), cohort, noise)
        return Release(cohort.clients, vectors.astype(np.float32), num_samples, trained.num_steps)

    def charge(self, cohort: Cohort) -> Charge:
        """One Gaussian release of each client."""
        draws = None if self.draws is None else np.full(cohort.rows.size, self.draws)
        rows = cohort.rows
        return Charge("gaussian", cohort.clients, self.sensitivity[rows], self.noise_std[rows], draws=draws)

    def release_std(self, release: Release) -> Real:
        """Return each release's noise per coordinate."""
        return self.noise_std[release.clients]

    def mean_std(self, release: Release) -> float:
        """Return sqrt(sum p_i^2 std_i^2), the noise in the mean weighted by n_i."""
        weighed = release.num_samples * self.noise_std[release.clients]
        return float(np.sqrt(np.dot(weighed, weighed)) / release.num_samples.sum())


def gaussian_noise(
    setting: Setting,
    sensitivity: Real,
    noise_std: float | None,
    epsilon: float | None,
    delta: float | None,
    per_client: bool,
) -> GaussianNoise:
    """Return the noise as given, or as each client's rounds need it for (epsilon, delta) together.

    ``sensitivity`` has one entry a client, for releases of ``setting.num_parameters`` numbers before they are rounded
    to the grid. ``per_client=False`` gives all clients the largest noise that one of them needs.
    """
    if noise_std is not None or epsilon is None or delta is None:
        return _with_grid(sensitivity, np.full(sensitivity.size, float(noise_std or 0.0)), setting)
    rounds = rounds_paid(setting)
    rest = delta_for_noise(epsilon, delta, rounds, setting)
    factor = np.sqrt(rounds) / _mu_for_rounds(epsilon, rest, setting) * (1 + ROOM)
    std, shared = settle(lambda moves: factor * moves, sensitivity, setting, per_client)
    return replace(_with_grid(sensitivity, std, setting), shared=shared)


def _mu_for_rounds(epsilon: float, delta: Real, setting: Setting) -> Real:
    """Return what charged scores leave of mu for the rounds: squares add up."""
    mu = np.asarray(gdp_mu(epsilon=epsilon, delta=delta))
    if not setting.score_squares:
        return mu
    left = mu**2 - setting.score_squares
    # Where they take nearly all of it, rounding decides what is left.
    if (left < mu**2 / 100).any():
        raise InputError(
            f"is {epsilon:g}, of which the charged scores leave less than a hundredth: give them more noise_std, or "
            "score less often",
            field="epsilon",
        )
    return np.sqrt(left)


def delta_for_noise(epsilon: float, delta: float, vectors: ArrayLike, setting: Setting) -> Real:
    """Return what so many noisy vectors leave of delta for the noise itself: all of it where noise is simulated."""
    if setting.draws is None:
        return np.array(delta)
    draws = np.asarray(vectors, dtype=np.float64) * setting.draws + setting.score_draws
    return delta * (1 - part_of_delta(epsilon=epsilon, delta=delta, draws=draws))


def settle(
    std_of: Callable[[Real], Real], sensitivity: Real, setting: Setting, per_client: bool
) -> tuple[Real, Mapping[str, float]]:
    """Return std = std_of(sensitivity + g sqrt(D)), where the grid's g itself depends on std; and what all share.

    Without ``per_client`` that is the largest need of anybody: a client that plans for itself is told it.
    """
    size = setting.num_parameters
    told = setting.facts.shared
    if not per_client and "noise_std" in told:
        return np.full_like(sensitivity, told["noise_std"]), told
    std = np.zeros_like(sensitivity)
    for _ in range(100):
        needed = std_of(sensitivity + grid_step(std) * np.sqrt(size))
        if not per_client:
            needed = np.full_like(needed, needed.max())
        if not np.isfinite(needed).all():
            break
        if np.array_equal(grid_step(needed), grid_step(std)):
            return needed, {} if per_client else {"noise_std": float(needed[0])}
        std = needed
    raise InputError(
        f"is too small for a model of {size} parameters: rounding to the noise's grid alone would cost more",
        field="epsilon",
    )


def _with_grid(sensitivity: Real, std: Real, setting: Setting) -> GaussianNoise:
    return GaussianNoise(sensitivity + grid_step(std) * np.sqrt(setting.num_parameters), std, draws=setting.draws)
