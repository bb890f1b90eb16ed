"""The paper's own two theorems, in both directions: reproduced for comparison, not to be relied on.

Its output perturbation (Theorem "privacy") treats the clipped model as a mean of n per-sample terms of norm at most
tau. Clipping a trained model does not give that: one record can move it by 2 tau whatever n is. Its objective
perturbation (Theorem "privacy1") is sound for a convex loss when u1 and u2 are true bounds, but the constants in its
experiments are not (u1 = 1 leaves out the bias and the second class vector). What is proven is in ``gaussian``,
``sensitivity`` and ``objective``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from upcycled.core.errors import InputError
from upcycled.privacy.accounting.numbers import Floats, broadcast, numbers, plain


def paper_epsilon(
    *, rounds: ArrayLike, clip_norm: ArrayLike, noise_std: ArrayLike, n: ArrayLike, delta: ArrayLike
) -> float | Floats:
    """Return the paper's epsilon = a + 2 sqrt(a ln(1/delta)), a = M tau^2/(2 sigma^2 n^2). Not sound.

    It assumes that one record moves the clipped model by at most tau/n, which holds for a mean of n clipped terms under
    add/remove-one but not for a clipped trained model (2 tau, replace-one). Report it beside a proven epsilon only.

    Args:
        rounds: data rounds, M.
        clip_norm: tau, which the model is clipped to.
        noise_std: sigma, the noise's standard deviation per coordinate.
        n: records of a client.
        delta: the delta to state it at, between 0 and 1.

    Returns:
        The paper's epsilon. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or arrays of lengths that do not fit.

    >>> paper_epsilon(rounds=40, clip_norm=10, noise_std=0.8, n=224, delta=1e-5)
    1.755838
    """
    a, log_delta = broadcast(n=_a(rounds, clip_norm, noise_std, n), delta=_log_inverse(delta))
    return plain(a + 2 * np.sqrt(a * log_delta))


def paper_delta(
    *, rounds: ArrayLike, clip_norm: ArrayLike, noise_std: ArrayLike, n: ArrayLike, epsilon: ArrayLike
) -> float | Floats:
    """Return the paper's delta = exp(-(epsilon - a)^2/(4 a)); its formula says nothing for epsilon < a. Not sound.

    It assumes that one record moves the clipped model by at most tau/n; see :func:`paper_epsilon`.

    Args:
        rounds: data rounds, M.
        clip_norm: tau, which the model is clipped to.
        noise_std: sigma, the noise's standard deviation per coordinate.
        n: records of a client.
        epsilon: the epsilon to state it at, at least a.

    Returns:
        The paper's delta. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or an epsilon that the formula says nothing about.

    >>> paper_delta(rounds=40, clip_norm=10, noise_std=0.8, n=224, epsilon=1.5)
    0.0002492011
    """
    a, loss = broadcast(n=_a(rounds, clip_norm, noise_std, n), epsilon=numbers("epsilon", epsilon, at_least=0))
    if np.any(loss < a):
        worst = np.unravel_index(np.argmax(a - loss), a.shape)
        raise InputError(
            field="epsilon",
            value=loss[worst],
            but=f"the paper's formula needs epsilon >= a = rounds clip_norm^2 / (2 noise_std^2 n^2) = {a[worst]:.6g}",
        )
    free = a == 0  # no data round: nothing was released
    exponent = -((loss - a) ** 2) / (4 * np.where(free, 1.0, a))
    return plain(np.where(free, 0.0, np.exp(exponent)))


def paper_noise_std(
    *, rounds: ArrayLike, clip_norm: ArrayLike, n: ArrayLike, epsilon: ArrayLike, delta: ArrayLike
) -> float | Floats:
    """Return the noise std at which the paper's formula gives ``epsilon``. Not sound.

    It assumes that one record moves the clipped model by at most tau/n; see :func:`paper_epsilon`.

    Args:
        rounds: data rounds, M.
        clip_norm: tau, which the model is clipped to.
        n: records of a client.
        epsilon: the paper's epsilon to be met.
        delta: the delta that goes with it.

    Returns:
        The standard deviation. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or arrays of lengths that do not fit.

    >>> paper_noise_std(rounds=40, clip_norm=10, n=224, epsilon=1, delta=1e-5)
    1.383653
    """
    count, clip, size, loss, log_delta = broadcast(
        rounds=numbers("rounds", rounds, at_least=1, integer=True),
        clip_norm=numbers("clip_norm", clip_norm, above=0),
        n=numbers("n", n, at_least=1, integer=True),
        epsilon=numbers("epsilon", epsilon, above=0),
        delta=_log_inverse(delta),
    )
    # 1/(sqrt(L + epsilon) - sqrt(L)), in the form that does not cancel for small epsilon.
    return plain(clip / size * np.sqrt(count / 2) * (np.sqrt(log_delta + loss) + np.sqrt(log_delta)) / loss)


def paper_objective_epsilon(
    *, alpha: ArrayLike, u1: ArrayLike, u2: ArrayLike, n: ArrayLike, mu: ArrayLike, rounds: ArrayLike
) -> float | Floats:
    """Return the paper's pure epsilon = M (2 alpha u1 mu + 2.8 u2)/(n mu) of objective perturbation.

    Assumes a convex loss whose per-sample gradients have norm <= u1 and whose per-sample Hessians have rank one and
    norm <= u2 <= 0.5 n mu, and an exactly solved minimisation. Sound under replace-one for such u1 and u2, which the
    paper's own u1 = 1 is not for its models; never the tightest (see ``objective_epsilon``).

    Args:
        alpha: the rate of the noise: the larger, the less noise.
        u1: what is to bound the norm of a sample's gradient.
        u2: what is to bound the norm of a sample's Hessian.
        n: records of a client.
        mu: the weight of the quadratic term.
        rounds: data rounds, M.

    Returns:
        The paper's epsilon, at delta = 0. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or u2 > 0.5 n mu.

    >>> paper_objective_epsilon(alpha=10, u1=1, u2=0.11, n=224, mu=0.5, rounds=80)
    7.362857
    """
    rate, gradient, hessian, size, prox, count = broadcast(
        alpha=numbers("alpha", alpha, at_least=0),
        u1=numbers("u1", u1, at_least=0),
        u2=numbers("u2", u2, at_least=0),
        n=numbers("n", n, at_least=1, integer=True),
        mu=numbers("mu", mu, above=0),
        rounds=numbers("rounds", rounds, at_least=0, integer=True),
    )
    check_paper_condition(hessian, size, prox)
    return plain(count * (2 * rate * gradient * prox + 2.8 * hessian) / (size * prox))


def paper_objective_alpha(
    *, epsilon: ArrayLike, u1: ArrayLike, u2: ArrayLike, n: ArrayLike, mu: ArrayLike, rounds: ArrayLike
) -> float | Floats:
    """Return the noise rate alpha at which :func:`paper_objective_epsilon`, with its assumptions, gives ``epsilon``.

    Args:
        epsilon: the paper's epsilon to be met.
        u1: what is to bound the norm of a sample's gradient.
        u2: what is to bound the norm of a sample's Hessian.
        n: records of a client.
        mu: the weight of the quadratic term.
        rounds: data rounds, M.

    Returns:
        The rate alpha. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, u2 > 0.5 n mu, or an epsilon that no alpha meets.

    >>> paper_objective_alpha(epsilon=7.362857143, u1=1, u2=0.11, n=224, mu=0.5, rounds=80)
    10.00000
    """
    loss, gradient, hessian, size, prox, count = broadcast(
        epsilon=numbers("epsilon", epsilon, above=0),
        u1=numbers("u1", u1, above=0),
        u2=numbers("u2", u2, at_least=0),
        n=numbers("n", n, at_least=1, integer=True),
        mu=numbers("mu", mu, above=0),
        rounds=numbers("rounds", rounds, at_least=1, integer=True),
    )
    check_paper_condition(hessian, size, prox)
    alpha = (loss / count * size - 2.8 * hessian / prox) / (2 * gradient)
    if np.any(alpha <= 0):
        worst = np.unravel_index(np.argmin(alpha), alpha.shape)
        floor = (2.8 * hessian * count / (size * prox))[worst]
        raise InputError(
            field="epsilon", value=loss[worst], but=f"the term 2.8 u2/(n mu) alone costs {floor:.6g} in all rounds"
        )
    return plain(alpha)


def check_paper_condition(u2: Floats, n: Floats, mu: Floats) -> None:
    """Raise unless u2 <= 0.5 n mu, without which the paper's theorem says nothing."""
    if np.any(u2 > 0.5 * n * mu):
        worst = np.unravel_index(np.argmax(u2 - 0.5 * n * mu), u2.shape)
        raise InputError(
            field="u2",
            value=u2[worst],
            but=f"the paper's theorem needs u2 <= 0.5 n mu = {0.5 * n[worst] * mu[worst]:g}",
        )


def _a(rounds: ArrayLike, clip_norm: ArrayLike, noise_std: ArrayLike, n: ArrayLike) -> Floats:
    count, clip, std, size = broadcast(
        rounds=numbers("rounds", rounds, at_least=0, integer=True),
        clip_norm=numbers("clip_norm", clip_norm, above=0),
        noise_std=numbers("noise_std", noise_std, above=0),
        n=numbers("n", n, at_least=1, integer=True),
    )
    return np.asarray(count / 2 * (clip / (std * size)) ** 2)


def _log_inverse(delta: ArrayLike) -> Floats:
    return np.asarray(-np.log(numbers("delta", delta, above=0, below=1)))
