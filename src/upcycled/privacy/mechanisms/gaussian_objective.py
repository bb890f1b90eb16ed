"""Objective perturbation with Gaussian noise: much less of it than pure privacy needs, for an epsilon at delta > 0.

w_i = argmin F_i(x) + a/2 ||x - w||^2 + <b + n, x>, n ~ N(0, noise_std^2 I) over all parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

import numpy as np

from upcycled.core.errors import NOT_NEGATIVE, POSITIVE, InputError, check_fields
from upcycled.core.generalised_linear import GeneralisedLinear
from upcycled.core.mechanism import Charge, Fitted, NoiseSource, Release, Setting, bring
from upcycled.core.sampler import Cohort
from upcycled.core.solvers import Problem, ShiftedMinimiser
from upcycled.core.streams import Purpose
from upcycled.core.vectors import Real, Vector
from upcycled.privacy.accounting.tilted_renyi import tilted_noise_std
from upcycled.privacy.mechanisms.objective_cover import (
    COVER_EPSILON,
    Cover,
    grid_length,
    likely_normal_norm,
    reachable_gamma,
)
from upcycled.privacy.mechanisms.projection import project
from upcycled.privacy.mechanisms.requirements import (
    DELTA,
    check_convex,
    check_delta,
    check_no_stragglers,
    check_noise,
    check_own_solver,
    check_penalty,
    rounds_paid,
)
from upcycled.privacy.mechanisms.rounding import constants_of
from upcycled.privacy.tilt_noise import row_norms


@dataclass(frozen=True)
class GaussianObjective:
    """Perturb the local objective by a Gaussian linear term over all parameters, and release its minimiser.

    Guarantee: (epsilon, delta)-DP for one replaced record against whoever sees every release. A round's Renyi
    divergence of order alpha is alpha c/2, c = (2 L/(n noise_std))^2, as if the gradient itself had been released,
    where the record's curvature kappa = S/(n a) is small beside c, and a little more elsewhere;
    ``accounting/tilted_renyi.py`` has the bound and its proof. Rounds add up, and the best order gives epsilon.
    Solver, rounding and cover are those of :class:`ObjectivePerturbation`; the cover's pure epsilon joins the
    divergence.

    Needs what that needs (a > 0, features projected to ``norm_bound``, no stragglers, its own solver, not pFedMe), and
    cross-entropy or one logit's logistic loss: Huber's is both steep and curved at its threshold. No budget: epsilon is
    for a schedule fixed in advance; an account of kind ``"mixed"`` takes it.

    Args:
        noise_std: of the noise in the objective, per coordinate; or
        norm_bound: R, the norm that features are projected to.
        prox_mu: what is added to the algorithm's own a.
        epsilon: what each client may spend in all, and
        delta: the delta that goes with it.
        gamma: the gradient norm to be reached.
        cover_alpha: the rate of the noise over what the solver leaves.
        per_client: whether each client gets the least noise that serves it, or all get the same.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=200, seed=0)
    >>> privacy = up.privacy.GaussianObjective(norm_bound=1.0, epsilon=2.0, delta=1e-4)
    >>> run = up.train(data, algorithm=up.FedProx(mu=0.5), privacy=privacy, iterations=2, progress=False)
    >>> round(run.privacy.max_epsilon(1e-4), 6)
    2.0
    """

    noise_std: Annotated[float, POSITIVE] | None = None
    norm_bound: Annotated[float, POSITIVE] | None = None
    prox_mu: Annotated[float, NOT_NEGATIVE] = 0.0
    epsilon: Annotated[float, POSITIVE] | None = None
    delta: Annotated[float, DELTA] | None = None
    gamma: Annotated[float, POSITIVE] | None = None
    cover_alpha: Annotated[float, POSITIVE] | None = None
    per_client: bool = True

    name: ClassVar[str] = "gaussian_objective"

    def __post_init__(self) -> None:
        check_fields(self)
        me = "GaussianObjective"
        check_noise(me, "noise_std", self.noise_std, self.epsilon, self.delta)
        if self.norm_bound is None:
            raise InputError(f"{me} has no norm_bound, but features must be projected to one, such as norm_bound=1.0")

    def fit(self, setting: Setting) -> Fitted:
        """Check the table of needs, and calibrate."""
        me = "GaussianObjective"
        loss = check_convex(me, setting)
        if not loss.steep_is_flat:
            raise InputError(f"{me} is for 'cross_entropy' and 'binary_cross_entropy': use ErmOutput for {loss.name}")
        check_own_solver(me, setting)
        check_no_stragglers(me, setting)
        check_delta(self.delta, setting.sizes)
        assert self.norm_bound is not None  # as checked when it was made
        a, about = check_penalty(me, setting, self.prox_mu), constants_of(setting, loss, self.norm_bound)
        size = setting.num_parameters
        moves: Real = np.asarray(2 * about.lipschitz / setting.sizes, dtype=np.float64)
        curved: Real = np.asarray(about.smoothness / (setting.sizes * a), dtype=np.float64)
        gamma = setting.shared.get("gamma", self.gamma)
        if gamma is None:
            # The cover costs next to nothing of what the noise does, so that a first calibration is close enough.
            first = self._stds(setting, loss, moves, curved, COVER_EPSILON)
            gamma = reachable_gamma(setting, about, a, likely_normal_norm(first, size))
        rate = setting.shared.get("cover_alpha", self.cover_alpha)
        if rate is None:
            rate = COVER_EPSILON * a / (2 * gamma)
        # Rounding to the cover's grid is one more error that it covers.
        spent = 2 * rate * (gamma + a * grid_length(rate, size) / 2) / a
        std = self._stds(setting, loss, moves, curved, spent)
        made = ShiftedMinimiser(about.lipschitz, about.smoothness, a, gamma / 2)
        cover = Cover(about, a, size, setting.sizes, likely_normal_norm(std, size), float(gamma), float(rate))
        work = NormalTilt(self.prox_mu, cover, std, moves, curved, loss.rank, float(spent))
        alike = {} if self.per_client else {"noise_std": float(std[0])}
        return Fitted(
            name=self.name,
            promise=cover.promise(
                "a local objective tilted by Gaussian noise", self.norm_bound, made.steps, self.delta
            ),
            norm_bound=float(self.norm_bound),
            prepare=partial(project, norm_bound=self.norm_bound),
            solver=partial(bring, made),
            problem=work.problem,
            release=cover.release,
            charge=work.charge,
            mean_noise_std=cover.mean_noise_std,
            release_noise_std=work.release_noise_std,
            shared={"gamma": float(gamma), "cover_alpha": float(rate), **alike},
            prox_mu=self.prox_mu,
        )

    def _stds(self, setting: Setting, loss: GeneralisedLinear, moves: Real, curved: Real, cover: float) -> Real:
        """Return each client's noise, as given or as epsilon needs it."""
        if self.epsilon is None or self.delta is None:
            return np.full(setting.sizes.size, float(self.noise_std or 0.0))
        if not self.per_client and "noise_std" in setting.shared:
            return np.full(setting.sizes.size, setting.shared["noise_std"])
        rounds, found = rounds_paid(setting), np.zeros(setting.sizes.size)
        asked = np.stack([setting.sizes, rounds], axis=1)
        for n, count in np.unique(asked, axis=0).tolist():
            mine = (setting.sizes == n) & (rounds == count)
            one = int(np.argmax(mine))
            found[mine] = tilted_noise_std(
                moves=float(moves[one]), curvature=float(curved[one]), rank=loss.rank, cover=cover, rounds=count,
                epsilon=self.epsilon, delta=self.delta,
            )  # fmt: skip
        return found if self.per_client else np.full_like(found, found.max())


@dataclass(frozen=True, eq=False)
class NormalTilt:
    """The noise of each client, inside its objective and over its solution, and what it costs."""

    prox_mu: float
    cover: Cover
    noise_std: Real
    moves: Real
    """2 L/n: how far one record moves the gradient."""
    curvature: Real
    """kappa."""
    rank: int
    cover_epsilon: float

    def problem(self, problem: Problem, sent: Vector, cohort: Cohort, noise: NoiseSource) -> Problem:
        """Add prox_mu to a and the noise to b."""
        longest = self.cover.room(problem, sent, cohort)
        tilt = noise.normals(cohort.clients, sent.size, Purpose.OBJECTIVE) * self.noise_std[cohort.rows, None]
        # Beyond that length the minimiser is folded to w whatever the tilt: see ``objective_cover``.
        tilt *= np.minimum(1.0, longest / row_norms(tilt))[:, None]
        return replace(problem, a=problem.a + self.prox_mu, b=tilt if problem.b is None else problem.b + tilt)

    def charge(self, cohort: Cohort) -> Charge:
        """A release with noise inside its objective."""
        rows = cohort.rows
        alike = np.ones(rows.size)
        return Charge(
            "tilted",
            cohort.clients,
            self.moves[rows],
            self.noise_std[rows],
            epsilon=self.cover_epsilon * alike,
            curvature=self.curvature[rows],
            rank=np.full(rows.size, self.rank),
        )

    def release_noise_std(self, release: Release) -> Real:
        """Return noise_std/a, a bound: a tilt n moves the minimiser by ||n||/a at most."""
        std: Real = self.noise_std[release.clients] / self.cover.a
        return std
