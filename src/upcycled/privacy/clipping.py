"""Clipping, and the paper's output perturbation: clip the model, add Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from upcycled.core.errors import check_number
from upcycled.core.release import (
    Charge,
    NoiseSource,
    Release,
    Setting,
    Trained,
    average,
    keep_data,
    keep_problem,
    keep_solver,
)
from upcycled.core.vectors import Ints, Real, Vector


def clip(vectors: Vector, clip_norm: float) -> Real:
    """Scale each vector down to norm ``clip_norm`` at most, in float64; a non-finite vector becomes zero.

    >>> clip(np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1.0]], dtype=np.float32), 1.0).round(3).tolist()
    [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]
    """
    exact = vectors.astype(np.float64)
    exact[~np.isfinite(exact).all(axis=-1)] = 0.0
    norms = np.sqrt(np.einsum("...d,...d->...", exact, exact))
    exact /= np.maximum(1.0, norms / clip_norm)[..., None]
    return exact


@dataclass(frozen=True)
class ModelClipping:
    """The paper's output perturbation: release = clip(w_i, clip_norm) + N(0, noise_std^2 I).

    Bounded for every model and data set: one client's release moves by at most 2 clip_norm, whatever its data. The
    paper's own claim (clip_norm / n per record) assumes that the clipped model is a mean of n per-sample terms, which
    clipping a trained model does not give.
    """

    clip_norm: float
    noise_std: float

    name: ClassVar[str] = "model_clipping"

    prepare = keep_data
    solver = keep_solver
    problem = keep_problem
    aggregate = average

    def __post_init__(self) -> None:
        check_number("ModelClipping clip_norm", self.clip_norm, above=0)
        check_number("ModelClipping noise_std", self.noise_std, at_least=0)

    @property
    def is_private(self) -> bool:
        """True."""
        return True

    def fit(self, setting: Setting) -> ModelClipping:
        """Any model will do."""
        return self

    def charge(self, clients: Ints) -> Charge:
        """A Gaussian release of sensitivity 2 clip_norm."""
        one = np.ones(clients.size)
        return Charge("gaussian", 2 * self.clip_norm * one, self.noise_std * one, 0 * one, one)

    def release(self, trained: Trained, sent: Vector, clients: Ints, num_samples: Ints, noise: NoiseSource) -> Release:
        """Clip in float64, then add the client's own noise."""
        vectors = clip(trained.vectors, self.clip_norm)
        vectors += self.noise_std * noise.normals(clients, vectors.shape[-1])
        return Release(clients, vectors.astype(np.float32), num_samples, trained.num_steps)

    def mean_noise_std(self, release: Release) -> float:
        """noise_std sqrt(sum p_i^2)."""
        shares = release.num_samples / release.num_samples.sum()
        return float(self.noise_std * np.sqrt((shares**2).sum()))
