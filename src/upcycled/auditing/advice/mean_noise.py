"""How much noise the mean of the clients' releases will hold, under each choice: from public facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from upcycled.auditing.advice.candidates import Candidate, Target
from upcycled.config.experiment import parse
from upcycled.core.algorithm import OwnShares
from upcycled.core.errors import InputError
from upcycled.core.facts import Facts
from upcycled.core.mechanism import Release
from upcycled.core.vectors import Real
from upcycled.runtime.plan import Plan, plan_of


@dataclass(frozen=True)
class MeanNoise:
    """The std per coordinate of the noise in a data round's releases, and in their mean."""

    choice: str
    rounds: int
    release: Real | None
    """Of each client, a bound for objective perturbation; None where nobody knows it."""
    by_samples: float | None
    """In the algorithm's own mean, n_i's for most."""
    least: float | None
    """With weights 1/std^2: what precision weights come to where clients agree; between the two where they differ."""
    refused: str = ""
    """Why it cannot be had, where it cannot."""

    def as_json(self) -> dict[str, Any]:
        release = None if self.release is None else [float(std) for std in self.release]
        return {
            "choice": self.choice,
            "data_rounds": self.rounds,
            "release_noise_std": release,
            "mean_noise_std": self.by_samples,
            "least_mean_noise_std": self.least,
            "refused": self.refused or None,
        }


def noise_of(choice: str, plan: Plan) -> MeanNoise:
    """Return the noise that a plan's mechanism was calibrated to."""
    sizes, mechanism = plan.facts.sizes, plan.mechanism
    clients = np.arange(sizes.size)
    release = Release(clients, np.zeros((sizes.size, 0), dtype=np.float32), sizes, np.zeros_like(clients))
    if mechanism.is_central:
        return MeanNoise(choice, plan.data_rounds, None, mechanism.mean_noise_std(release), None)
    if mechanism.release_noise_std is None:
        return MeanNoise(choice, plan.data_rounds, None, None, None)
    std, algorithm = mechanism.release_noise_std(release), plan.spec.algorithm
    shares = algorithm.shares(sizes) if isinstance(algorithm, OwnShares) else sizes / sizes.sum()
    least = float((std**-2.0).sum() ** -0.5) if (std > 0).all() else 0.0
    return MeanNoise(choice, plan.data_rounds, std, float(np.sqrt(np.square(shares * std).sum())), least)


def noise_table(
    file: Mapping[str, Any], facts: Facts, target: Target, own: Plan, candidates: Sequence[Candidate]
) -> list[MeanNoise]:
    """Return the file's own noise, and that of candidates in its place."""
    found = [noise_of("the file as it is", own)]
    for one in candidates:
        steps = "" if one.steps is None else f", {one.steps} steps"
        choice = f"{one.mechanism}, a = {one.a:g}{steps}"
        try:
            spec = parse(one.applied(file, target)).spec(own.spec.seed)
            found.append(noise_of(choice, plan_of(facts, spec)))
        except InputError as error:
            found.append(MeanNoise(choice, one.rounds, None, None, None, str(error)))
    return found
