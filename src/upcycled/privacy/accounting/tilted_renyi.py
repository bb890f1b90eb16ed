r"""Objective perturbation with Gaussian noise: a bound on the Renyi divergence of a round, replace-one, with its proof.

The client releases x = argmin F(x) + a/2 ||x - w||^2 + <b + n, x> with n ~ N(0, s^2 I) over all parameters. Let F and
F' be the mean losses of neighbours, phi(x) = -(grad F(x) + a (x - w) + b) the noise that makes x the minimiser, A = H
+ a I the Jacobian of -phi, and phi', A' those of the neighbour. As for any noise (``objective.py``) x has the density
p(x) = N(phi(x); 0, s^2 I) det A(x). For an order alpha > 1, D_alpha = ln(int p^alpha p'^(1-alpha)) / (alpha - 1).

**The exponent.** alpha |phi|^2 + (1-alpha) |phi'|^2 = |m|^2 - alpha (alpha-1) |phi - phi'|^2 with m = alpha phi +
(1-alpha) phi', and phi - phi' is the difference of the two records' gradients over n. So

    int p^alpha p'^(1-alpha)
        = int N(m; 0, s^2 I) e^(alpha (alpha-1) |phi - phi'|^2/(2 s^2)) det A^alpha det A'^(1-alpha).

**The substitution.** -m has the Jacobian B = alpha A + (1-alpha) A'. With h and h' the two records' Hessians and C >=
a I what both data sets share, A = C + h/n, A' = C + h'/n and B = C + (alpha h - (alpha-1) h')/n. No eigenvalue of
h'/(n a) exceeds kappa = S/(n a), so that for (alpha-1) kappa < 1 all of B are positive: -m is the gradient of a
strongly convex function, one to one, and int N(m; 0, s^2 I) det B dx <= 1. Hence

    (alpha-1) D_alpha <= sup_x [ alpha (alpha-1) |phi - phi'|^2/(2 s^2) + ln(det A^alpha det A'^(1-alpha) / det B) ].

**The determinants.** With U = C^(-1/2) h C^(-1/2)/n and V the same of h', both >= 0, C drops out of the ratio, and its
logarithm is alpha f(U) - (alpha-1) f(V) - f(alpha U - (alpha-1) V), f(X) = ln det(I + X). For X, Y >= 0 with Y < I, I
+ X - Y = (I+X)^(1/2) (I - Y~) (I+X)^(1/2), and the eigenvalues of Y~ are those of Y^(1/2) (I+X)^-1 Y^(1/2) <= Y: so
f(X - Y) >= f(X) + f(-Y), and the ratio is at most [alpha f(U) - f(alpha U)] + [-(alpha-1) f(V) - f(-(alpha-1) V)].
Both are sums over eigenvalues u and v of functions that are 0 at 0 and have the slopes

    alpha (alpha-1) u / ((1+u) (1+alpha u)) <= alpha (alpha-1) u,
    alpha (alpha-1) v / ((1+v) (1-(alpha-1) v)) <= alpha (alpha-1) v theta,    theta = 1/(1 - (alpha-1) kappa),

so that the logarithm is at most (alpha (alpha-1)/2) (||U||^2 + theta ||V||^2), Frobenius norms, ||U|| <= ||h||/(n a).

**Plainly**: |phi - phi'| <= 2 L/n and ||h|| <= S for the losses below, and with c = 4 L^2/(n s)^2

    D_alpha <= (alpha/2) [c + kappa^2 (1 + theta)],    1 < alpha < 1 + 1/kappa.

**Steep is flat.** A record's gradient and its Hessian are not both the largest at one x, and the supremum above is
over both together. As |phi - phi'|^2 <= 2 |g|^2 + 2 |g'|^2, the bracket is the sum of a share of each record: of one
(c/4) ||s||^2 + 4 kappa^2 ||C_z||^2 at most, of the other the same with theta kappa^2 for kappa^2, where s is the
derivative by the outputs and C_z the second one, for softmax s = p - y and C_z = diag p - p p'. With q = sum p_k^2,
||s||^2 <= 1 + q, smoothed labels too, and ||C_z||^2 = q - 2 sum p_k^3 + q^2 <= q - q^2, since sum p_k^3 >= q^2. So a
share is at most

    max over q in [0, 1] of (c/4) (1 + q) + 4 k q (1 - q),        k = kappa^2, or theta kappa^2,

which is c/2 if 16 k <= c, and else the value at q = 1/2 + c/(32 k). With two classes, or one logit, s and C_z follow
from one number r, the larger probability: ||s|| is r of its largest value at most and C_z 4 r (1-r) of its own, and
the share is

    max over r in [0, 1] of (c/2) r^2 + 16 k r^2 (1-r)^2,

at r = 1 or, where c < 4 k, at r = (3 - sqrt(1 - c/(4 k)))/4. Where both are c/2 the determinant costs nothing, and the
round is as a Gaussian release of sensitivity 2 L/n. Weights of classes multiply gradient and Hessian of a record
alike. Huber's loss is both steep and curved at its threshold, and is not taken here.

**What covers the solver.** Its remaining error has a second noise with pure epsilon_c a round
(``objective_cover.py``). The pair of minimiser and what leaves, of which the latter is a part, has D_alpha of the
first and at most min(epsilon_c, alpha epsilon_c^2/2) of the second. Divergences of rounds add up, chosen on the way or
not, and become epsilon by ``renyi.py``. ``tests/privacy/test_tilted_renyi.py`` integrates p^alpha p'^(1-alpha) in one
and two dimensions.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from upcycled.core.errors import InputError
from upcycled.core.vectors import Real
from upcycled.privacy.accounting.renyi import ORDERS, pure_renyi

_ROOM = 1e-12
_ORDERS = ORDERS[::8]
"""Fine enough: an order that is 4 % off costs a thousandth of epsilon."""


def tilted_renyi(
    *, squares: ArrayLike, curvature: ArrayLike, rank: ArrayLike, cover: ArrayLike, order: float | Real
) -> Real:
    """Return D_alpha of one round; infinite at orders that the bound does not reach.

    Args:
        squares: c = (2 L/(n s))^2.
        curvature: kappa = S/(n a).
        rank: of a record's Hessian: 1 with two classes.
        cover: epsilon_c.
        order: alpha.

    >>> found = tilted_renyi(squares=0.04, curvature=[0.01, 0.2], rank=2, cover=0.0, order=4.0)
    >>> found.round(4).tolist()  # 4/2 0.04; with much curvature more
    [0.08, 0.3404]
    """
    c, kappa = np.asarray(squares, dtype=np.float64), np.asarray(curvature, dtype=np.float64)
    left = 1 - (order - 1) * kappa
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        theta = np.where(left > 0, 1 / left, np.inf)
        shares = _share(c, kappa**2, rank) + _share(c, kappa**2 * theta, rank)
    found: Real = order / 2 * shares + pure_renyi(epsilon=cover, order=order)
    return np.where(left > 0, found, np.inf)


def _share(c: Real, k: Real, rank: ArrayLike) -> Real:
    """Return the most that one record adds to the bracket."""
    q = np.minimum(0.5 + c / (32 * k), 1.0)
    r = np.where(c < 4 * k, (3 - np.sqrt(np.maximum(1 - c / (4 * k), 0.0))) / 4, 1.0)
    several = c / 4 * (1 + q) + 4 * k * q * (1 - q)
    two = np.maximum(c / 2, c / 2 * r**2 + 16 * k * r**2 * (1 - r) ** 2)
    # Without curvature there is nothing to divide by.
    found: Real = np.where(k > 0, np.where(np.asarray(rank) == 1, two, several), c / 2)
    return found


def tilted_epsilon(*, squares: float, curvature: float, rank: int, cover: float, rounds: int, delta: float) -> float:
    """Return the epsilon of so many equal rounds at ``delta``, by the best order.

    >>> round(tilted_epsilon(squares=0.001, curvature=0.01, rank=1, cover=0.0, rounds=40, delta=1e-5), 3)
    0.794
    """
    each = tilted_renyi(squares=squares, curvature=curvature, rank=rank, cover=cover, order=_ORDERS)
    found = rounds * each + np.log1p(-1 / _ORDERS) - (np.log(delta) + np.log(_ORDERS)) / (_ORDERS - 1)
    return max(0.0, float(found.min()))


@lru_cache(maxsize=4096)  # runs with other seeds, and clients of one size, ask for the same numbers
def tilted_noise_std(
    *, moves: float, curvature: float, rank: int, cover: float, rounds: int, epsilon: float, delta: float
) -> float:
    """Return the least s for which ``rounds`` rounds cost ``epsilon`` at ``delta``.

    Args:
        moves: 2 L/n, by which a record changes the gradient.
        curvature: kappa.
        rank: of a record's Hessian.
        cover: epsilon_c of each round.
        rounds: M.
        epsilon: of all rounds.
        delta: likewise.

    Raises:
        InputError: if no noise is enough.

    >>> about = {"moves": 4 / 224, "curvature": 1 / 112, "rank": 1, "cover": 1e-3}
    >>> round(tilted_noise_std(**about, rounds=40, epsilon=2.0, delta=1e-5), 4)
    0.2429
    """

    def spent(std: float) -> float:
        squares = (moves / std) ** 2
        return tilted_epsilon(squares=squares, curvature=curvature, rank=rank, cover=cover, rounds=rounds, delta=delta)

    # epsilon falls as the noise grows, since shares grow with c.
    low, high = moves * 1e-6, moves * 1e-6
    while spent(high) > epsilon and high < moves * 1e12:
        low, high = high, 2 * high
    if spent(high) > epsilon:
        raise InputError(
            f"is {epsilon:g}, but no noise reaches it in {rounds} rounds: the curvature of a record, kappa = "
            f"{curvature:.3g}, costs more; raise a or take fewer rounds",
            field="epsilon",
        )
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high * (1 + _ROOM)
