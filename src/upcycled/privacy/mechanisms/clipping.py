"""Clipping what leaves a client and adding Gaussian noise: sound for every model and every algorithm.

One client's clipped vector moves by at most 2 clip_norm, whatever happens to its data, so the sensitivity is 2
clip_norm for one replaced record as for all of them (client-level local privacy too), and it does not shrink with n.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from upcycled.core.errors import NOT_NEGATIVE, POSITIVE, check_fields
from upcycled.core.mechanism import Fitted, NoiseSource, Promise, Release, Setting, Trained
from upcycled.core.sampler import Cohort
from upcycled.core.vectors import Ints, Real, Vector
from upcycled.privacy.ledger.paper_claim import PaperOutput
from upcycled.privacy.mechanisms.adaptive_clipping import INSIDE, FollowReleases
from upcycled.privacy.mechanisms.gaussian_noise import GaussianNoise, gaussian_noise
from upcycled.privacy.mechanisms.requirements import CLIP_NORM, DELTA, check_delta, check_noise


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
            costs nothing (see `adaptive_clipping`). None keeps it where it is.
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
    check_delta(wanted.delta, setting.sizes)
    clip_norm = float(wanted.clip_norm)
    moves = np.full(setting.sizes.size, 2.0 * clip_norm)
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
