"""What a run measured of the theorem's terms, data round by data round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from upcycled.core.errors import InputError
from upcycled.core.vectors import Real

PREFIX = "theory_"
"""What the names of these numbers begin with among a record's metrics."""


class Measured(Protocol):
    """What is read of an iteration's record."""

    @property
    def kind(self) -> str:
        """``"data"`` or ``"upcycled"``."""

    @property
    def coefficient(self) -> float | None:
        """rho of an upcycled iteration, where its rule is a scalar one."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The measured numbers, by name."""


@dataclass(frozen=True, eq=False)
class Terms:
    """One entry per data round m = 1 .. M, at w(2m-1), and the same at w(0)."""

    initial_loss: float
    initial_gradient_norm: float
    initial_dissimilarity: float
    loss: Real
    """f(w(2m-1))."""
    gradient_norm: Real
    dissimilarity: Real
    """B(w(2m-1)); infinity where grad f = 0 and clients disagree."""
    step: Real
    """||w(2m-1) - w(2m-2)||."""
    residual: Real
    """sqrt(E_i ||grad F_i(w_i) + mu (w_i - w(2m-2))||^2) over the clients of the round; NaN where not measured."""
    inexactness: Real
    """The residual over sqrt(E_i ||grad F_i(w(2m-2))||^2), which is gamma of Li et al. in the mean."""
    coefficient: Real
    """c_m of the upcycled iteration that followed: 0 if none did, NaN if it was no single scalar one."""

    @property
    def rounds(self) -> int:
        return self.loss.size

    @property
    def h1(self) -> Real:
        return self.gradient_norm * self.step

    @property
    def h2(self) -> Real:
        return self.step**2

    @property
    def average(self) -> Real:
        """(1/m) sum_{k=1..m} ||grad f(w(2k-1))||^2 for each m: what the theorem bounds."""
        squares: Real = self.gradient_norm**2
        return squares.cumsum() / np.arange(1, self.rounds + 1)

    @property
    def least(self) -> Real:
        """min_{k <= m} ||grad f(w(2k-1))||^2 for each m."""
        found: Real = np.minimum.accumulate(self.gradient_norm**2)
        return found

    @property
    def largest_dissimilarity(self) -> float:
        """The B that serves this run: the largest at w(0), w(1), w(3), ..., where the proof uses it."""
        return max(self.initial_dissimilarity, float(self.dissimilarity.max()))


def terms_of(records: Iterable[Measured]) -> Terms:
    """Collect the terms of a run from its records."""
    rounds: list[Mapping[str, float]] = []
    coefficients: list[float] = []
    after = ""
    for record in records:
        found = {key.removeprefix(PREFIX): value for key, value in record.metrics.items() if key.startswith(PREFIX)}
        if not found:
            raise InputError("the run has no terms of the bound: it must be trained with theory=True")
        if record.kind == "data":
            rounds.append(found)
            coefficients.append(0.0)
        else:
            rho = math.nan if record.coefficient is None else record.coefficient
            coefficients[-1] = rho if after == "data" else math.nan
        after = record.kind
    first = rounds[0]
    return Terms(
        initial_loss=first["initial_loss"],
        initial_gradient_norm=first["initial_gradient_norm"],
        initial_dissimilarity=first.get("initial_dissimilarity", math.inf),
        coefficient=np.array(coefficients),
        loss=_column(rounds, "loss"),
        gradient_norm=_column(rounds, "gradient_norm"),
        dissimilarity=_column(rounds, "dissimilarity", math.inf),
        step=_column(rounds, "step"),
        residual=_column(rounds, "residual", math.nan),
        inexactness=_column(rounds, "inexactness", math.nan),
    )


def _column(rounds: list[Mapping[str, float]], name: str, missing: float | None = None) -> Real:
    return np.array([one[name] if missing is None else one.get(name, missing) for one in rounds], dtype=np.float64)
