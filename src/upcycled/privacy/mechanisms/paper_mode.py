"""Objective perturbation as the paper runs it: its own numbers, and its experiments on models that are not convex."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from upcycled.core.mechanism import (
    Charge,
    NoiseSource,
    Promise,
    Release,
    Trained,
    average,
    keep_data,
    keep_solver,
)
from upcycled.core.sampler import Cohort
from upcycled.core.solvers import Problem
from upcycled.core.streams import Purpose
from upcycled.core.vectors import Ints, Real, Vector
from upcycled.privacy.ledger.paper_claim import PaperTilt
from upcycled.privacy.mechanisms.clipping import finite_or
from upcycled.privacy.noise import gamma_norm_noise


def tilted(problem: Problem, size: int, cohort: Cohort, alpha: Real, prox_mu: float, noise: NoiseSource) -> Problem:
    """Return the problem with prox_mu added to a and Gamma-norm noise of rate alpha to b, in float64."""
    tilt = gamma_norm_noise(noise, cohort.clients, size, alpha[cohort.rows], Purpose.OBJECTIVE)
    return replace(problem, a=problem.a + prox_mu, b=tilt if problem.b is None else problem.b + tilt)


@dataclass(frozen=True, eq=False)
class PaperObjective:
    """The paper's experiments on models that are not convex. Not private: no epsilon is claimed."""

    alpha: Real
    prox_mu: float
    a: float

    name: ClassVar[str] = "objective_perturbation"
    is_central: ClassVar[bool] = False
    draws_secretly: ClassVar[bool] = False
    shared: ClassVar[Mapping[str, float]] = {}
    promise: ClassVar[Promise] = Promise(
        "the model that SGD ends with on a randomly tilted objective (paper mode: not private, no epsilon is claimed)",
        (),
        is_claimed=False,
    )

    prepare = keep_data
    solver = keep_solver
    aggregate = average

    @property
    def paper(self) -> PaperTilt:
        """What the paper claims, with its own u1 and u2."""
        return PaperTilt(self.alpha, self.a)

    def problem(self, problem: Problem, sent: Vector, cohort: Cohort, noise: NoiseSource) -> Problem:
        """Add prox_mu to a and the noise to b, in the float32 of the engines' SGD."""
        found = tilted(problem, sent.size, cohort, self.alpha, self.prox_mu, noise)
        return replace(found, b=None if found.b is None else found.b.astype(np.float32))

    def charge(self, cohort: Cohort) -> Charge:
        """No guarantee."""
        return Charge("none", cohort.clients, np.zeros(cohort.rows.size), np.zeros(cohort.rows.size))

    def release(self, trained: Trained, sent: Vector, cohort: Cohort, num_samples: Ints, noise: NoiseSource) -> Release:
        """Pass the models on; one that is not finite gives way to the model received."""
        return Release(cohort.clients, finite_or(trained.vectors, sent), num_samples, trained.num_steps)

    def mean_noise_std(self, release: Release) -> float:
        """Not known."""
        return 0.0
