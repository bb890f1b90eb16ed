"""Why what objective perturbation releases is pure (delta = 0), although floating point made it.

**What is exact.** With n of density ~ exp(-alpha ||n||) in exact arithmetic, the minimiser x of F(x) + a/2 ||x -
w||^2 + <b + n, x> has a density p_D(x) for data D, and replacing a record changes it by a factor e^eps at most, eps
being what ``accounting/objective.py`` derives for the loss. x is never computed. Let y = fold(x), of which below.

**What is computed.** From the same coins: a tilt, a solver's last point, its fold y'. If ||y' - y|| <= gamma/a *for
every outcome of the coins and every data set*, then y' is h_D(x) with ||h_D(x) - y|| <= gamma/a, for D and likewise
for its neighbour D', and so for every x

    ||rint(h_D(x)/g) - rint(h_D'(x)/g)||_2 <= 2 gamma/(a g) + sqrt(D),

since rint moves two numbers apart by 1 at most (under a root D is the number of parameters). The integers' L1
distance is sqrt(D) times that at most, so integers Z with P(Z_j = k) ~ exp(-|k|/t), independent, make them alike up to
e^eps_cover:

    eps_cover = sqrt(D) (2 gamma/(a g) + sqrt(D)) / t = 2 (gamma + a g sqrt(D)/2) sqrt(D) / (a T),    T = t g,

and P_D(rint(y'/g) + Z in A) = int p_D(x) P(rint(h_D(x)/g) + Z in A) dx <= e^(eps + eps_cover) times the same for D'.
T = sqrt(D)/cover_alpha gives 2 cover_alpha (gamma + a g sqrt(D)/2)/a, as from noise of density ~ exp(-cover_alpha
||.||), which floating point cannot give. Sums beyond 2^53 are rounded, which is a function of the exact sum.

**Every outcome.** A solver in float64 cannot keep a promise for tilts of any length, and to leave out long ones, or to
draw them anew, is not pure: a length that is possible for x under D may then be impossible under D'. So lengths that
hardly ever happen are made to matter no longer: fold(x) is x within a radius rho of w, w + (x - w)(2 rho - r)/r at a
distance r from rho to 2 rho, and w beyond. It is a function of x alone, so it costs nothing; its slope is 1 at most
along a ray and across, so it brings no two points further apart. And ||x - w|| >= (||n|| - ||b|| - L)/a, so that a tilt
longer than 2 a rho + ||b|| + L gives w whatever its length, and may be shortened to a little more than that.

**gamma.** Half of it is for the solver's last step, half for rounding: its steps (``rounding.py``; the start counts as
one more), the tilt's sampling error (``tilt_noise.py``), its sum with b, and the fold's own arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from upcycled.core.mechanism import NoiseSource, Promise, Release, Setting, Trained
from upcycled.core.sampler import Cohort
from upcycled.core.solvers import Problem
from upcycled.core.streams import Purpose
from upcycled.core.vectors import Ints, Real, Vector, grid_step, on_grid
from upcycled.privacy.mechanisms.rounding import UNIT, LossConstants, check_covered, norms
from upcycled.privacy.tilt_noise import row_norms, sum_error, tilt_error
from upcycled.support.formats import general

LEAST_GAMMA = 1e-10
"""The gradient norm asked of the solver, where float64 can reach it."""

COVER_EPSILON = 1e-3
"""What covering the solver's remaining error adds to a round, unless ``cover_alpha`` says otherwise."""

_TAIL = 50.0
"""Tilts that the fold can touch have a probability of e^-50 at most: they are lost for learning, not for privacy."""


def grid_length(rate: float, size: int) -> float:
    """Return g sqrt(D): how far apart rounding to the cover's grid may bring two vectors."""
    return float(grid_step(np.array([1 / rate]))[0] * np.sqrt(size))


@dataclass(frozen=True, eq=False)
class Cover:
    """What leaves the clients in the place of their solvers' last points, and how far those may be off."""

    about: LossConstants
    a: float
    size: int
    """D, all parameters."""
    sizes: Ints
    alpha: Real
    """The rate of each client's noise."""
    gamma: float
    """All of it; the solver has one half, rounding the other."""
    rate: float
    """cover_alpha."""

    def likely_norm(self, rows: Ints) -> Real:
        """Return norms that the tilts exceed with probability e^-50 at most: a Gamma variable's tail."""
        found: Real = (self.size + np.sqrt(2 * self.size * _TAIL) + _TAIL) / self.alpha[rows]
        return found

    def linear_room(self, rows: Ints) -> Real:
        """Return the norm up to which the public b is expected: Scaffold's and FedDyn's hold a round's tilt or two."""
        return 10 + 4 * self.about.lipschitz + 2 * self.likely_norm(rows)

    def radius(self, rows: Ints) -> Real:
        """Return rho: with b as expected, only an unlikely tilt leads further from w than that."""
        found: Real = (self.about.lipschitz + self.linear_room(rows) + self.likely_norm(rows)) / self.a
        return found

    def longest(self, rows: Ints, linear: Real) -> Real:
        """Return the length to which tilts may be shortened: also what they then give is folded to w.

        ``linear`` are the norms of b. The solver is off by gamma/a at most, and L/a more leaves room for rounding.
        """
        least = 2 * self.a * self.radius(rows) + linear + self.about.lipschitz
        found: Real = least + self.about.lipschitz + 2 * self.gamma
        return found

    def rounding(self, rows: Ints, model_norm: float, linear: Real) -> Real:
        """Return a times the distance between y' and y that is due to rounding, at most, for every tilt."""
        about, a = self.about, self.a
        lr, pull = 1 / (about.smoothness + a), linear + self.longest(rows, linear)
        reach = (pull + 2 * about.lipschitz) / a
        solver = about.step_error(self.sizes[rows], model_norm, pull, a, lr, reach) / (lr * a)
        tilt = (tilt_error(self.size) + 2 * UNIT) * pull
        # The distance from w errs by half its sum's error and 2u, its factor by 3u more, the sum with w by u of all.
        far = 2 * self.radius(rows)
        fold = 2 * UNIT * a * ((sum_error(self.size) + 10) * far + 2 * (model_norm + far))
        found: Real = solver + tilt + fold
        return found

    def room(self, problem: Problem, sent: Vector, cohort: Cohort) -> Real:
        """Return ``longest`` for a round; stop the run if its public vectors are too large for float64."""
        rows = cohort.rows
        size, linear = float(np.linalg.norm(sent.astype(np.float64))), norms(problem.b, rows.size)
        error = self.rounding(rows, size, linear)
        # A b beyond its room would be folded away, which is private and useless.
        error = np.where(linear > self.linear_room(rows), np.inf, error)
        check_covered(error, np.full(rows.size, self.gamma / 2), size)
        return self.longest(rows, linear)

    def release(self, trained: Trained, sent: Vector, cohort: Cohort, num_samples: Ints, noise: NoiseSource) -> Release:
        """Cover the solver's remaining error, on the grid, in float64, and only then round to float32."""
        vectors = self.applied(trained.vectors.astype(np.float64), sent, cohort, noise)
        return Release(cohort.clients, vectors.astype(np.float32), num_samples, trained.num_steps)

    def mean_noise_std(self, release: Release) -> float:
        """Only the cover's, which is tiny: the noise in the objective has no known std in the minimiser."""
        shares = release.num_samples / release.num_samples.sum()
        return float(np.sqrt((shares**2).sum()) * self.noise_std)

    def promise(self, norm_bound: float, steps: int, delta: float | None) -> Promise:
        """Return what is released and what its proof needs."""
        reached = general(self.gamma, 3)
        return Promise(
            "the minimiser of a randomly tilted local objective, with a little noise over the solver's error",
            (
                self.about.loss.name,
                f"features projected to norm {norm_bound:g}",
                f"quadratic term a = {self.a:g} > 0",
                f"a gradient norm of {reached} at most, rounding included, in {steps} steps for all data and tilts",
                "no stragglers",
            ),
            ("norm_bound and prox_mu were not chosen by looking at private data",),
            delta=delta,
        )

    def applied(self, points: Real, sent: Vector, cohort: Cohort, noise: NoiseSource) -> Real:
        """Return g (rint(fold(points)/g) + Z), Z discrete Laplace of scale T/g = sqrt(D)/(cover_alpha g)."""
        rows = cohort.rows.size
        std = np.full(rows, 1 / self.rate)
        scale = np.ceil(np.sqrt(self.size) / (self.rate * grid_step(std)))
        steps = noise.laplace_steps(cohort.clients, self.size, scale, Purpose.COVER)
        return on_grid(fold(points, sent.astype(np.float64), self.radius(cohort.rows)), steps, std)

    @property
    def noise_std(self) -> float:
        """The std of one number's noise: sqrt(2) T."""
        return float(np.sqrt(2 * self.size) / self.rate)


def reachable_gamma(setting: Setting, about: LossConstants, a: float, alpha: Real) -> float:
    """Return a gamma of which rounding takes less than half, for models of norm 100 and some rounds' noise in b."""
    cover = Cover(about, a, setting.num_parameters, setting.sizes, alpha, LEAST_GAMMA, rate=1.0)
    everyone = np.arange(alpha.size)
    return max(LEAST_GAMMA, 2 * float(cover.rounding(everyone, 100.0, cover.linear_room(everyone)).max()))


def fold(points: Real, centre: Real, radius: Real) -> Real:
    """Return points (clients, D) within ``radius`` of the centre as they are, and those beyond on their way back.

    >>> fold(np.array([[0.5, 0], [3.0, 0], [5.0, 0]]), np.zeros(2), np.full(3, 2.0)).tolist()
    [[0.5, 0.0], [1.0, 0.0], [0.0, 0.0]]
    """
    away = points - centre
    distance = row_norms(away)
    kept = np.maximum(2 * radius - distance, 0) / np.maximum(distance, radius)
    return np.where((distance <= radius)[:, None], points, centre + away * kept[:, None])
