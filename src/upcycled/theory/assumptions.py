"""What Theorem 1 needs of a run, and whether the run has it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from upcycled.support.formats import general
from upcycled.theory.terms import Terms

EXACT = 1e-3
"""A local solution counts as exact if it leaves at most this share of the gradient it started with."""


@dataclass(frozen=True)
class ProblemFacts:
    """What the theorem must know about a run, beside its measured terms."""

    algorithm: str
    mu: float | None
    """FedProx's mu; None for other algorithms."""
    cohort: int | None
    """Clients drawn in a data round; None if all take part."""
    is_unbiased: bool
    """Whether the mean of the cohort has the mean of all clients as its expectation."""
    smoothness: float | None
    """L for all parameters; None if it is not known."""
    curvature: float | None
    """The lowest curvature of the F_i for all parameters; None if it is not known."""
    mechanism: str = "none"
    floor: float = 0.0
    """Below f*: a cross-entropy is never negative."""


@dataclass(frozen=True)
class Assumption:
    """One thing that the theorem needs, and whether this run has it."""

    name: str
    holds: bool
    words: str


def assumptions_of(facts: ProblemFacts, t: Terms, rho: float | None) -> tuple[Assumption, ...]:
    """Hold a run against everything that the theorem needs, but for C1 > 0."""
    B, worst = t.largest_dissimilarity, float(np.max(t.inexactness))
    is_scalar = bool(np.isfinite(t.coefficient).all() and (t.coefficient <= 1).all())
    local = f"clients leave {general(worst, 2)} of the gradient they start with"
    if math.isnan(worst):
        local = "what clients leave of their gradients was not measured"
    elif worst > EXACT and facts.cohort is None:
        local += "; that is in the bound"
    if facts.mechanism != "none":
        local += f"; the noise of {facts.mechanism} counts as that (simulated)"
    drawn = "all clients take part in every round"
    if facts.cohort is not None:
        drawn = f"{facts.cohort} clients a round, " + (
            "drawn without looking at them, all of one size; the theorem is about the expectation"
            if facts.is_unbiased
            else "but their weighted mean is not unbiased (the proof draws by p_i, or needs clients of one size)"
        )
    return (
        Assumption(
            "FedProx with mu > 0",
            facts.mu is not None and facts.mu > 0,
            f"{facts.algorithm}" + ("" if facts.mu is None else f", mu = {general(facts.mu)}"),
        ),
        Assumption(
            "one upcycled iteration a round, coefficient mu/(mu + lambda_m)",
            is_scalar,
            f"coefficients {general(t.coefficient.min(), 3)} to {general(t.coefficient.max(), 3)}"
            if is_scalar
            else "the coefficients are not single numbers from 0 to 1",
        ),
        Assumption(
            "every F_i is L-smooth",
            facts.smoothness is not None,
            f"L = {general(facts.smoothness, 4)}, for all parameters"
            if facts.smoothness is not None
            else "no L is known for all parameters of this model; give report(smoothness=...)",
        ),
        Assumption(
            "F_i + mu/2 ||. - w||^2 is rho-strongly convex",
            rho is not None and rho > 0,
            _about_rho(facts, rho),
        ),
        Assumption("clients are B-dissimilar", math.isfinite(B), f"B = {general(B, 4)} is the largest along this run"),
        Assumption("clients of a round", facts.cohort is None or facts.is_unbiased, drawn),
        Assumption("exact local minimisers", worst <= EXACT or (facts.cohort is None and not math.isnan(worst)), local),
    )


def _about_rho(facts: ProblemFacts, rho: float | None) -> str:
    if rho is not None:
        return f"rho = {general(rho, 4)}"
    if facts.mu is None:
        return "there is no mu"
    return "the curvature of the F_i is not known for all parameters; give report(curvature=...)"
