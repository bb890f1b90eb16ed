"""Objective perturbation as the paper runs it: its own numbers, and its experiments on models that are not convex."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from upcycled.core.mechanism import Fitted, NoiseSource, Promise, no_claim
from upcycled.core.sampler import Cohort
from upcycled.core.solvers import Problem
from upcycled.core.streams import Purpose
from upcycled.core.vectors import Real, Vector
from upcycled.privacy.ledger.paper_claim import PaperTilt
from upcycled.privacy.mechanisms.clipping import finite_or_sent
from upcycled.privacy.tilt_noise import gamma_norm_noise


def tilted(
    problem: Problem,
    size: int,
    cohort: Cohort,
    alpha: Real,
    prox_mu: float,
    noise: NoiseSource,
    longest: Real | float = np.inf,
) -> Problem:
    """Return the problem with prox_mu added to a and Gamma-norm noise of rate alpha to b, in float64."""
    tilt = gamma_norm_noise(noise, cohort.clients, size, alpha[cohort.rows], Purpose.OBJECTIVE, longest)
    return replace(problem, a=problem.a + prox_mu, b=tilt if problem.b is None else problem.b + tilt)


def paper_objective(name: str, alpha: Real, prox_mu: float, a: float) -> Fitted:
    """Return the paper's experiments on models that are not convex. Not private: no epsilon is claimed."""
    return Fitted(
        name=name,
        promise=Promise(
            "the model that SGD ends with on a randomly tilted objective (paper mode: not private, no epsilon is "
            "claimed)",
            (),
            is_claimed=False,
        ),
        problem=partial(_tilted_in_float32, alpha, prox_mu),
        release=finite_or_sent,
        charge=no_claim,
        prox_mu=prox_mu,
        alpha=alpha,
        paper=PaperTilt(alpha, a),
    )


def _tilted_in_float32(
    alpha: Real, prox_mu: float, problem: Problem, sent: Vector, cohort: Cohort, noise: NoiseSource
) -> Problem:
    """Add prox_mu to a and the noise to b, in the float32 of the engines' SGD."""
    found = tilted(problem, sent.size, cohort, alpha, prox_mu, noise)
    return replace(found, b=None if found.b is None else found.b.astype(np.float32))
