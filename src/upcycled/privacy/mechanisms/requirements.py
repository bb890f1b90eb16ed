"""What mechanisms ask of their hyper-parameters and of the run: each refusal is one sentence."""

from __future__ import annotations

import warnings

import numpy as np

from upcycled.core.errors import InputError, Limits
from upcycled.core.generalised_linear import GeneralisedLinear
from upcycled.core.mechanism import Setting
from upcycled.core.solvers import LocalSGD
from upcycled.core.vectors import Ints

CLIP_NORM = Limits(above=0, because="noise without clipping hides nobody")
DELTA = Limits(above=0, below=1)


def check_noise(
    owner: str, field: str, noise: float | None, epsilon: float | None, delta: float | None, *, pure: bool = False
) -> None:
    """Refuse unless the noise is given directly, or epsilon and delta in its place; ``pure`` lets delta be zero."""
    instead = "epsilon" if pure else "epsilon and delta"
    if noise is not None and (epsilon is not None or delta is not None):
        raise InputError(f"{owner} has both {field} and epsilon or delta, but it takes {field}, or {instead}, not both")
    if noise is None and epsilon is None:
        raise InputError(f"{owner} has no noise, but it must have {field}=, or {instead}= in its place")
    if epsilon is not None and delta is None and not pure:
        raise InputError(f"{owner} has epsilon without delta, but it must have both")


USUAL_DELTA = 1e-5
"""What epsilon is stated at where nobody gave a delta."""


def default_delta(own: float | None, count: int) -> float:
    """Return the delta that a run's epsilon is stated at, wherever it is stated.

    Args:
        own: the delta that the mechanism was given; it is taken as it is.
        count: n of the largest client, or N where clients are protected.

    Without one of its own it is 1e-5, or less where that would be more than 1/(10 n), for every kind of release: pure
    ones too, whose plain sum at delta = 0 is shown beside it.

    >>> default_delta(None, 500), default_delta(None, 50_000), default_delta(1e-6, 500)
    (1e-05, 2e-06, 1e-06)
    """
    return min(USUAL_DELTA, 0.1 / count) if own is None else float(own)


def check_delta(delta: float | None, sizes: Ints, unit: str = "record") -> None:
    """Refuse delta >= 1/n (1/N for clients), which lets somebody be published whole; warn above 1/(10 n)."""
    check_delta_for(delta, int(sizes.max()) if unit == "record" else sizes.size, unit)


def check_delta_for(delta: float | None, count: int, unit: str) -> None:
    """Do the same where n, or N, is known by itself."""
    if not delta:
        return
    what = "n of the largest client" if unit == "record" else "N clients"
    if delta * count >= 1:
        raise InputError(field="delta", value=delta, must=f"below 1/n = {1 / count:.3g} ({count} = {what})")
    if delta * count * 10 > 1:
        warnings.warn(
            f"delta is {delta:g}, which is more than 1/(10 n) = {0.1 / count:.3g} ({count} = {what}): "
            "a smaller one protects better",
            UserWarning,
            stacklevel=4,
        )


def check_convex(owner: str, setting: Setting) -> GeneralisedLinear:
    """Return what is proven of the run's model and loss; refuse those of which nothing is."""
    if setting.is_personal:
        raise InputError(f"{owner} does not know pFedMe's local solver: use ModelClipping, UpdateClipping or DPSGD")
    if setting.convex is None:
        raise InputError(
            f"{owner} needs a linear model (model='logistic' or one nn.Linear, no dropout) with the loss "
            "'cross_entropy', 'binary_cross_entropy' (one logit) or 'huber': its bound on what a record can change is "
            "proven for these convex losses only"
        )
    return setting.convex


def check_own_solver(owner: str, setting: Setting) -> None:
    """Refuse local settings that the mechanism's own solver would ignore."""
    if setting.is_local_given and setting.local != LocalSGD():
        raise InputError(f"{owner} brings its own local solver, which would ignore local={setting.local}: leave it out")


def check_penalty(owner: str, setting: Setting, prox_mu: float) -> float:
    """Return a > 0, the algorithm's own quadratic term and the mechanism's."""
    a = float(setting.penalty + prox_mu)
    if a <= 0:
        raise InputError(
            f"{owner} needs a quadratic term a > 0, but {setting.algorithm} has none here: give {owner} a prox_mu > 0"
        )
    return a


def check_plain_sgd(owner: str, setting: Setting) -> None:
    """Refuse optimisers whose steps the mechanism does not take."""
    if not setting.is_plain_sgd:
        raise InputError(
            f"{owner} takes steps of SGD with momentum at one learning rate: local must be up.LocalSGD without a "
            "schedule, weight_decay, nesterov and max_grad_norm"
        )


def check_no_stragglers(owner: str, setting: Setting) -> None:
    """Refuse stragglers where only the finished solution is covered."""
    if setting.stragglers > 0:
        raise InputError(
            f"{owner} must finish its minimisation, but stragglers is {setting.stragglers!r}: it must be 0 here"
        )


def rounds_paid(setting: Setting) -> Ints:
    """Return the data rounds each client is calibrated to: its own in the public schedule, at least one."""
    return np.maximum(setting.rounds, 1)
