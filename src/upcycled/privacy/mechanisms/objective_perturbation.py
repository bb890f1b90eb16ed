"""Objective perturbation (Chaudhuri et al. 2011; the paper's Theorem "privacy1"): noise inside the local objective.

Why what objective perturbation releases is pure (delta = 0), although floating point made it.

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
one more), the tilt's sampling error (``noise/gamma.py``), its sum with b, and the fold's own arithmetic.

Objective perturbation as the paper runs it: its own numbers, and its experiments on models that are not convex.

w_i = argmin F_i(x) + a/2 ||x - w||^2 + <b + n, x>, the density of n proportional to exp(-alpha ||n||).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np

from upcycled._utils.formats import general
from upcycled.core.errors import FRACTION, NOT_NEGATIVE, POSITIVE, InputError, check_fields
from upcycled.core.mechanism import Charge, Fitted, NoiseSource, Promise, Release, Setting, Trained, bring, no_claim
from upcycled.core.randomness import Purpose
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import Problem, ShiftedMinimiser
from upcycled.core.vectors import Ints, Real, Vector, grid_step, on_grid
from upcycled.privacy.accounting import pure_round_epsilon
from upcycled.privacy.accounting.objective import loss_alpha, loss_round_epsilon
from upcycled.privacy.ledger.entries import PaperTilt
from upcycled.privacy.mechanisms.clipping import finite_or_sent
from upcycled.privacy.mechanisms.requirements import (
    UNIT,
    LossConstants,
    check_convex,
    check_covered,
    check_delta,
    check_no_stragglers,
    check_noise,
    check_own_solver,
    check_penalty,
    constants_of,
    norms,
    project,
    rounds_paid,
)
from upcycled.privacy.noise.gamma import gamma_norm_noise, row_norms, sum_error, tilt_error

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
    cover = Cover(about, a, setting.num_parameters, setting.facts.sizes, alpha, LEAST_GAMMA, rate=1.0)
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


def tilted(
    problem: Problem,
    size: int,
    cohort: Cohort,
    alpha: Real,
    prox_mu: float,
    noise: NoiseSource,
    longest: Real | float = np.inf,
) -> Problem:
    """Return the problem with prox_mu added to a and Gamma-norm noise of rate alpha to b, in float64."""
    tilt = gamma_norm_noise(noise, cohort.clients, size, alpha[cohort.rows], Purpose.OBJECTIVE, longest)
    return replace(problem, a=problem.a + prox_mu, b=tilt if problem.b is None else problem.b + tilt)


def paper_objective(name: str, alpha: Real, prox_mu: float, a: float) -> Fitted:
    """Return the paper's experiments on models that are not convex. Not private: no epsilon is claimed."""
    return Fitted(
        name=name,
        promise=Promise(
            "the model that SGD ends with on a randomly tilted objective (paper mode: not private, no epsilon is "
            "claimed)",
            (),
            is_claimed=False,
        ),
        problem=partial(_tilted_in_float32, alpha, prox_mu),
        release=finite_or_sent,
        charge=no_claim,
        prox_mu=prox_mu,
        alpha=alpha,
        paper=PaperTilt(alpha, a),
    )


def _tilted_in_float32(
    alpha: Real, prox_mu: float, problem: Problem, sent: Vector, cohort: Cohort, noise: NoiseSource
) -> Problem:
    """Add prox_mu to a and the noise to b, in the float32 of the engines' SGD."""
    found = tilted(problem, sent.size, cohort, alpha, prox_mu, noise)
    return replace(found, b=None if found.b is None else found.b.astype(np.float32))


@dataclass(frozen=True)
class ObjectivePerturbation:
    """Perturb the local objective by a random linear term over all D parameters, and release its minimiser.

    Guarantee: epsilon-DP with delta = 0 a round for one replaced record, against whoever sees every release: 2 alpha
    L/n + r ln(1 + R~^2/(k n a)) + 2 cover_alpha gamma/a, without the paper's condition on u2; r = K-1 and k = K for
    softmax regression of K classes, 1 and 4 for one logit, m and m for Huber's loss on m outputs. The solver reaches
    gradient norm ``gamma`` (chosen if left out) for every data set and every tilt, in a number of steps fixed in
    advance; discrete Laplace noise of scale sqrt(D)/cover_alpha on a grid covers what remains, the inexactness of all
    floating point included, so that delta = 0 holds for what the code does (the top of this file has the proof; it
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
        me, sizes = "ObjectivePerturbation", setting.facts.sizes
        if self.paper_mode and setting.is_personal:
            raise InputError(f"{me} is not for pFedMe, whose local solver has another objective")
        if self.paper_mode and self.alpha is not None:
            a = float(setting.penalty + self.prox_mu)
            return paper_objective(self.name, np.full(sizes.size, float(self.alpha)), self.prox_mu, a)
        loss = check_convex(me, setting)
        check_own_solver(me, setting)
        check_no_stragglers(me, setting)
        check_delta(self.delta, sizes)
        assert self.norm_bound is not None  # as checked when it was made
        a, about = check_penalty(me, setting, self.prox_mu), constants_of(setting, loss, self.norm_bound)
        cost = self._cover_cost(int(rounds_paid(setting).max()))
        # A client that knows its own size only is told what follows from the sizes and rounds of all.
        told = setting.facts.shared
        gamma = told.get("gamma", self.gamma)
        cover = told.get("cover_alpha", self.cover_alpha)
        if gamma is None:
            cheap = _terms(setting, about, a, LEAST_GAMMA, cost * a / (2 * LEAST_GAMMA))
            gamma = reachable_gamma(setting, about, a, self._alphas(setting, cheap))
        if cover is None:
            cover = cost * a / (2 * gamma)
        terms = _terms(setting, about, a, gamma, cover)
        alpha = self._alphas(setting, terms)
        spent = loss_round_epsilon(alpha=alpha, n=sizes, **terms)
        made = ShiftedMinimiser(about.lipschitz, about.smoothness, a, gamma / 2)
        covered = Cover(about, a, setting.num_parameters, sizes, alpha, float(gamma), float(cover))
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
        sizes = setting.facts.sizes
        alpha = np.full(sizes.size, 0.0 if self.alpha is None else float(self.alpha))
        if self.epsilon is None:
            return alpha
        rounds, delta = rounds_paid(setting), self.delta or 0.0
        for count in np.unique(rounds).tolist():
            mine = rounds == count
            alpha[mine] = loss_alpha(epsilon=self.epsilon, n=sizes[mine], rounds=count, delta=delta, **terms)
        if self.per_client:
            return alpha
        return np.full_like(alpha, setting.facts.shared.get("alpha", alpha.min()))

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
