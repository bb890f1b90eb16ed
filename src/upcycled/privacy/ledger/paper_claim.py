"""The paper's own claims for a run: numbers that are printed beside the proven epsilon, and never relied on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upcycled.core.errors import NOT_NEGATIVE, shown
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.accounting import paper_epsilon, paper_objective_epsilon

U1, U2 = 1.0, 0.11
"""The paper's own constants, which reproduce its numbers; u1 = 1 is not a bound for its models."""


@dataclass(frozen=True, eq=False)
class PaperOutput:
    """Output perturbation: it takes clip_norm / n for what one record moves, which is not proven."""

    clip_norm: float
    noise_std: Real
    """Of each client."""

    def epsilon(self, rounds: Ints, sizes: Ints, delta: float) -> Real:
        """Return the number for each client; infinite without noise."""
        found: Real = np.where(rounds > 0, np.inf, 0.0)
        ok = self.noise_std > 0
        found[ok] = paper_epsilon(
            rounds=rounds[ok], clip_norm=self.clip_norm, noise_std=self.noise_std[ok], n=sizes[ok], delta=delta
        )
        return found

    @property
    def numbers(self) -> Real:
        """What it rests on that each client has its own of."""
        return self.noise_std

    def of(self, numbers: Real) -> PaperOutput:
        """Return the claim with other such numbers."""
        return replace(self, noise_std=numbers)

    def to_json(self) -> dict[str, Any]:
        """Return the claim as plain values, without what each client has its own of."""
        return {"theorem": "output", "clip_norm": float(self.clip_norm)}


@dataclass(frozen=True, eq=False)
class PaperTilt:
    """Objective perturbation: a plain sum over data rounds, whatever delta is."""

    alpha: Real
    """Of each client."""
    a: float

    def epsilon(self, rounds: Ints, sizes: Ints, delta: float) -> Real:
        """Return the number for each client; infinite where the theorem's condition u2 <= 0.5 n mu fails."""
        found: Real = np.where(rounds > 0, np.inf, 0.0)
        ok = 0.5 * sizes * self.a >= U2
        if ok.any():
            found[ok] = paper_objective_epsilon(
                alpha=self.alpha[ok], u1=U1, u2=U2, n=sizes[ok], mu=self.a, rounds=rounds[ok]
            )
        return found

    @property
    def numbers(self) -> Real:
        """What it rests on that each client has its own of."""
        return self.alpha

    def of(self, numbers: Real) -> PaperTilt:
        """Return the claim with other such numbers."""
        return replace(self, alpha=numbers)

    def to_json(self) -> dict[str, Any]:
        """Return the claim as plain values, without what each client has its own of."""
        return {"theorem": "objective", "a": float(self.a)}


def from_json(value: Mapping[str, Any] | None) -> PaperOutput | PaperTilt | None:
    """Return the claim of a header, about no client yet; KeyError, TypeError or ValueError if it is none."""
    if value is None:
        return None
    if value["theorem"] == "output":
        return PaperOutput(_number(value["clip_norm"]), np.zeros(0))
    if value["theorem"] == "objective":
        return PaperTilt(np.zeros(0), _number(value["a"]))
    raise ValueError(f"the paper has no theorem {shown(value['theorem'])}")


def _number(value: object) -> float:
    return float(NOT_NEGATIVE.check("the paper's number", value))


def numbers_of(values: Iterable[object]) -> Real:
    """Return the numbers that a file has; InputError for what is none, or is below zero."""
    return np.array([_number(value) for value in values], dtype=np.float64)
