"""What an audit reports: findings of probes, and a certified lower bound beside the claim.

What a probe found, and what it can find at all.

What an audit reports: a certified lower bound beside the claim, and which of the two is wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from upcycled._utils.formats import general, significant
from upcycled.core.errors import InputError
from upcycled.core.vectors import Ints
from upcycled.privacy import Ledger
from upcycled.privacy.charge_kinds import kind_of
from upcycled.privacy.mechanisms import PROVEN
from upcycled.training.plan import Plan

ROUNDING = 2.0**-20
"""Of a model's norm: models in float32 that lie closer together may differ by the rounding of their steps alone."""


@dataclass(frozen=True)
class Finding:
    """What one probe looked at, and whether that is wrong."""

    probe: str
    looked_at: str
    """What was gone through, in words."""
    wrong: str | None = None
    """What is wrong, in a sentence; None if nothing was found."""
    p_value: float | None = None
    """Of the worst test, corrected for their number; None where nothing is left to chance."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"probe": self.probe, "looked_at": self.looked_at, "wrong": self.wrong, "p_value": self.p_value}


@dataclass(frozen=True)
class Power:
    """The smallest fault of a kind that is found with probability 0.95."""

    probe: str
    fault: str
    least: float
    """How large it must be; infinite where none of this kind can be found, 0 where each is found for certain."""
    unit: str = ""
    """What ``least`` counts: "times", or "of the variance"."""

    @property
    def words(self) -> str:
        """The fault that is just large enough, in words."""
        if math.isinf(self.least):
            return "cannot be found here"
        if self.least == 0:
            return "any"
        return f"{significant(self.least, 3)} {self.unit}".rstrip()

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values; None stands for infinity."""
        least = None if math.isinf(self.least) else self.least
        return {"probe": self.probe, "fault": self.fault, "least": least, "unit": self.unit}


OWN = (
    "an audit works with the records themselves, many times, and is charged to nobody: what it prints is the data "
    "holder's own"
)


@dataclass(frozen=True)
class AuditedClaim:
    """What is claimed for the releases of one data round."""

    epsilon: float
    delta: float
    mu: float | None = None
    """Where the claim rests on the Gaussian formula."""
    paper_epsilon: float | None = None
    unit: str = "record"
    word: str = PROVEN
    """What the epsilon is: proven, or whose claim."""

    @property
    def title(self) -> str:
        """What stands over the number."""
        return f"claimed ({PROVEN})" if self.word == PROVEN else self.word

    @property
    def called(self) -> str:
        """What a sentence calls it."""
        return f"the {PROVEN} claim" if self.word == PROVEN else f"what is {self.word}"


@dataclass(frozen=True)
class Audit:
    """What an attack found, beside what is claimed."""

    title: str
    claim: AuditedClaim
    tested: str
    """``"proven"`` or ``"paper"``."""
    epsilon_lower: float
    """With 95% confidence no smaller epsilon is true."""
    details: dict[str, Any]
    mu_lower: float | None = None
    is_noiseless: bool = False
    """Whether all releases of a world were the same while the worlds differed."""
    upcycled: str | None = None
    """What is wrong with upcycled iterations; None if nothing is, or there are none."""
    checked_upcycled: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def is_broken(self) -> bool:
        """Whether the tested claim is refuted."""
        if self.upcycled is not None or self.is_noiseless:
            return True
        if self.tested == "paper":
            return self.is_paper_broken
        is_shifted = self.mu_lower is not None and self.claim.mu is not None and self.mu_lower > self.claim.mu
        return self.epsilon_lower > self.claim.epsilon or is_shifted

    @property
    def is_paper_broken(self) -> bool:
        paper = self.claim.paper_epsilon
        return paper is not None and self.epsilon_lower > paper

    @property
    def sentences(self) -> tuple[str, ...]:
        about = f"one {self.claim.unit} replaced, delta {general(self.claim.delta)}"
        found = f"found with 95% confidence: epsilon is at least {general(self.epsilon_lower, 4)} ({about})"
        if self.mu_lower is not None:
            found += f"; as a Gaussian, mu is at least {general(self.mu_lower, 4)}"
        lines = [found]
        if self.is_noiseless:
            lines.append("BROKEN: every replay released the very same vector, so there is no noise in it")
        if self.upcycled is not None:
            lines.append(f"BROKEN: {self.upcycled}")
        elif self.checked_upcycled:
            lines.append("upcycled iterations: the same bits under both neighbours, and no local work")
        if self.claim.paper_epsilon is not None:
            word = "is refuted" if self.is_paper_broken else "was not refuted by this attack"
            paper = general(self.claim.paper_epsilon, 4)
            lines.append(f"the paper's number, {paper}, {word}; it is not what is claimed here")
        called, claim = self.claim.called, self.claim.epsilon
        if self.tested == "paper" and self.claim.paper_epsilon is not None:
            called, claim = "the paper claim", self.claim.paper_epsilon
        verdict = "BROKEN" if self.is_broken else "not refuted by this attack"
        lines.append(f"{called}, epsilon {general(claim, 4)} for this round, is {verdict}")
        return tuple(lines)

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values; None stands for infinity."""
        numbers = {
            "epsilon": self.claim.epsilon,
            "mu": self.claim.mu,
            "paper_epsilon": self.claim.paper_epsilon,
            "epsilon_lower": self.epsilon_lower,
            "mu_lower": self.mu_lower,
        }
        return {
            "tested": self.tested,
            "broken": self.is_broken,
            "paper_broken": self.is_paper_broken,
            "delta": self.claim.delta,
            "unit": self.claim.unit,
            **{key: None if value is None or not np.isfinite(value) else value for key, value in numbers.items()},
            "noiseless": self.is_noiseless,
            "upcycled": self.upcycled if self.upcycled is not None else ("ok" if self.checked_upcycled else None),
            **self.details,
            "sentences": list(self.sentences),
        }


def claim_of(ledger: Ledger, clients: Ints, delta: float | None) -> AuditedClaim:
    """Return what the ledger of the round claims for the worst of the clients."""
    charge = next((entry.charge for entry in ledger if entry.charge is not None), None)
    assert charge is not None  # the loop charged the round
    delta = ledger.default_delta if delta is None else delta
    paper = float(ledger.paper_epsilon(delta)[clients].max()) if ledger.states_paper_epsilon else None
    mu = None
    if kind_of(charge).is_noisy_vector and (charge.noise_std > 0).all():
        mu = float((charge.sensitivity / charge.noise_std).max())
    epsilon = float(ledger.epsilon(delta)[clients].max())
    return AuditedClaim(epsilon, delta, mu, paper, ledger.promise.unit, ledger.claim)


def check_claim(plan: Plan, stated: AuditedClaim, claim: str) -> None:
    """Refuse to test a claim that is not made."""
    if claim == "paper" and stated.paper_epsilon is None:
        raise InputError(f"--claim is 'paper', but the paper states no epsilon for '{plan.mechanism.name}'")
    tested = stated.paper_epsilon if claim == "paper" else stated.epsilon
    if tested is None or not np.isfinite(tested):
        raise InputError(
            f"privacy claims no finite epsilon with '{plan.mechanism.name}' here, so nothing can be tested"
        )
