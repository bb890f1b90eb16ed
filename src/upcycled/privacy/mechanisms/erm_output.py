"""Output perturbation with a proof: a certified minimiser of a strongly convex objective, and Gaussian noise.

F_i(x) + a/2 ||x - w||^2 + <b, x> with F_i the mean loss of a linear model on features of norm <= R. One record moves
the solution by O(L/(n a)): clients with much data need little noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

import numpy as np

from upcycled.core.errors import COUNT, NOT_NEGATIVE, POSITIVE, InputError, check_fields
from upcycled.core.mechanism import Fitted, NoiseSource, Promise, Setting, bring
from upcycled.core.objective import GeneralisedLinear
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import CertifiedGD, CertifiedMinimiser, Problem
from upcycled.core.vectors import Ints, Real, Vector
from upcycled.privacy.accounting import erm_sensitivity, gd_sensitivity
from upcycled.privacy.mechanisms.gaussian_noise import gaussian_noise
from upcycled.privacy.mechanisms.requirements import (
    DELTA,
    ROUNDING,
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
)

DEFAULT_STEPS = 50


@dataclass(frozen=True)
class ErmOutput:
    """Release the certified solution of the local objective with Gaussian noise.

    Guarantee: (epsilon, delta)-DP for one replaced record against whoever sees every release, by the exact Gaussian
    formula. Sensitivity with full-batch gradient descent from w (default, ``steps`` of 1/(S + a)): (2 L/(n a)) (1 -
    (1 - eta a)^steps); with ``gamma``, the gradient norm that the solver then reaches for every data set: 2 L/(n a) +
    2 gamma/a. Rounding in float64 and the grid are included.

    Needs a linear model with cross-entropy, one logit's logistic loss or Huber's (L and S: see docs/privacy.md),
    features projected to ``norm_bound`` (done here, the bound is not trusted), and a > 0: from FedProx's mu or FedDyn's
    alpha, or ``prox_mu``, which is added (FedAvg, FedAvgM, FedYogi and Scaffold need it). Brings its own solver.
    Stragglers are covered by the default solver and refused with ``gamma``. Not for pFedMe.

    Give ``noise_std``, or ``epsilon`` and ``delta``: the noise is then calibrated to each client's n_i and rounds, or
    to the largest need for all with ``per_client=False``. delta > 1/(10 n) gets a warning.

    Args:
        norm_bound: R, the norm that features are projected to.
        noise_std: the noise's standard deviation per coordinate; or
        prox_mu: what is added to the algorithm's own a.
        epsilon: what each client may spend in all, and
        delta: the delta that goes with it.
        steps: of gradient descent, 50 if left out; or
        gamma: the gradient norm to be reached.
        per_client: whether each client gets the least noise that serves it, or all get the same.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> privacy = up.privacy.ErmOutput(norm_bound=1.0, epsilon=2.0, delta=1e-4)
    >>> run = up.train(data, algorithm=up.FedProx(mu=0.5), privacy=privacy, iterations=2, progress=False)
    >>> round(run.privacy.max_epsilon(1e-4), 6)
    2.0
    """

    norm_bound: Annotated[float, POSITIVE]
    noise_std: Annotated[float, NOT_NEGATIVE] | None = None
    prox_mu: Annotated[float, NOT_NEGATIVE] = 0.0
    epsilon: Annotated[float, POSITIVE] | None = None
    delta: Annotated[float, DELTA] | None = None
    steps: Annotated[int, COUNT] | None = None
    gamma: Annotated[float, POSITIVE] | None = None
    per_client: bool = True

    name: ClassVar[str] = "erm_output"

    def __post_init__(self) -> None:
        check_fields(self)
        check_noise("ErmOutput", "noise_std", self.noise_std, self.epsilon, self.delta)
        if self.steps is not None and self.gamma is not None:
            raise InputError(
                "ErmOutput has both steps and gamma, but the steps follow from gamma: it takes one of them"
            )

    def fit(self, setting: Setting) -> Fitted:
        """Check the table of needs, and calibrate."""
        loss, sizes = check_convex("ErmOutput", setting), setting.facts.sizes
        check_own_solver("ErmOutput", setting)
        check_delta(self.delta, sizes)
        a, about = check_penalty("ErmOutput", setting, self.prox_mu), constants_of(setting, loss, self.norm_bound)
        made: CertifiedGD | CertifiedMinimiser
        if self.gamma is None:
            made = CertifiedGD(about.smoothness, a, self.steps or DEFAULT_STEPS)
            exact = gd_sensitivity(
                lipschitz=about.lipschitz, n=sizes, a=a, steps=made.steps, smoothness=about.smoothness
            )
            moves = np.asarray(exact) * (1 + ROUNDING)
        else:
            check_no_stragglers("ErmOutput with gamma", setting)
            # Half of gamma for the steps, half for rounding.
            made = CertifiedMinimiser(about.lipschitz, about.smoothness, a, self.gamma / 2)
            moves = np.asarray(erm_sensitivity(lipschitz=about.lipschitz, n=sizes, a=a, gamma=self.gamma))
        noise = gaussian_noise(setting, moves, self.noise_std, self.epsilon, self.delta, self.per_client)
        return Fitted(
            name=self.name,
            promise=self._promise(loss, a, made),
            norm_bound=float(self.norm_bound),
            prepare=partial(project, norm_bound=self.norm_bound),
            solver=partial(bring, made),
            problem=_Covered(self.prox_mu, sizes, about, a, made, moves).problem,
            release=noise.release,
            charge=noise.charge,
            mean_noise_std=noise.mean_std,
            release_noise_std=noise.release_std,
            shared=noise.shared,
            prox_mu=self.prox_mu,
        )

    def _promise(self, loss: GeneralisedLinear, a: float, made: CertifiedGD | CertifiedMinimiser) -> Promise:
        solver = (
            f"{made.steps} gradient steps, fixed in advance"
            if isinstance(made, CertifiedGD)
            else f"a gradient norm of {self.gamma:g} at most, reached for every data set"
        )
        return Promise(
            "the solution of the local objective, with Gaussian noise",
            (
                loss.name,
                f"features projected to norm {self.norm_bound:g}",
                f"quadratic term a = {a:g} > 0",
                solver,
                "rounding in float64 is within the promised sensitivity",
            ),
            ("norm_bound and prox_mu were not chosen by looking at private data",),
            delta=self.delta,
        )


@dataclass(frozen=True, eq=False)
class _Covered:
    """What the local objective gets, and the public numbers that bound its solver's rounding."""

    prox_mu: float
    sizes: Ints
    about: LossConstants
    a: float
    made: CertifiedGD | CertifiedMinimiser
    moves: Real

    def problem(self, problem: Problem, sent: Vector, cohort: Cohort, noise: NoiseSource) -> Problem:
        """Add prox_mu to a; stop the run if its public vectors are too large for float64."""
        size, linear = float(np.linalg.norm(sent.astype(np.float64))), norms(problem.b, cohort.rows.size)
        lr, reach = self.made.local.rate, 2 * (self.about.lipschitz + linear) / self.a
        error = self.about.step_error(self.sizes[cohort.rows], size, linear, self.a, lr, reach)
        if isinstance(self.made, CertifiedGD):
            allowed = ROUNDING / 2 * self.moves[cohort.rows]
            check_covered(2 * error * min(self.made.steps * lr, 1 / self.a), allowed, size)
        else:
            check_covered(error / (lr * self.a), np.full(cohort.rows.size, self.made.gamma), size)
        return replace(problem, a=problem.a + self.prox_mu)
