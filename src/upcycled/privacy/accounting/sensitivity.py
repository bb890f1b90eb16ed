"""How far one record can move what a client computes: L2 sensitivities, replace-one, client size n public.

L is the Lipschitz constant of a record's loss, S its smoothness, a the coefficient of the quadratic term (prox,
FedDyn's alpha, weight decay). All bounds hold for any starting point and any linear term that are functions of
earlier releases.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from upcycled.core.errors import InputError, check_number
from upcycled.core.objective import one_logit_loss, softmax_loss
from upcycled.privacy.accounting.numbers import Floats, broadcast, numbers, plain


def softmax_constants(
    *, classes: int, norm_bound: float, bias: bool, single_vector: bool = False
) -> tuple[float, float]:
    """Return (L, S) of softmax regression for features of norm <= ``norm_bound``; with a bias R~^2 = R^2 + 1.

    L = sqrt(2) R~ and S = R~^2/2 for K class vectors, the least constants that hold for every K >= 2 and every weight;
    a binary model with a single vector has L = R~, S = R~^2/4. A prox or weight decay must cover the bias too.

    Args:
        classes: K.
        norm_bound: R, which the features' norm does not exceed.
        bias: whether the model has one.
        single_vector: whether a binary model has one vector in the place of two.

    Returns:
        L and S.

    Raises:
        InputError: for a number out of its range, or a single vector for more than two classes.

    >>> softmax_constants(classes=2, norm_bound=1, bias=True)
    (2.0, 1.0)
    """
    check_number("classes", classes, at_least=2, integer=True)
    check_number("norm_bound", norm_bound, above=0)
    squared = float(norm_bound) ** 2 + (1.0 if bias else 0.0)
    if single_vector and classes != 2:
        raise InputError(field="classes", value=classes, but="a model with a single vector has 2")
    loss = one_logit_loss() if single_vector else softmax_loss(classes)
    return loss.lipschitz(squared), loss.smoothness(squared)


def erm_sensitivity(*, lipschitz: ArrayLike, n: ArrayLike, a: ArrayLike, gamma: ArrayLike = 0.0) -> float | Floats:
    """Return 2 L/(n a) + 2 gamma/a: the most one replaced record moves an approximate minimiser.

    Guarantee: for a convex loss, a > 0 and a solver whose gradient norm is at most ``gamma`` for every data set
    (rounding included). The first term is attained by a linear loss.

    Args:
        lipschitz: L, the Lipschitz constant of a record's loss.
        n: records of a client.
        a: the weight of the quadratic term, which must be positive.
        gamma: the gradient norm at which the solver stops, for every data set; 0 for an exact minimum.

    Returns:
        The sensitivity. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or arrays of lengths that do not fit.

    >>> erm_sensitivity(lipschitz=2, n=224, a=0.5)
    0.03571429
    """
    steep, size, strong, residual = broadcast(
        lipschitz=numbers("lipschitz", lipschitz, above=0),
        n=numbers("n", n, at_least=1, integer=True),
        a=numbers("a", a, above=0),
        gamma=numbers("gamma", gamma, at_least=0),
    )
    return plain(2 * steep / (size * strong) + 2 * residual / strong)


def gd_sensitivity(
    *,
    lipschitz: ArrayLike,
    n: ArrayLike,
    a: ArrayLike,
    steps: ArrayLike,
    smoothness: ArrayLike | None = None,
    step_size: ArrayLike | None = None,
) -> float | Floats:
    """Return (2 L/(n a)) (1 - (1 - eta a)^T): full-batch gradient descent with T steps fixed without looking at data.

    Guarantee: convex loss, a > 0, step eta <= 1/(S + a), which is checked when ``smoothness`` is given and is the
    default step; with ``step_size`` alone it is the caller's word. Stopping early for public reasons is covered.
    Attained by a linear loss.

    Args:
        lipschitz: L, the Lipschitz constant of a record's loss.
        n: records of a client.
        a: the weight of the quadratic term, which must be positive.
        steps: T, fixed without looking at data.
        smoothness: S, the smoothness of a record's loss.
        step_size: eta; 1/(S + a) if left out.

    Returns:
        The sensitivity. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, a step that is too long, or neither smoothness nor step_size.

    >>> gd_sensitivity(lipschitz=2, n=224, a=0.5, smoothness=1, steps=10)
    0.03509495
    """
    strong = numbers("a", a, above=0)
    if smoothness is None and step_size is None:
        raise InputError("is None, but it or smoothness must be given", field="step_size")
    eta = 1 / (numbers("smoothness", 0.0 if smoothness is None else smoothness, at_least=0) + strong)
    if step_size is not None:
        limit, eta = broadcast(smoothness=eta, step_size=numbers("step_size", step_size, above=0))
        _refuse_large("step_size", eta, limit, "1/(smoothness + a)" if smoothness is not None else "1/a")
    steep, size, strong, count, eta = broadcast(
        lipschitz=numbers("lipschitz", lipschitz, above=0),
        n=numbers("n", n, at_least=1, integer=True),
        a=strong,
        steps=numbers("steps", steps, at_least=0, integer=True),
        step_size=eta,
    )
    return plain(2 * steep / (size * strong) * _one_minus_power(eta * strong, count))


def sgd_sensitivity(
    *,
    lipschitz: ArrayLike,
    lr: ArrayLike,
    passes: ArrayLike,
    batch: ArrayLike,
    n: ArrayLike | None = None,
    a: float = 0.0,
    smoothness: float | None = None,
) -> float | Floats:
    """Return how far one replaced record moves mini-batch SGD that goes through the data ``passes`` times (bolt-on).

    2 k L lr/batch for a convex loss and lr <= 2/(S + a); with a > 0 and lr <= 1/(S + a) each pass forgets the ones
    before and it is (2 lr L/batch) sum_{j<k} (1 - lr a)^(j floor(n/batch)), which needs ``n``. The limits on lr are
    checked when ``smoothness`` is given and are the caller's word otherwise. No momentum, no dropout; every record
    once a pass, in an order that does not depend on data and may be public; a short batch divides by the nominal
    batch. Not the tightest known: with secret orders and only the last iterate released, smaller bounds exist.

    Args:
        lipschitz: L, the Lipschitz constant of a record's loss.
        lr: the learning rate.
        passes: k, epochs.
        batch: the nominal batch.
        n: records of a client; needed where a > 0.
        a: the weight of the quadratic term, 0 for none.
        smoothness: S, the smoothness of a record's loss.

    Returns:
        The sensitivity. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, a learning rate that is too large, or a > 0 without n.

    >>> sgd_sensitivity(lipschitz=2, lr=0.05, passes=10, batch=32)
    0.0625
    >>> sgd_sensitivity(lipschitz=2, lr=0.05, passes=10, batch=32, n=224, a=0.5)
    0.03194298
    """
    check_number("a", a, at_least=0)
    rate = numbers("lr", lr, above=0)
    curvature = 0.0 if smoothness is None else float(smoothness)
    check_number("smoothness", curvature, at_least=0)
    if curvature + a > 0:
        _refuse_large("lr", rate, np.full_like(rate, 2 / (curvature + a)), "2/(smoothness + a)")
    if a > 0 and n is None:
        raise InputError(f"is None, but with a = {a:g} the client's number of records must be given", field="n")
    steep, rate, turns, size, records = broadcast(
        lipschitz=numbers("lipschitz", lipschitz, above=0),
        lr=rate,
        passes=numbers("passes", passes, at_least=0, integer=True),
        batch=numbers("batch", batch, at_least=1, integer=True),
        n=numbers("n", 1 if n is None else n, at_least=1, integer=True),
    )
    per_pass = np.floor(records / size)
    forgets = (a > 0) & (per_pass > 0) & (rate * (curvature + a) <= 1)
    shrink = np.where(forgets, rate * a, 0.5)  # the 0.5 only keeps the unused branch finite
    geometric = _one_minus_power(shrink, per_pass * turns) / _one_minus_power(shrink, np.maximum(per_pass, 1.0))
    return plain(2 * rate * steep / size * np.where(forgets, geometric, turns))


def gd_distance(*, lipschitz: float, smoothness: float, a: float, steps: int, linear_norm: float = 0.0) -> float:
    """Return ((L + ||b||)/a) (S/(S + a))^T: how far gradient descent from w may end from the minimiser.

    Holds for every data set with a convex loss, a > 0 and step 1/(S + a), b being the round's linear term.

    Args:
        lipschitz: L, the Lipschitz constant of a record's loss.
        smoothness: S, the smoothness of a record's loss.
        a: the weight of the quadratic term, which must be positive.
        steps: T.
        linear_norm: ||b||, of the round's linear term.

    Returns:
        The distance, in L2 norm.

    Raises:
        InputError: for a number out of its range.

    >>> gd_distance(lipschitz=2, smoothness=1, a=0.5, steps=50)
    6.273314e-09
    """
    check_number("lipschitz", lipschitz, above=0)
    check_number("smoothness", smoothness, at_least=0)
    check_number("a", a, above=0)
    check_number("steps", steps, at_least=0, integer=True)
    check_number("linear_norm", linear_norm, at_least=0)
    return float((lipschitz + linear_norm) / a * (smoothness / (smoothness + a)) ** steps)


def _one_minus_power(shrink: Floats, power: Floats) -> Floats:
    """1 - (1 - shrink)^power without losing the digits of a small shrink."""
    with np.errstate(divide="ignore"):
        logs = np.log1p(-shrink)
    # At shrink = 1 the logarithm is -inf, and zero steps still move nothing.
    exponent = np.where(power > 0, power, 1.0) * logs
    result: Floats = np.where(power > 0, -np.expm1(exponent), 0.0)
    return result


def _refuse_large(field: str, value: Floats, limit: Floats, words: str) -> None:
    if np.any(value > limit * (1 + 1e-12)):
        worst = np.unravel_index(np.argmax(value - limit), value.shape)
        raise InputError(field=field, value=value[worst], must=f"at most {words} = {limit[worst]:g}")
