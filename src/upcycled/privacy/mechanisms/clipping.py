"""Clipping what leaves a client and adding Gaussian noise: sound for every model and every algorithm.

Bounds that follow the clients' updates: charged noisy counts at a trusted server, or local releases, for nothing.

**Scale.** A round at scale s divides updates u_i by s, hands them to the mechanism as it was fitted, whose bound is C,
and multiplies what comes out by s. The bound is then s C, and the noise grows and shrinks with it. s is a function of
what was released before, so dividing is part of the question asked of the data and multiplying is post-processing: a
round costs what it costs at s = 1, whatever s is. For Gaussian noise a question may depend on earlier answers (sums of
squares are a filter: Smith and Thakurta 2022), and for sampled releases every question has the same dominating pair.
So ledgers, calibration and budgets are those of the fixed bound, exactly.

**Central** (Andrew et al. 2021, arXiv:1905.03871). Beside the sum of clipped updates the server publishes how many
clients are below the bound, b~ = (sum_i b_i + N(0, sigma_b^2)) / m with b_i = 1 where u_i was not clipped, and then

    s <- s exp(-rate (b~ - quantile) / (1 + v^2)),     v = sigma_b / m.

Replacing a client moves the sum by 2 C and the count by 1. Divided by their stds, the two are one Gaussian vector with
std 1, and a client moves it by mu with mu^2 = (2 C / std)^2 + 1 / sigma_b^2. Secret Poisson draws: with b_i - 1/2 in
the place of b_i (the 1/2 is put back by the public m), a client that takes part adds a vector of norm at most
sqrt((C / std)^2 + (1 / (2 sigma_b))^2), and one that does not adds zero, as the sampled analysis asks. With z the
noise multiplier that is charged, std = z_delta C and share the count's part of the squares, either way

    z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2) = z / sqrt(1 - share),     sigma_b = z / (2 sqrt(share)).

**Local**, from releases. A release is u + noise with ||u|| <= s C, so ||r_i - w||^2 / (s C)^2 - D (std_i / C)^2 has
the mean f_i = (||u_i|| / (s C))^2: how much of the bound's square the update fills, 1 where it was clipped. Its
variance is at most v_i^2 = 2 D (std_i / C)^4 + 4 (std_i / C)^2. With f^ the mean over m clients, v^2 its variance,

    s <- s exp(rate (f^ - fill) / (1 + v^2)).

In both, 1 / (1 + v^2) is how much of the measured number is signal: where its noise is larger than what it measures
(few clients, or a small epsilon) the bound stays about where it is, and does not walk at random.

One client's clipped vector moves by at most 2 clip_norm, whatever happens to its data, so the sensitivity is 2
clip_norm for one replaced record as for all of them (client-level local privacy too), and it does not shrink with n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import NOT_NEGATIVE, POSITIVE, InputError, Limits, check_fields
from upcycled.core.mechanism import Fitted, NoiseSource, Promise, Release, Setting, Trained
from upcycled.core.randomness import Purpose
from upcycled.core.sampling import Cohort
from upcycled.core.vectors import Ints, Real, Vector, grid_scale, grid_step
from upcycled.privacy.ledger.entries import PaperOutput
from upcycled.privacy.mechanisms.gaussian_noise import GaussianNoise, gaussian_noise
from upcycled.privacy.mechanisms.requirements import CLIP_NORM, DELTA, check_delta, check_noise

INSIDE: Final = Limits(above=0, below=1)
FARTHEST = 2.0**20
"""A scale stays between 1 over it and it: beyond, float32 models are no longer moved, or are nothing but noise."""
BELOW = 1 - 1e-6
"""An update counts as below the bound up to this part of it: a clipped one is at it, to the last bits."""


def moved(scale: float, rate: float, away: float, variance: float) -> float:
    """Return scale exp(rate away / (1 + variance)), by a factor of e at most and within the limits of a scale.

    >>> moved(1.0, 0.2, 0.0, 0.0), round(moved(2.0, 0.2, -0.5, 1.0), 6), moved(FARTHEST, 9.0, 1.0, 0.0) == FARTHEST
    (1.0, 1.902459, True)
    """
    by = float(np.clip(rate * away / (1 + variance), -1.0, 1.0))
    return float(np.clip(scale * math.exp(by), 1 / FARTHEST, FARTHEST)) if math.isfinite(by) else scale


@dataclass(frozen=True)
class NoisyCount:
    """How many clients are below the bound, published with noise, and how the bound follows it."""

    quantile: float
    rate: float
    noise_std: float
    """sigma_b."""
    expected: float
    """m, the public denominator."""
    is_centred: bool
    """Whether 1/2 is taken off each client's bit, for secret draws."""

    def __post_init__(self) -> None:
        # Bits are then whole numbers of steps: rounding to the grid moves none of them.
        if float(grid_step(np.array([self.noise_std]))[0]) > 0.5:
            raise InputError(
                field="count_share",
                but=f"the count's noise would be {self.noise_std:g}: it must have more of the noise",
            )

    def fraction(self, is_below: NDArray[np.bool_], used: int, noise: NoiseSource) -> float:
        """Return b~; ``used`` numbers of the server's stream were taken before, for the sum."""
        bits = is_below.astype(np.float64) - (0.5 if self.is_centred else 0.0)
        std, server = np.array([self.noise_std]), np.zeros(1, dtype=np.int64)
        step = float(grid_step(std)[0])
        total = float(bits.sum())
        if step > 0:
            start = used + used % 2  # whole pairs of uniforms
            drawn = noise.gaussian_steps(server, 1, grid_scale(std), Purpose.CENTRAL, start)[0, 0]
            total = step * (np.rint(total / step) + float(drawn))
        return total / self.expected + (0.5 if self.is_centred else 0.0)

    def next_scale(self, scale: float, fraction: float) -> float:
        """Return the scale of the next round.

        >>> rule = NoisyCount(quantile=0.5, rate=0.2, noise_std=0.0, expected=10.0, is_centred=False)
        >>> round(rule.next_scale(1.0, fraction=1.0), 6)  # nobody is clipped: a smaller bound
        0.904837
        """
        return moved(scale, self.rate, self.quantile - fraction, (self.noise_std / self.expected) ** 2)


@dataclass(frozen=True)
class FollowReleases:
    """How a bound follows local releases."""

    fill: float
    rate: float
    clip_norm: float
    """C, the first bound."""

    def next_scale(self, scale: float, updates: Real, noise_std: Real) -> float:
        """Return the scale of the next round, from a cohort's released updates and their known noise.

        ``noise_std`` has an entry a client: what the round at scale 1 would have.

        >>> rule = FollowReleases(fill=0.5, rate=0.2, clip_norm=1.0)
        >>> round(rule.next_scale(1.0, np.array([[0.0, 1.0], [1.0, 0.0]]), np.zeros(2)), 6)  # all fill it: a larger one
        1.105171
        """
        if not len(updates):
            return scale
        bound, size = scale * self.clip_norm, updates.shape[-1]
        noise = np.square(noise_std / self.clip_norm)
        filled = np.einsum("cd,cd->c", updates, updates) / bound**2 - size * noise
        variance = float((2 * size * noise**2 + 4 * noise).mean()) / len(updates)
        return moved(scale, self.rate, float(filled.mean()) - self.fill, variance)


def clip(vectors: Vector, clip_norm: float) -> Real:
    """Scale each vector down to norm ``clip_norm`` at most, in float64; a non-finite vector becomes zero.

    >>> clip(np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1.0]], dtype=np.float32), 1.0).round(3).tolist()
    [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]
    """
    exact = vectors.astype(np.float64)
    norms = np.sqrt(np.einsum("...d,...d->...", exact, exact))
    if not np.isfinite(norms).all():  # a float64 norm of finite float32 numbers is finite
        exact[~np.isfinite(norms)] = 0.0
        norms = np.where(np.isfinite(norms), norms, 0.0)
    # A little more than the computed norm is not less than the true one.
    norms *= 1 + exact.shape[-1] * 2.0**-52
    exact /= np.maximum(1.0, norms / clip_norm)[..., None]
    return exact


def finite_or_sent(trained: Trained, sent: Vector, cohort: Cohort, num_samples: Ints, noise: NoiseSource) -> Release:
    """Release the models as they are; one that is not finite gives way to the model received."""
    vectors = np.where(np.isfinite(trained.vectors).all(axis=-1, keepdims=True), trained.vectors, sent)
    return Release(cohort.clients, vectors, num_samples, trained.num_steps)


@dataclass(frozen=True)
class ModelClipping:
    """The paper's output perturbation: release = clip(w_i, clip_norm) + N(0, noise_std^2 I).

    Guarantee: (epsilon, delta)-DP for one replaced record, by the exact Gaussian formula with sensitivity 2
    clip_norm, against whoever sees every release. Needs nothing of model or algorithm. The paper's own claim
    (clip_norm / n per record, reported as ``paper_epsilon``) assumes that the clipped model is a mean of n per-sample
    terms, which clipping a trained model does not give.

    Give ``noise_std``, or ``epsilon`` and ``delta``: the noise is then calibrated to each client's rounds in the public
    schedule, or to the largest of them for all with ``per_client=False``. delta > 1/(10 n) gets a warning.

    Args:
        clip_norm: the norm that a model is scaled down to.
        noise_std: the noise's standard deviation per coordinate; or
        epsilon: what each client may spend in all, and
        delta: the delta that goes with it.
        per_client: whether each client gets the least noise that serves it, or all get the same.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> privacy = up.privacy.ModelClipping(clip_norm=1.0, epsilon=2.0, delta=1e-4)
    >>> run = up.train(data, algorithm=up.FedAvg(), privacy=privacy, iterations=2, progress=False)
    >>> round(run.privacy.max_epsilon(1e-4), 6)
    2.0
    """

    clip_norm: Annotated[float, CLIP_NORM]
    noise_std: Annotated[float, NOT_NEGATIVE] | None = None
    epsilon: Annotated[float, POSITIVE] | None = None
    delta: Annotated[float, DELTA] | None = None
    per_client: bool = True

    name: ClassVar[str] = "model_clipping"

    def __post_init__(self) -> None:
        check_fields(self)
        check_noise("ModelClipping", "noise_std", self.noise_std, self.epsilon, self.delta)

    def fit(self, setting: Setting) -> Fitted:
        """Any model and algorithm will do."""
        return _fit(self, setting, is_update=False)[0]


@dataclass(frozen=True)
class UpdateClipping:
    """Clip the update instead of the model: release = w + clip(w_i - w, clip_norm) + N(0, noise_std^2 I).

    Guarantee, needs and calibration as for :class:`ModelClipping`; updates shrink as training converges, so a smaller
    clip_norm, and with it less noise, loses little.

    Args:
        clip_norm: the norm that an update is scaled down to.
        noise_std: the noise's standard deviation per coordinate; or
        epsilon: what each client may spend in all, and
        delta: the delta that goes with it.
        per_client: whether each client gets the least noise that serves it, or all get the same.
        fill: how much of the bound's square updates are to fill, on average; the bound then follows the releases, which
            costs nothing (see the top of this module). None keeps it where it is.
        adapt_rate: how fast it follows.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> privacy = up.privacy.UpdateClipping(clip_norm=0.1, epsilon=2.0, delta=1e-4)
    >>> run = up.train(data, algorithm=up.FedAvg(), privacy=privacy, iterations=2, progress=False)
    >>> round(run.privacy.max_epsilon(1e-4), 6)
    2.0
    """

    clip_norm: Annotated[float, CLIP_NORM]
    noise_std: Annotated[float, NOT_NEGATIVE] | None = None
    epsilon: Annotated[float, POSITIVE] | None = None
    delta: Annotated[float, DELTA] | None = None
    per_client: bool = True
    fill: Annotated[float, INSIDE] | None = None
    adapt_rate: Annotated[float, POSITIVE] = 0.2

    name: ClassVar[str] = "update_clipping"

    def __post_init__(self) -> None:
        check_fields(self)
        check_noise("UpdateClipping", "noise_std", self.noise_std, self.epsilon, self.delta)

    def fit(self, setting: Setting) -> Fitted:
        """Any model and algorithm will do."""
        fitted, clipped = _fit(self, setting, is_update=True)
        if self.fill is None:
            return fitted
        rule = FollowReleases(float(self.fill), float(self.adapt_rate), float(self.clip_norm))
        follows = (f"the bound begins at {self.clip_norm:g} and follows releases alone, and the noise follows it",)
        promise = replace(fitted.promise, checked=follows)
        return replace(fitted, promise=promise, adaptive=AdaptiveUpdates(clipped, rule))


def _fit(wanted: ModelClipping | UpdateClipping, setting: Setting, is_update: bool) -> tuple[Fitted, Clipped]:
    check_delta(wanted.delta, setting.facts.sizes)
    clip_norm = float(wanted.clip_norm)
    moves = np.full(setting.facts.sizes.size, 2.0 * clip_norm)
    noise = gaussian_noise(setting, moves, wanted.noise_std, wanted.epsilon, wanted.delta, wanted.per_client)
    what = "the clipped update on top of the model received" if is_update else "the clipped model"
    bounded = f"every release is clipped to norm {clip_norm:g}"
    clipped = Clipped(clip_norm, is_update, noise)
    fitted = Fitted(
        name=wanted.name,
        promise=Promise(f"{what}, with Gaussian noise", (bounded,), delta=wanted.delta),
        release=clipped.release,
        charge=noise.charge,
        mean_noise_std=noise.mean_std,
        release_noise_std=noise.release_std,
        shared=noise.shared,
        # The paper has nothing to say about updates.
        paper=None if is_update else PaperOutput(clip_norm, noise.noise_std),
    )
    return fitted, clipped


@dataclass(frozen=True, eq=False)
class Clipped:
    """What leaves a client of a clipping mechanism."""

    clip_norm: float
    is_update: bool
    noise: GaussianNoise
    scale: float = 1.0
    """Of an adaptive bound: the update is divided by it, and clipped and noisy multiplied again."""

    def release(self, trained: Trained, sent: Vector, cohort: Cohort, num_samples: Ints, noise: NoiseSource) -> Release:
        """Clip in float64, add the client's own noise on its grid, and only then round to float32."""
        start = sent.astype(np.float64) if self.is_update else None
        values = trained.vectors if start is None else (trained.vectors - start) / self.scale
        vectors = self.noise.add(clip(values, self.clip_norm), cohort, noise)
        if start is not None:
            # The model received is public; rounded to the same grid it leaves the release on it.
            vectors *= self.scale
            vectors += self.noise.rounded(start, cohort) if self.scale == 1 else start
        return Release(cohort.clients, vectors.astype(np.float32), num_samples, trained.num_steps)

    def mean_std(self, release: Release) -> float:
        """Return the noise in the mean weighted by n_i."""
        return self.scale * self.noise.mean_std(release)

    def release_std(self, release: Release) -> Real:
        """Return each release's noise per coordinate."""
        return self.scale * self.noise.release_std(release)


@dataclass(frozen=True, eq=False)
class AdaptiveUpdates:
    """Clipped updates whose bound follows releases."""

    clipped: Clipped
    rule: FollowReleases

    def at(self, fitted: Fitted, scale: float) -> Fitted:
        """Return the mechanism of a round at this scale: its charge is the same."""
        now = replace(self.clipped, scale=scale)
        return replace(fitted, release=now.release, mean_noise_std=now.mean_std, release_noise_std=now.release_std)

    def after(self, scale: float, release: Release, sent: Vector, noise: NoiseSource) -> float:
        """Return the next round's scale: a function of the releases and public numbers."""
        updates = release.vectors.astype(np.float64) - sent
        return self.rule.next_scale(scale, updates, self.clipped.noise.release_std(release))
