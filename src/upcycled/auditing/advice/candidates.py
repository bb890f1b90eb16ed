"""Ways to spend a file's epsilon: mechanism, quadratic term, data rounds, solver steps, weights and step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from upcycled.core.errors import InputError

ERM, GAUSSIAN, OBJECTIVE = "erm_output", "gaussian_objective", "objective_perturbation"
OWN_TERM = {"fedprox": "mu", "feddyn": "alpha"}
"""Algorithms that have a quadratic term of their own, and what a file calls it."""
INSIDE_TERMS = (1.0, 2.0)
KEPT = ("noise", "budget", "account", "scores")
"""What a table [privacy] says beside its mechanism."""


@dataclass(frozen=True)
class Reuse:
    """How releases are averaged, and how far an upcycled iteration goes."""

    aggregation: str = "samples"
    upcycle: str | None = None

    @property
    def words(self) -> str:
        return f"{'weights n_i' if self.aggregation == 'samples' else self.aggregation}, {self.upcycle or 'no'} step"


REUSES = (Reuse("precision", "signal"), Reuse("precision"), Reuse())
"""All of it, the weights alone, none."""


@dataclass(frozen=True)
class Target:
    """What is not to be changed: the epsilon to be spent, and the bound that features are projected to."""

    epsilon: float
    delta: float
    norm_bound: float


@dataclass(frozen=True)
class Candidate:
    """One way to spend the epsilon."""

    mechanism: str
    a: float
    """The coefficient of the quadratic term, all of it."""
    rounds: int
    """Data rounds, M."""
    steps: int | None = None
    """Of ErmOutput's gradient descent; None for noise inside the objective, whose steps follow from its proof."""
    reuse: Reuse = REUSES[0]

    def applied(self, file: Mapping[str, Any], target: Target) -> dict[str, Any]:
        """Return the content of a file that spends its epsilon in this way.

        Args:
            file: the file's content, as ``Experiment.said`` gives it.
            target: what is kept.
        """
        content = {key: value for key, value in file.items() if key not in ("local", "sweep", "upcycle", "aggregation")}
        algorithm = dict(content["algorithm"])
        term = OWN_TERM.get(algorithm["name"])
        privacy = {key: value for key, value in content["privacy"].items() if key in KEPT}
        privacy |= {"mechanism": self.mechanism, "norm_bound": target.norm_bound, "epsilon": target.epsilon}
        if target.delta > 0:
            privacy["delta"] = target.delta
        if self.steps is not None:
            privacy["steps"] = self.steps
        if term is None:
            privacy["prox_mu"] = self.a
        else:
            algorithm[term] = self.a
        iterations = self.rounds if self.reuse.upcycle is None else 2 * self.rounds
        content |= {"iterations": iterations, "algorithm": algorithm, "privacy": privacy}
        if self.reuse.upcycle is not None:
            content["upcycle"] = {"kind": self.reuse.upcycle}
        if self.reuse.aggregation != "samples":
            content["aggregation"] = {"kind": self.reuse.aggregation}
        return content

    @property
    def words(self) -> str:
        steps = "" if self.steps is None else f", {self.steps} steps"
        return f"{self.mechanism}, a = {self.a:g}, {self.rounds} data rounds{steps}; {self.reuse.words}"

    def as_json(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism,
            "a": self.a,
            "data_rounds": self.rounds,
            "steps": self.steps,
            "aggregation": self.reuse.aggregation,
            "upcycle": self.reuse.upcycle,
        }


@dataclass(frozen=True)
class Effort:
    """How much is tried."""

    terms: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.0)
    """a, of ErmOutput."""
    parts: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    """Data rounds, as parts of the file's."""
    steps: tuple[int, ...] = (1, 3, 10)
    first: int = 1
    """Generated federations on which everything is tried,"""
    second: int = 3
    """on which the best quarter of it is tried again,"""
    last: int = 8
    """and, fresh ones, on which the best is held against the file as it is."""
    work: float = 1e10
    """Multiplications of all gradients on one federation, about: more are not done, records are left out instead."""


FULL = Effort()
QUICK = Effort(terms=(0.1, 0.5), parts=(0.5, 1.0), steps=(1, 5), second=1, last=3, work=2e9)


def grid(effort: Effort, rounds: int, mechanisms: Sequence[str], reuse: Reuse) -> list[Candidate]:
    """Return all candidates, for a file of so many data rounds.

    >>> len(grid(QUICK, 40, [ERM], REUSES[0])), grid(QUICK, 40, [OBJECTIVE], REUSES[0])[0].words
    (8, 'objective_perturbation, a = 1, 20 data rounds; precision, signal step')
    """
    counts = sorted({max(1, round(part * rounds)) for part in effort.parts})
    found: list[Candidate] = []
    if ERM in mechanisms:
        every = itertools.product(effort.terms, counts, effort.steps)
        found += [Candidate(ERM, a, m, steps, reuse) for a, m, steps in every]
    inside = [name for name in mechanisms if name != ERM]
    # A minimiser takes as long as several of the others: some rounds are enough to see whether it is the better one.
    chosen = counts[1:3] if ERM in mechanisms else counts
    found += [Candidate(name, a, m, None, reuse) for name, a, m in itertools.product(inside, INSIDE_TERMS, chosen)]
    return found


def check_known(algorithm: str) -> None:
    """Refuse an algorithm whose local problem no mechanism with a proof solves."""
    if algorithm == "pfedme":
        raise InputError("is 'pfedme', whose local problem no mechanism with a proof solves", field="algorithm.name")
