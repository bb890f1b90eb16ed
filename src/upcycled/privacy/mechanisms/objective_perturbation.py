"""Objective perturbation (Chaudhuri et al. 2011; the paper's Theorem "privacy1"): noise inside the local objective.

w_i = argmin F_i(x) + a/2 ||x - w||^2 + <b + n, x>, the density of n proportional to exp(-alpha ||n||).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np

from upcycled.core.errors import FRACTION, NOT_NEGATIVE, POSITIVE, InputError, check_fields
from upcycled.core.mechanism import Charge, Fitted, NoiseSource, Release, Setting, bring
from upcycled.core.sampler import Cohort
from upcycled.core.solvers import Problem, ShiftedMinimiser
from upcycled.core.vectors import Real, Vector
from upcycled.privacy.accounting import (
    pure_round_epsilon,
)
from upcycled.privacy.accounting.objective import loss_alpha, loss_round_epsilon
from upcycled.privacy.ledger.paper_claim import PaperTilt
from upcycled.privacy.mechanisms.objective_cover import (
    COVER_EPSILON,
    LEAST_GAMMA,
    Cover,
    grid_length,
    reachable_gamma,
)
from upcycled.privacy.mechanisms.paper_mode import paper_objective, tilted
from upcycled.privacy.mechanisms.projection import project
from upcycled.privacy.mechanisms.requirements import (
    check_convex,
    check_delta,
    check_no_stragglers,
    check_noise,
    check_own_solver,
    check_penalty,
    rounds_paid,
)
from upcycled.privacy.mechanisms.rounding import LossConstants, constants_of


@dataclass(frozen=True)
class ObjectivePerturbation:
    """Perturb the local objective by a random linear term over all D parameters, and release its minimiser.

    Guarantee: epsilon-DP with delta = 0 a round for one replaced record, against whoever sees every release: 2 alpha
    L/n + r ln(1 + R~^2/(k n a)) + 2 cover_alpha gamma/a, without the paper's condition on u2; r = K-1 and k = K for
    softmax regression of K classes, 1 and 4 for one logit, m and m for Huber's loss on m outputs. The solver reaches
    gradient norm ``gamma`` (chosen if left out) for every data set and every tilt, in a number of steps fixed in
    advance; discrete Laplace noise of scale sqrt(D)/cover_alpha on a grid covers what remains, the inexactness of all
    floating point included, so that delta = 0 holds for what the code does (``objective_cover.py`` has the proof; it
    takes the words of the cipher behind real noise as random). Rounds add up; with delta > 0 they compose optimally,
    for a schedule fixed in advance.

    Needs a linear model with cross-entropy, one logit's logistic loss or Huber's, features projected to ``norm_bound``
    (done here), a > 0 (from FedProx, FedDyn, or ``prox_mu``), no stragglers; brings its own solver; not for pFedMe.
    Give ``alpha`` (the larger, the less noise), or ``epsilon`` (and ``delta``, zero if left out): alpha is then
    calibrated to each client's n_i and rounds, or to the smallest of them for all with ``per_client=False``. delta >
    1/(10 n) gets a warning.

    ``paper_mode=True`` is what the paper runs on an MLP and an LSTM, where its theorem says nothing: the algorithm's
    own SGD with the noise in its linear term. It is not private and no epsilon is claimed: the ledger says infinity.

    Args:
        alpha: the rate of the noise; or
        norm_bound: R, the norm that features are projected to.
        prox_mu: what is added to the algorithm's own a.
        epsilon: what each client may spend in all.
        delta: the delta that goes with it; 0 adds the rounds up.
        gamma: the gradient norm to be reached.
        cover_alpha: the rate of the noise over what the solver leaves.
        per_client: whether each client gets the least noise that serves it, or all get the same.
        paper_mode: whether to run what the paper runs, with no claim at all.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> privacy = up.privacy.ObjectivePerturbation(norm_bound=1.0, epsilon=8.0)
    >>> run = up.train(data, algorithm=up.FedProx(mu=0.5), privacy=privacy, iterations=2, progress=False)
    >>> round(run.privacy.max_epsilon(0.0), 6)
    8.0
    """

    alpha: Annotated[float, POSITIVE] | None = None
    norm_bound: Annotated[float, POSITIVE] | None = None
    prox_mu: Annotated[float, NOT_NEGATIVE] = 0.0
    epsilon: Annotated[float, POSITIVE] | None = None
    delta: Annotated[float, FRACTION] | None = None
    gamma: Annotated[float, POSITIVE] | None = None
    cover_alpha: Annotated[float, POSITIVE] | None = None
    per_client: bool = True
    paper_mode: bool = False

    name: ClassVar[str] = "objective_perturbation"

    def __post_init__(self) -> None:
        check_fields(self)
        me = "ObjectivePerturbation"
        check_noise(me, "alpha", self.alpha, self.epsilon, self.delta, pure=True)
        if self.paper_mode and self.alpha is None:
            raise InputError(f"{me} in paper mode claims no epsilon, so it cannot meet one: it must have alpha=")
        if not self.paper_mode and self.norm_bound is None:
            raise InputError(f"{me} has no norm_bound, but features must be projected to one, such as norm_bound=1.0")

    def fit(self, setting: Setting) -> Fitted:
        """Check the table of needs, and calibrate."""
        me, clients = "ObjectivePerturbation", setting.sizes.size
        if self.paper_mode and setting.is_personal:
            raise InputError(f"{me} is not for pFedMe, whose local solver has another objective")
        if self.paper_mode and self.alpha is not None:
            a = float(setting.penalty + self.prox_mu)
            return paper_objective(self.name, np.full(clients, float(self.alpha)), self.prox_mu, a)
        loss = check_convex(me, setting)
        check_own_solver(me, setting)
        check_no_stragglers(me, setting)
        check_delta(self.delta, setting.sizes)
        assert self.norm_bound is not None  # as checked when it was made
        a, about = check_penalty(me, setting, self.prox_mu), constants_of(setting, loss, self.norm_bound)
        cost = self._cover_cost(int(rounds_paid(setting).max()))
        # A client that knows its own size only is told what follows from the sizes and rounds of all.
        told = setting.shared
        gamma = told.get("gamma", self.gamma)
        cover = told.get("cover_alpha", self.cover_alpha)
        if gamma is None:
            cheap = _terms(setting, about, a, LEAST_GAMMA, cost * a / (2 * LEAST_GAMMA))
            gamma = reachable_gamma(setting, about, a, self._alphas(setting, cheap))
        if cover is None:
            cover = cost * a / (2 * gamma)
        terms = _terms(setting, about, a, gamma, cover)
        alpha = self._alphas(setting, terms)
        spent = loss_round_epsilon(alpha=alpha, n=setting.sizes, **terms)
        made = ShiftedMinimiser(about.lipschitz, about.smoothness, a, gamma / 2)
        covered = Cover(about, a, setting.num_parameters, setting.sizes, alpha, float(gamma), float(cover))
        work = _Tilted(self.prox_mu, covered, spent)
        alike = {} if self.per_client else {"alpha": float(alpha[0])}
        return Fitted(
            name=self.name,
            promise=covered.promise(self.norm_bound, made.steps, self.delta),
            norm_bound=float(self.norm_bound),
            prepare=partial(project, norm_bound=self.norm_bound),
            solver=partial(bring, made),
            problem=work.problem,
            release=covered.release,
            charge=work.charge,
            mean_noise_std=covered.mean_noise_std,
            release_noise_std=work.release_noise_std,
            # The solver's accuracy and its cover follow from all sizes; so does alpha where all have the same.
            shared={"gamma": float(gamma), "cover_alpha": float(cover), **alike},
            prox_mu=self.prox_mu,
            alpha=alpha,
            paper=PaperTilt(alpha, a),
        )

    def _alphas(self, setting: Setting, terms: dict[str, Any]) -> Real:
        """Return each client's alpha, as given or as epsilon needs it."""
        alpha = np.full(setting.sizes.size, 0.0 if self.alpha is None else float(self.alpha))
        if self.epsilon is None:
            return alpha
        rounds, delta = rounds_paid(setting), self.delta or 0.0
        for count in np.unique(rounds).tolist():
            mine = rounds == count
            alpha[mine] = loss_alpha(epsilon=self.epsilon, n=setting.sizes[mine], rounds=count, delta=delta, **terms)
        if self.per_client:
            return alpha
        return np.full_like(alpha, setting.shared.get("alpha", alpha.min()))

    def _cover_cost(self, rounds: int) -> float:
        if self.epsilon is None:
            return COVER_EPSILON
        each = pure_round_epsilon(epsilon=self.epsilon, rounds=rounds, delta=self.delta or 0.0)
        return min(COVER_EPSILON, each / 50)


def _terms(setting: Setting, about: LossConstants, a: float, gamma: float, cover: float) -> dict[str, Any]:
    """Return the arguments that the accounting functions share.

    Rounding to the grid of the cover noise is one more error that it covers: g sqrt(D) between neighbours, as if gamma
    were larger by a g sqrt(D)/2.
    """
    grid = grid_length(cover, setting.num_parameters)
    return {
        "loss": about.loss,
        "norm_bound_squared": about.radius**2,
        "a": a,
        "gamma": gamma + a * grid / 2,
        "cover_alpha": cover,
    }


@dataclass(frozen=True, eq=False)
class _Tilted:
    """The noise of each client, inside its objective and over its solution, and what it costs."""

    prox_mu: float
    cover: Cover
    round_epsilon: Real

    def problem(self, problem: Problem, sent: Vector, cohort: Cohort, noise: NoiseSource) -> Problem:
        """Add prox_mu to a and the noise to b."""
        longest = self.cover.room(problem, sent, cohort)
        return tilted(problem, sent.size, cohort, self.cover.alpha, self.prox_mu, noise, longest)

    def charge(self, cohort: Cohort) -> Charge:
        """A pure release."""
        nothing = np.zeros(cohort.rows.size)
        return Charge("pure", cohort.clients, nothing, nothing, epsilon=self.round_epsilon[cohort.rows])

    def release_noise_std(self, release: Release) -> Real:
        """Return sqrt(D + 1)/(alpha_i a), a bound: a tilt n moves the minimiser by ||n||/a at most.

        ||n|| is Gamma(D, 1/alpha) distributed, so that E ||n||^2 = D (D + 1)/alpha^2.
        """
        cover = self.cover
        std: Real = np.sqrt(cover.size + 1) / (cover.alpha[release.clients] * cover.a)
        return std
