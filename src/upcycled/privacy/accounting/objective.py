"""Objective perturbation with noise of density ~ exp(-alpha ||b||): pure epsilon a round, replace-one.

The client releases argmin F(w) + a/2 ||w - w_bar||^2 + <b, w>. Replacing a record changes the gradient by at most 2
u1/n in norm, which costs 2 alpha u1/n, and the Jacobian of the map from noise to minimiser by a ratio of
determinants, which costs at most r ln(1 + u2/(n a)) when a record's Hessian has rank r and norm at most u2 (no
condition on u2, unlike the paper's theorem). For softmax regression the K-1 eigenvalues add up to at most R~^2 (1 -
1/K), so that by concavity the term is (K-1) ln(1 + R~^2/(K n a)).

**The density.** The noise that makes w the minimiser is b = phi(w) = -(grad F(w) + a (w - w_bar)), a bijection whose
inverse is Lipschitz, the objective being a-strongly convex. So w has the density nu(phi(w)) det(H(w) + a I), nu the
noise's and H the Hessian of F. A loss such as Huber's has no second derivative at some points. Its gradient is
Lipschitz, so that phi has a derivative almost everywhere (Rademacher), and the area formula for Lipschitz bijections
gives the same density almost everywhere, which is all that a density is. Nothing below needs more.

**The determinants.** Let h and h' be the Hessians of the record and of the one that replaces it, and A >= a I the part
that both data sets share, the other n - 1 records' over n and a I. The two rank-r terms do not add up: h' >= 0 makes
the denominator larger, so that it costs nothing,

    det(A + h/n) / det(A + h'/n) <= det(A + h/n) / det(A) = det(I + h^(1/2) A^-1 h^(1/2)/n) <= det(I + h/(n a)),

and the same the other way round. The last is a product over the r eigenvalues of h; they add up to T R~^2 at most, and
ln(1 + t) is concave, so the cost is r ln(1 + T R~^2/(r n a)). ``core/objective.py`` has r and r/T of each
loss: K-1 and K for softmax regression; 1 and 4 for one logit, whose h is sigma (1 - sigma) x~ x~', that is ln(1 +
R~^2/(4 n a)); m and m for Huber's loss on m outputs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from upcycled.core.errors import InputError, check_number
from upcycled.core.objective import GeneralisedLinear, softmax_loss
from upcycled.privacy.accounting.numbers import Floats, broadcast, numbers, plain
from upcycled.privacy.accounting.pure import pure_composition_epsilon, pure_round_epsilon


def objective_round_epsilon(
    *,
    alpha: ArrayLike,
    classes: int,
    norm_bound_squared: float,
    n: ArrayLike,
    a: float,
    gamma: float = 0.0,
    cover_alpha: float = 0.0,
) -> float | Floats:
    """Return the pure epsilon of one round of objective perturbation of K-class softmax regression.

    2 alpha L/n + (K-1) ln(1 + R~^2/(K n a)) with L = sqrt(2) R~. A solver that stops at gradient norm ``gamma``
    leaves an error of gamma/a, covered by a second noise for 2 cover_alpha gamma/a more: one whose log-density changes
    by cover_alpha at most per unit of distance, such as D independent Laplace numbers of scale sqrt(D)/cover_alpha.

    Args:
        alpha: the rate of the noise: the larger, the less noise.
        classes: K.
        norm_bound_squared: R~^2: the square of the bound on the features' norm, plus 1 with a bias.
        n: records of a client.
        a: the weight of the quadratic term, which must be positive.
        gamma: the gradient norm at which the solver stops, for every data set; 0 for an exact minimum.
        cover_alpha: the rate of the noise that covers what the solver leaves; needed where gamma > 0.

    Returns:
        The epsilon of a round, at delta = 0. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or arrays of lengths that do not fit.

    >>> objective_round_epsilon(alpha=20, classes=2, norm_bound_squared=2, n=224, a=0.5)
    0.3660318
    """
    found = loss_round_epsilon(
        loss=_softmax(classes),
        alpha=alpha,
        norm_bound_squared=norm_bound_squared,
        n=n,
        a=a,
        gamma=gamma,
        cover_alpha=cover_alpha,
    )
    return plain(found)


def loss_round_epsilon(
    *,
    loss: GeneralisedLinear,
    alpha: ArrayLike,
    norm_bound_squared: float,
    n: ArrayLike,
    a: float,
    gamma: float = 0.0,
    cover_alpha: float = 0.0,
) -> Floats:
    """Return what :func:`objective_round_epsilon` returns for softmax regression, for any loss with a proof.

    >>> from upcycled.core.objective import one_logit_loss
    >>> float(loss_round_epsilon(loss=one_logit_loss(), alpha=14, norm_bound_squared=2, n=224, a=0.25))
    0.1856656
    """
    fixed, slope = _terms(loss, norm_bound_squared, n, a, gamma, cover_alpha)
    rate, fixed, slope = broadcast(alpha=numbers("alpha", alpha, above=0), n=fixed, _=slope)
    return np.asarray(rate * slope + fixed)


def objective_epsilon(
    *,
    alpha: ArrayLike,
    classes: int,
    norm_bound_squared: float,
    n: ArrayLike,
    a: float,
    rounds: int,
    delta: float = 0,
    gamma: float = 0.0,
    cover_alpha: float = 0.0,
) -> float | Floats:
    """Return the epsilon of ``rounds`` rounds of objective perturbation of K-class softmax regression.

    Guarantee: replace-one, for features projected to ``norm_bound_squared`` = R~^2 (R^2 + 1 with a bias), a > 0, and
    the noise over all parameters; see :func:`objective_round_epsilon` for the solver's error. delta = 0 adds the
    rounds up; delta > 0 composes them optimally from their pure epsilons, for a schedule fixed in advance. Accounting
    that used the noise's distribution beyond its pure epsilon would be tighter.

    Args:
        alpha: the rate of the noise: the larger, the less noise.
        classes: K.
        norm_bound_squared: R~^2: the square of the bound on the features' norm, plus 1 with a bias.
        n: records of a client.
        a: the weight of the quadratic term, which must be positive.
        rounds: data rounds, M.
        delta: 0 for the plain sum of the rounds, more for their optimal composition.
        gamma: the gradient norm at which the solver stops, for every data set; 0 for an exact minimum.
        cover_alpha: the rate of the noise that covers what the solver leaves; needed where gamma > 0.

    Returns:
        The epsilon of all rounds. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or arrays of lengths that do not fit.

    >>> objective_epsilon(alpha=20, classes=2, norm_bound_squared=2, n=224, a=0.5, rounds=40)
    14.64127
    """
    each = objective_round_epsilon(
        alpha=alpha,
        classes=classes,
        norm_bound_squared=norm_bound_squared,
        n=n,
        a=a,
        gamma=gamma,
        cover_alpha=cover_alpha,
    )
    return _composed(np.asarray(each), rounds, delta)


def ranked_objective_epsilon(
    *, alpha: ArrayLike, u1: float, u2: float, rank: int, n: ArrayLike, a: float, rounds: int, delta: float = 0
) -> float | Floats:
    """Return the epsilon for any convex loss with per-sample gradients <= u1 and Hessians of norm <= u2 and given rank.

    2 alpha u1/n + rank ln(1 + u2/(n a)) a round, replace-one, minimisation exact; composed as in
    :func:`objective_epsilon`. Tighter than the paper's theorem for every u2, and without its condition.

    Args:
        alpha: the rate of the noise: the larger, the less noise.
        u1: what bounds the norm of a sample's gradient.
        u2: what bounds the norm of a sample's Hessian.
        rank: the rank of a sample's Hessian.
        n: records of a client.
        a: the weight of the quadratic term, which must be positive.
        rounds: data rounds, M.
        delta: 0 for the plain sum of the rounds, more for their optimal composition.

    Returns:
        The epsilon of all rounds. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or arrays of lengths that do not fit.

    >>> ranked_objective_epsilon(alpha=10, u1=1, u2=0.11, rank=1, n=224, a=0.5, rounds=80)
    7.221390
    """
    check_number("u1", u1, above=0)
    check_number("u2", u2, at_least=0)
    check_number("rank", rank, at_least=1, integer=True)
    check_number("a", a, above=0)
    rate, size = broadcast(alpha=numbers("alpha", alpha, above=0), n=numbers("n", n, at_least=1, integer=True))
    return _composed(2 * rate * u1 / size + rank * np.log1p(u2 / (size * a)), rounds, delta)


def objective_alpha(
    *,
    epsilon: float,
    classes: int,
    norm_bound_squared: float,
    n: ArrayLike,
    a: float,
    rounds: int,
    delta: float = 0,
    gamma: float = 0.0,
    cover_alpha: float = 0.0,
) -> float | Floats:
    """Return the largest noise rate alpha (the least noise) at which :func:`objective_epsilon` is ``epsilon``.

    Refused when the determinant and the solver's cover alone cost more than ``epsilon``: then no noise is enough, and a
    larger a or fewer rounds are needed.

    Args:
        epsilon: what all rounds together may cost.
        classes: K.
        norm_bound_squared: R~^2: the square of the bound on the features' norm, plus 1 with a bias.
        n: records of a client.
        a: the weight of the quadratic term, which must be positive.
        rounds: data rounds, M.
        delta: 0 for the plain sum of the rounds, more for their optimal composition.
        gamma: the gradient norm at which the solver stops, for every data set; 0 for an exact minimum.
        cover_alpha: the rate of the noise that covers what the solver leaves; needed where gamma > 0.

    Returns:
        The rate alpha. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or an epsilon that no noise reaches.

    >>> objective_alpha(epsilon=14.64127218, classes=2, norm_bound_squared=2, n=224, a=0.5, rounds=40)
    20.00000
    """
    found = loss_alpha(
        loss=_softmax(classes),
        epsilon=epsilon,
        norm_bound_squared=norm_bound_squared,
        n=n,
        a=a,
        rounds=rounds,
        delta=delta,
        gamma=gamma,
        cover_alpha=cover_alpha,
    )
    return plain(found)


def loss_alpha(
    *,
    loss: GeneralisedLinear,
    epsilon: float,
    norm_bound_squared: float,
    n: ArrayLike,
    a: float,
    rounds: int,
    delta: float = 0,
    gamma: float = 0.0,
    cover_alpha: float = 0.0,
) -> Floats:
    """Return what :func:`objective_alpha` returns for softmax regression, for any loss with a proof."""
    each = pure_round_epsilon(epsilon=epsilon, rounds=rounds, delta=delta)
    fixed, slope = _terms(loss, norm_bound_squared, n, a, gamma, cover_alpha)
    if np.any(fixed >= each):
        raise InputError(
            f"is {epsilon:g} (a round: {each:.3g}), but no noise reaches it, since the determinant term "
            f"and the solver's cover alone cost {np.max(fixed):.3g} a round; raise a or take fewer rounds",
            field="epsilon",
        )
    # One part in 10^12 less, so that recomputing epsilon stays within the budget.
    return np.asarray((each - fixed) / slope * (1 - 1e-12))


def _softmax(classes: int) -> GeneralisedLinear:
    check_number("classes", classes, at_least=2, integer=True)
    return softmax_loss(classes)


def _terms(
    loss: GeneralisedLinear, norm_bound_squared: float, n: ArrayLike, a: float, gamma: float, cover_alpha: float
) -> tuple[Floats, Floats]:
    """Return what a round costs whatever the noise, and what it costs per unit of alpha."""
    check_number("norm_bound_squared", norm_bound_squared, above=0)
    check_number("a", a, above=0)
    check_number("gamma", gamma, at_least=0)
    check_number("cover_alpha", cover_alpha, at_least=0)
    if gamma > 0 and cover_alpha == 0:
        raise InputError(
            f"is 0, but with gamma = {gamma:g} the solver's error must be covered by noise", field="cover_alpha"
        )
    size = numbers("n", n, at_least=1, integer=True)
    fixed = loss.rank * np.log1p(norm_bound_squared / (loss.spread * size * a)) + 2 * cover_alpha * gamma / a
    return np.asarray(fixed), np.asarray(2 * loss.lipschitz(norm_bound_squared) / size)


def _composed(each: Floats, rounds: int, delta: float) -> float | Floats:
    check_number("rounds", rounds, at_least=0, integer=True)
    check_number("delta", delta, at_least=0, below=1)
    if delta == 0:
        return plain(each * rounds)
    totals = [pure_composition_epsilon(epsilons=[value] * int(rounds), delta=delta) for value in each.ravel()]
    return plain(np.array(totals).reshape(each.shape))
