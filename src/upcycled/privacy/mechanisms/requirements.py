"""What mechanisms ask of their hyper-parameters, of the run, of the features and of float64 arithmetic.

What mechanisms ask of their hyper-parameters and of the run: each refusal is one sentence.

Features projected to a promised norm, sample by sample: the bound is made true, never trusted.

What float64 arithmetic adds to a certified solver: bounded by public numbers, so it is part of the promise.

Every bound is the textbook first-order one (each operation errs by a part u = 2^-53, a sum of m terms by m u of its
absolute terms), doubled for what is of second order.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from upcycled._utils.formats import fixed, general, significant
from upcycled.core.errors import DivergedError, InputError, Limits
from upcycled.core.mechanism import Setting
from upcycled.core.objective import PROVEN_LOSSES, GeneralisedLinear
from upcycled.core.solvers import LocalSGD
from upcycled.core.vectors import Ints, Real, Shards, Vector

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
            f"{PROVEN_LOSSES}: its bound on what a record can change is proven for these convex losses only"
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
    stragglers = setting.participation.stragglers
    if stragglers > 0:
        raise InputError(f"{owner} must finish its minimisation, but stragglers is {stragglers!r}: it must be 0 here")


def rounds_paid(setting: Setting) -> Ints:
    """Return the data rounds each client is calibrated to: its own in the public schedule, at least one."""
    return np.maximum(setting.rounds, 1)


_CHUNK = 1 << 22
"""Numbers worked on at a time: data sets may be memory-mapped."""
FAR_APART = 100
"""How many times a feature may be as large as another before somebody should know."""


def project(train: Shards, norm_bound: float) -> Shards:
    """Return the data with each sample's features scaled down to norm ``norm_bound`` at most.

    A sample with a feature that is not finite becomes zero, and so does a target: nothing a client holds may show by
    failing. Norms are computed in float64 and the bound holds for the float32 result.

    >>> shards = Shards(np.array([[3.0, 4.0], [0.1, 0.0], [np.nan, 1.0]]), np.zeros(3, dtype=int), np.array([0, 3]))
    >>> project(shards, 1.0).x.round(3).tolist()
    [[0.6, 0.8], [0.1, 0.0], [0.0, 0.0]]
    """
    rows, width = train.x.shape[0], int(np.prod(train.x.shape[1:]))
    found = np.empty(train.x.shape, dtype=np.float32)
    flat_in, flat_out = train.x.reshape(rows, width), found.reshape(rows, width)
    step = max(1, _CHUNK // max(width, 1))
    for first in range(0, rows, step):
        exact = flat_in[first : first + step].astype(np.float64)
        exact[~np.isfinite(exact).all(axis=1)] = 0.0
        # Divided by its largest entry first, so that squares neither overflow nor vanish.
        largest = np.abs(exact).max(axis=1, initial=0.0)
        scaled = exact / np.maximum(largest, 1e-300)[:, None]
        norms = largest * np.sqrt(np.einsum("rd,rd->r", scaled, scaled)) * (1 + width * 2.0**-52)
        # 2^-22 leaves room for the rounding to float32 that follows.
        shrink = np.where(norms > norm_bound, norm_bound * (1 - 2.0**-22) / np.maximum(norms, norm_bound), 1.0)
        flat_out[first : first + step] = exact * shrink[:, None]
    if train.y.dtype.kind != "f" or np.isfinite(train.y).all():
        return replace(train, x=found)
    return replace(train, x=found, y=np.where(np.isfinite(train.y), train.y, 0).astype(train.y.dtype))


def about_projection(train: Shards, norm_bound: float) -> tuple[str, ...]:
    """Return what is to be said of features that will be projected, a sentence each; it follows from the data.

    >>> far = Shards(np.array([[3.0, 400.0], [2.0, 500.0]]), np.zeros(2, dtype=int), np.array([0, 2]))
    >>> for words in about_projection(far, 1.0):
    ...     print(words)
    norm_bound 1 scales 100 % of the training samples down: ... or give a larger norm_bound
    feature 1 is 178 times as large as feature 0, ... so that their scales are alike
    """
    rows, width = train.x.shape[0], int(np.prod(train.x.shape[1:]))
    found: list[str] = []
    if not rows or not width or train.x.dtype.kind not in "fiu":
        return ()
    clipped, squares, there = 0, np.zeros(width), np.zeros(width, dtype=np.int64)
    for part in _parts(train, rows, width):
        with np.errstate(over="ignore", invalid="ignore"):
            square = np.nan_to_num(part * part, nan=0.0)
            clipped += int((square.sum(axis=1) > norm_bound**2).sum())
            squares += square.sum(axis=0)
        there += np.count_nonzero(square, axis=0)
    if clipped > rows / 2:
        found.append(
            f"norm_bound {general(norm_bound)} scales {fixed(clipped / rows, 0, 100)} % of the training samples down: "
            "what tells samples apart by their length is lost; scale features, or give a larger norm_bound"
        )
    # Of a feature that is mostly 0, as a pixel or a word is, the size where it is not.
    sizes: Real = np.sqrt(squares[there > 0] / there[there > 0])
    names = np.flatnonzero(there)
    if sizes.size and np.isfinite(sizes).all() and sizes.max() > FAR_APART * sizes.min():
        least, most = int(sizes.argmin()), int(sizes.argmax())
        times = significant(float(sizes[most] / sizes[least]), 3)
        found.append(
            f"feature {names[most]} is {times} times as large as feature {names[least]}, and samples are scaled down "
            "by the norm of all their features: scale them so that their scales are alike"
        )
    return tuple(found)


def _parts(train: Shards, rows: int, width: int) -> Iterator[Real]:
    flat, step = train.x.reshape(rows, width), max(1, _CHUNK // width)
    for first in range(0, rows, step):
        yield flat[first : first + step].astype(np.float64)


ROUNDING = 1e-5
"""The part by which sensitivities of solvers are enlarged to cover rounding."""

UNIT = 2.0**-53
"""u, by a part of which each operation in float64 errs."""


@dataclass(frozen=True)
class LossConstants:
    """A linear model's loss on features of norm <= R: L, S and R~, and the sizes that rounding errors grow with."""

    loss: GeneralisedLinear
    lipschitz: float
    smoothness: float
    radius: float
    """R~, with R~^2 = R^2 + 1 for a bias."""
    inputs: int

    def step_error(self, terms: Ints, model_norm: float, linear_norm: Real, a: float, lr: float, reach: Real) -> Real:
        """Bound the norm of all rounding in one step of x <- x - lr (mean gradient + a (x - w) + b), over lr.

        ``terms`` are the samples in a sum; x stays within ``reach`` of w. Outputs err by (d + 4) u ||x|| R~, and so
        derivatives by them by ``curvature`` times that: softmax probabilities by twice that and K + 10 more,
        relatively; a sigmoid by 10u at most; Huber's, which is a difference cut off, by 3u of the most that it can be.
        The mean errs by (terms + 2) u L; the corrections and the update by a few u of what they add up.
        """
        size = model_norm + reach
        # 1 for softmax: at least its curvature doubled, and the norm of a derivative that is as far off as can be.
        scale = max(2 * self.loss.curvature, float(np.sqrt(self.loss.slope_squared / 2)))
        gradient = 4 * self.radius * scale * ((self.inputs + 4) * size * self.radius + self.loss.outputs + 10)
        gradient = gradient + (terms + 2) * self.lipschitz
        others = 4 * a * reach + 4 * (self.lipschitz + linear_norm) + size / lr
        error: Real = 2 * UNIT * (gradient + others)
        return error


def constants_of(setting: Setting, loss: GeneralisedLinear, norm_bound: float) -> LossConstants:
    """Return the constants of the run's loss on features projected to ``norm_bound``."""
    squared = float(norm_bound) ** 2 + (1.0 if setting.has_bias else 0.0)
    lipschitz, smoothness = loss.lipschitz(squared), loss.smoothness(squared)
    return LossConstants(loss, lipschitz, smoothness, float(np.sqrt(squared)), setting.num_parameters // loss.outputs)


def check_covered(error: Real, allowed: Real, model_norm: float) -> None:
    """Stop the run where the public vectors have grown so large that rounding is no longer covered."""
    if not (error <= allowed).all():
        raise DivergedError(
            f"the global model or a linear term has grown so far (the model's norm is {model_norm:.3g}) that rounding "
            "in the certified solver is no longer covered by its promise: take less noise, a larger prox_mu or gamma"
        )


def norms(vectors: Vector | None, rows: int) -> Real:
    """Return the norms of the rows of b, zero where there is none."""
    if vectors is None:
        return np.zeros(rows)
    found: Real = np.sqrt(np.einsum("cd,cd->c", vectors, vectors, dtype=np.float64))
    return found
