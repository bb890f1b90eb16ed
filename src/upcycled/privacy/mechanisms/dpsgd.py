"""DP-SGD (Abadi et al. 2016, arXiv:1607.00133) on every client: per-sample clipping, secret Poisson batches, noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import numpy as np

from upcycled.core.errors import NOT_NEGATIVE, POSITIVE, InputError, check_fields
from upcycled.core.mechanism import Charge, Fitted, Promise, Setting
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import LocalSGD, MoreauSGD, NoisySGD, Solver
from upcycled.core.vectors import Ints, Real, grid_step
from upcycled.privacy.accounting import sampled_gaussian_noise_multiplier
from upcycled.privacy.mechanisms.clipping import finite_or_sent
from upcycled.privacy.mechanisms.gaussian_noise import delta_for_noise, settle
from upcycled.privacy.mechanisms.requirements import (
    CLIP_NORM,
    DELTA,
    check_delta,
    check_noise,
    check_plain_sgd,
    rounds_paid,
)


@dataclass(frozen=True)
class DPSGD:
    """Replace every minibatch gradient by a clipped and noisy one, so that the trained model itself may leave.

    Guarantee: (epsilon, delta)-DP for one replaced record against whoever sees every release (every noisy gradient,
    even), by privacy loss distributions of the Poisson-sampled Gaussian, replace-one. Each record enters a step with
    q_i = min(1, batch/n_i) by secret coins from the stream of the noise; gradients are clipped to ``clip_norm``
    sample by sample (one that is not finite counts as zero), noise of std noise_multiplier * clip_norm joins their
    sum, on a grid, and the sum is divided by q_i n_i. Empty batches are steps too; the steps a round are fixed by n_i
    and ``local``, and a straggler pays for all of them. Corrections and momentum come after the noise.

    A sample's part of a step is its own: masks of dropout are keyed by row and step, never by place in the secret
    batch, and its gradient has the same bits whatever is drawn beside it.

    Needs a model that does not mix samples (no batch norm); works with every algorithm, with pFedMe at one noisy
    gradient per inner step.
    Give ``noise_multiplier``, or ``epsilon`` and ``delta``: it is then calibrated to each client's q_i and steps
    (some hundredths of a second for each different pair), or to the largest need for all with ``per_client=False``.
    delta > 1/(10 n) gets a warning.

    Args:
        clip_norm: the norm that a sample's gradient is scaled down to.
        noise_multiplier: the noise's standard deviation over the clip norm; or
        epsilon: what each client may spend in all, and
        delta: the delta that goes with it.
        per_client: whether each client gets the least noise that serves it, or all get the same.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> privacy = up.privacy.DPSGD(clip_norm=1.0, noise_multiplier=8.0)
    >>> run = up.train(
    ...     data, algorithm=up.FedAvg(), privacy=privacy, local=up.LocalSGD(batch_size=None),
    ...     iterations=2, progress=False
    ... )
    >>> round(run.privacy.max_epsilon(1e-4), 2)
    1.14
    """

    clip_norm: Annotated[float, CLIP_NORM]
    noise_multiplier: Annotated[float, NOT_NEGATIVE] | None = None
    epsilon: Annotated[float, POSITIVE] | None = None
    delta: Annotated[float, DELTA] | None = None
    per_client: bool = True

    name: ClassVar[str] = "dpsgd"

    def __post_init__(self) -> None:
        check_fields(self)
        check_noise("DPSGD", "noise_multiplier", self.noise_multiplier, self.epsilon, self.delta)

    def fit(self, setting: Setting) -> Fitted:
        """Check the table of needs, and calibrate."""
        if setting.has_batch_norm:
            raise InputError(
                "DPSGD needs gradients sample by sample, but the model has batch norm, which mixes samples: use "
                "GroupNorm or LayerNorm"
            )
        check_plain_sgd("DPSGD", setting)
        check_delta(self.delta, setting.facts.sizes)
        local, sizes = setting.local, setting.facts.sizes
        batches = sizes if local.batch_size is None else np.minimum(local.batch_size, sizes)
        rates = batches / sizes
        steps = local.num_steps(sizes, np.full(sizes.size, local.epochs)) * setting.gradients_per_step
        shared: Mapping[str, float]
        clip, size = np.full(sizes.size, float(self.clip_norm)), setting.num_parameters
        if self.noise_multiplier is not None or self.epsilon is None or self.delta is None:
            std, shared = float(self.noise_multiplier or 0.0) * clip, {}
        else:
            paid = steps * rounds_paid(setting)
            rest = delta_for_noise(self.epsilon, self.delta, paid, setting)
            multipliers = _multipliers(rates, paid, self.epsilon, rest)
            std, shared = settle(lambda moves: multipliers * moves, clip, setting, self.per_client)
        moves = clip + grid_step(std) * np.sqrt(size)
        charged = _Charged(moves, std, rates, steps, setting.draws)
        return Fitted(
            name=self.name,
            promise=self._promise(),
            solver=partial(_made_noisy, self.clip_norm, std),
            # The models are private already; the noise went through the steps, so its std in them is not known.
            release=finite_or_sent,
            charge=charged.charge,
            shared=shared,
        )

    def _promise(self) -> Promise:
        return Promise(
            "the model that noisy SGD ends with",
            (
                f"per-sample gradients clipped to norm {self.clip_norm:g}",
                "Poisson batches drawn from the stream of the noise, empty ones included; their draws are secret",
                "steps a round fixed in advance by public sizes and settings",
                "no batch norm, and no sample's logits change with those beside it (tried on random numbers)",
                "each row has its own dropout masks and the same bits beside any others (tried on random numbers)",
            ),
            delta=self.delta,
        )


def _multipliers(rates: Real, steps: Ints, epsilon: float, deltas: Real) -> Real:
    """Return each client's noise multiplier; equal clients share one computation."""
    asked = list(zip(rates.tolist(), steps.tolist(), np.broadcast_to(deltas, rates.shape).tolist(), strict=True))
    found = {
        (q, count, delta): sampled_gaussian_noise_multiplier(q=q, epsilon=epsilon, steps=count, delta=delta)
        for q, count, delta in set(asked)
    }
    return np.array([found[one] for one in asked])


def _made_noisy(clip_norm: float, noise_std: Real, solver: Solver) -> Solver:
    """Make the algorithm's own solver noisy."""
    assert isinstance(solver, LocalSGD | MoreauSGD)  # what algorithms bring
    return NoisySGD(solver, float(clip_norm), noise_std)


@dataclass(frozen=True, eq=False)
class _Charged:
    """The noisy steps of each client's round."""

    sensitivity: Real
    noise_std: Real
    rates: Real
    steps: Ints
    draws: int | None
    """Numbers of real noise in one step: see :attr:`Charge.draws`."""

    def charge(self, cohort: Cohort) -> Charge:
        """All noisy steps of a round."""
        return Charge(
            "sampled",
            cohort.clients,
            self.sensitivity[cohort.rows],
            self.noise_std[cohort.rows],
            sampling_rate=self.rates[cohort.rows],
            steps=self.steps[cohort.rows],
            draws=None if self.draws is None else self.draws * self.steps[cohort.rows],
        )
