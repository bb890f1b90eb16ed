"""Generated federations with the sizes of the real one, and candidates tried on them.

The noise of a release follows from n_i, a, rounds and epsilon, all of them public: a generated federation of the same
sizes has the very noise of the real one. What it cannot have is the real signal, so what wins here is advice and not a
promise. Where all records would take too long only every c-th is generated, and epsilon is raised so that Gaussian
noise stays what it is: std ~ 1/(n_i mu), so mu becomes c mu.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upcycled import privacy as dp
from upcycled.auditing.advice.candidates import ERM, Candidate, Effort, Target
from upcycled.config.experiment import parse
from upcycled.core.errors import InputError
from upcycled.core.facts import Facts
from upcycled.core.vectors import Ints
from upcycled.data import FederatedData, synthetic
from upcycled.runtime.executor import Failed, train_many
from upcycled.runtime.spec import RunSpec

KINDS: tuple[tuple[float | str, float | None], ...] = ((0.5, 0.5), ("iid", None), (1.0, 1.0), (0.0, 0.0))
"""Federations whose clients agree, and ones whose clients differ by less or more."""
HELD_OUT = 0.2
OBJECTIVE_STEPS = 60
"""What a minimiser takes, about, of the steps that the work of a run is counted in."""
LEAST_RECORDS = 8
NOT_TRIED = ("data", "seeds", "scored_on", "eval_every", "metrics", "keep_best", "theory", "callbacks", "engine")


@dataclass(frozen=True)
class Surrogate:
    """Federations like the real one, of which every ``thinning``-th record is generated."""

    facts: Facts
    thinning: float = 1.0

    def federation(self, number: int) -> FederatedData:
        """Return generated federation ``number``; training sizes are the real ones, thinned."""
        alpha, beta = KINDS[number % len(KINDS)]
        # floor(0.8 ceil(1.25 n)) is n, so that what stays after the split is the size itself.
        totals = np.ceil(thinned(self.facts.sizes, self.thinning) / (1 - HELD_OUT) - 1e-9).astype(np.int64)
        return synthetic(
            alpha,
            beta,
            clients=self.facts.num_clients,
            dim=self.facts.shape[0],
            classes=self.facts.classes,
            sizes=totals,
            test_fraction=HELD_OUT,
            seed=number,
            public=True,
        )

    def target(self, target: Target) -> Target:
        """Return what is to be spent, so that noise on the thinned records is what it is on all of them."""
        if self.thinning == 1.0:
            return target
        return replace(target, epsilon=epsilon_of_fewer(target.epsilon, target.delta, self.thinning))


def thinned(sizes: Ints, thinning: float) -> Ints:
    """Return the sizes with every ``thinning``-th record left, of a client of eight or more never fewer.

    >>> thinned(np.array([5, 40, 1000]), 10.0).tolist()
    [5, 8, 100]
    """
    if thinning == 1.0:
        return sizes
    fewer: Ints = np.maximum(np.ceil(sizes / thinning), np.minimum(sizes, LEAST_RECORDS)).astype(np.int64)
    return fewer


def thinning_for(facts: Facts, candidates: Sequence[Candidate], effort: Effort) -> float:
    """Return c: by how much fewer records the candidates stay within the effort."""
    steps = sum(one.rounds * (one.steps or OBJECTIVE_STEPS) for one in candidates)
    each = (facts.shape[0] + 1) * facts.classes * int(facts.sizes.sum())
    return max(1.0, float(steps) * each / effort.work)


def epsilon_of_fewer(epsilon: float, delta: float, thinning: float) -> float:
    """Return the epsilon whose Gaussian noise is ``thinning`` times smaller; at delta = 0 epsilons are.

    >>> round(epsilon_of_fewer(1.0, 1e-5, 1.0), 6), epsilon_of_fewer(1.0, 0.0, 3.0)
    (1.0, 3.0)
    """
    if delta == 0:
        return epsilon * thinning
    aim = dp.gaussian_noise_std(sensitivity=1.0, rounds=1, epsilon=epsilon, delta=delta) / thinning
    low, high = epsilon, epsilon
    while dp.gaussian_noise_std(sensitivity=1.0, rounds=1, epsilon=high, delta=delta) > aim:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if dp.gaussian_noise_std(sensitivity=1.0, rounds=1, epsilon=middle, delta=delta) > aim:
            low = middle
        else:
            high = middle
    return high


def trial(content: Mapping[str, Any], seed: int) -> RunSpec:
    """Return a file's run as it is tried on generated data: simulated noise, nothing kept, scored once."""
    left = {key: value for key, value in content.items() if key not in NOT_TRIED}
    privacy = {key: value for key, value in content["privacy"].items() if key not in ("noise", "account", "scores")}
    # The file's own table of data may say keys that these have not.
    stand_in = {"source": "synthetic", "alpha": "iid"}
    spec = parse({**left, "privacy": privacy, "data": stand_in, "results": "."}).spec(seed)
    return spec.replace(eval_every=spec.iterations, progress=False)


def accuracies(
    surrogate: Surrogate, contents: Sequence[Mapping[str, Any]], numbers: Sequence[int]
) -> list[list[float | None]]:
    """Return the test accuracy of each content on each of the federations; None where it was refused or failed."""
    federations = {number: surrogate.federation(number) for number in numbers}
    jobs = [(federations[number], trial(content, number)) for content in contents for number in numbers]
    found = [_accuracy(one) for one in train_many(jobs, progress=False)]
    return [found[i : i + len(numbers)] for i in range(0, len(found), len(numbers))]


def _accuracy(result: Any) -> float | None:
    if isinstance(result, Failed):
        if isinstance(result.error, InputError):
            return None  # no noise reaches the epsilon, say, or a rule is not for this algorithm
        raise result.error
    accuracy: float | None = result.accuracy
    return accuracy if result.error is None else None


def can_thin(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates whose noise a thinned federation can have: Gaussian ones."""
    return [one for one in candidates if one.mechanism == ERM]
