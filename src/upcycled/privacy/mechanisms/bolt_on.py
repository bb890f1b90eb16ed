"""Bolt-on private SGD (Wu et al. 2017, arXiv:1606.04722): plain SGD on a convex loss, noise on its last iterate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import numpy as np

from upcycled.core.errors import NOT_NEGATIVE, POSITIVE, InputError, check_fields
from upcycled.core.mechanism import Fitted, NoiseSource, Promise, Setting
from upcycled.core.objective import GeneralisedLinear
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import LocalSGD, NominalSGD, Problem, Solver
from upcycled.core.vectors import Ints, Real, Vector
from upcycled.privacy.accounting import sgd_sensitivity
from upcycled.privacy.mechanisms.gaussian_noise import gaussian_noise
from upcycled.privacy.mechanisms.requirements import (
    DELTA,
    ROUNDING,
    LossConstants,
    check_convex,
    check_covered,
    check_delta,
    check_noise,
    check_plain_sgd,
    constants_of,
    norms,
    project,
)


@dataclass(frozen=True)
class BoltOnSGD:
    """Run the given minibatch SGD, in float64, and release its last iterate with Gaussian noise.

    Guarantee: (epsilon, delta)-DP for one replaced record against whoever sees every release, by the exact Gaussian
    formula with sensitivity 2 epochs L lr / batch, or (2 lr L/batch) sum_{j<epochs} (1 - lr a)^(j floor(n/batch)) where
    the algorithm has a quadratic term a > 0 and lr <= 1/(S + a). Minibatch orders may be public. Rounding and the grid
    are included.

    Needs a linear model (no dropout) with cross-entropy, one logit's logistic loss or Huber's, features projected to
    ``norm_bound`` (done here), lr <= 2/(S + a), no momentum; short batches divide by the nominal batch. A straggler is
    covered at the full charge. Not for pFedMe.

    Give ``noise_std``, or ``epsilon`` and ``delta``: the noise is then calibrated to each client's n_i and rounds, or
    to the largest need for all with ``per_client=False``. delta > 1/(10 n) gets a warning.

    Args:
        norm_bound: R, the norm that features are projected to.
        noise_std: the noise's standard deviation per coordinate; or
        epsilon: what each client may spend in all, and
        delta: the delta that goes with it.
        per_client: whether each client gets the least noise that serves it, or all get the same.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> privacy = up.privacy.BoltOnSGD(norm_bound=1.0, epsilon=2.0, delta=1e-4)
    >>> run = up.train(data, algorithm=up.FedAvg(), privacy=privacy, iterations=2, progress=False)
    >>> round(run.privacy.max_epsilon(1e-4), 6)
    2.0
    """

    norm_bound: Annotated[float, POSITIVE]
    noise_std: Annotated[float, NOT_NEGATIVE] | None = None
    epsilon: Annotated[float, POSITIVE] | None = None
    delta: Annotated[float, DELTA] | None = None
    per_client: bool = True

    name: ClassVar[str] = "bolt_on_sgd"

    def __post_init__(self) -> None:
        check_fields(self)
        check_noise("BoltOnSGD", "noise_std", self.noise_std, self.epsilon, self.delta)

    def fit(self, setting: Setting) -> Fitted:
        """Check the table of needs, and calibrate."""
        loss, sizes = check_convex("BoltOnSGD", setting), setting.facts.sizes
        check_delta(self.delta, sizes)
        check_plain_sgd("BoltOnSGD", setting)
        local, about = setting.local, constants_of(setting, loss, self.norm_bound)
        if local.momentum != 0:
            raise InputError(
                field="local.momentum", value=local.momentum, but="BoltOnSGD is proven without: it must be 0"
            )
        most = 2 / (about.smoothness + setting.penalty)
        if local.rate > most * (1 + 1e-12):
            raise InputError(field="local.lr", value=local.rate, but=f"BoltOnSGD needs at most 2/(S + a) = {most:.6g}")
        batches = sizes if local.batch_size is None else np.minimum(local.batch_size, sizes)
        exact = sgd_sensitivity(
            lipschitz=about.lipschitz,
            lr=local.rate,
            passes=local.epochs,
            batch=batches,
            n=sizes,
            a=setting.penalty,
            smoothness=about.smoothness,
        )
        moves = np.asarray(exact) * (1 + ROUNDING)
        noise = gaussian_noise(setting, moves, self.noise_std, self.epsilon, self.delta, self.per_client)
        return Fitted(
            name=self.name,
            promise=self._promise(loss, local),
            norm_bound=float(self.norm_bound),
            prepare=partial(project, norm_bound=self.norm_bound),
            solver=_with_nominal_batches,
            problem=_Covered(setting, about, batches, moves).problem,
            release=noise.release,
            charge=noise.charge,
            mean_noise_std=noise.mean_std,
            release_noise_std=noise.release_std,
            shared=noise.shared,
        )

    def _promise(self, loss: GeneralisedLinear, local: LocalSGD) -> Promise:
        return Promise(
            "the last iterate of SGD, with Gaussian noise",
            (
                f"{loss.name} without dropout",
                f"features projected to norm {self.norm_bound:g}",
                f"learning rate {local.rate:g} at most 2/(S + a), no momentum",
                "short batches divide by the nominal batch",
                "rounding in float64 is within the promised sensitivity",
            ),
            ("norm_bound and the local settings were not chosen by looking at private data",),
            delta=self.delta,
        )


def _with_nominal_batches(solver: Solver) -> Solver:
    """Bring float64 SGD with nominal batches."""
    return NominalSGD(solver.local)


@dataclass(frozen=True, eq=False)
class _Covered:
    """The public numbers that bound the rounding of SGD."""

    setting: Setting
    about: LossConstants
    batches: Ints
    moves: Real

    def problem(self, problem: Problem, sent: Vector, cohort: Cohort, noise: NoiseSource) -> Problem:
        """Keep it; stop the run if its public vectors are too large for float64."""
        local, size = self.setting.local, float(np.linalg.norm(sent.astype(np.float64)))
        linear = norms(problem.b, cohort.rows.size)
        sizes = self.setting.facts.sizes[cohort.rows]
        steps = local.num_steps(sizes, np.full(cohort.rows.size, local.epochs))
        # A step never takes x further from where it would be at a fixed point: K lr (L + ||b||) bounds all of them.
        reach = steps * local.rate * (self.about.lipschitz + linear)
        error = self.about.step_error(self.batches[cohort.rows], size, linear, problem.a, local.rate, reach)
        check_covered(2 * error * steps * local.rate, ROUNDING / 2 * self.moves[cohort.rows], size)
        return problem
