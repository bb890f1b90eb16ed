"""``compare``: vanilla against upcycled over seeds, with a paired interval instead of a claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from upcycled.coefficients import as_rule
from upcycled.core.errors import InputError, check_number, unknown
from upcycled.core.mechanism import meets_epsilon
from upcycled.core.vectors import Real
from upcycled.data import FederatedData
from upcycled.runtime.executor import train_many
from upcycled.runtime.result import Result
from upcycled.support.formats import count, epsilon, fixed, general, interval, signed
from upcycled.support.statistics import Paired

EQUALS = ("work", "epsilon")


@dataclass(frozen=True)
class Comparison:
    """Vanilla and upcycled runs with the same seeds, and their paired difference in final test accuracy."""

    vanilla: tuple[Result, ...]
    upcycled: tuple[Result, ...]
    equal: str
    confidence: float

    @property
    def paired(self) -> Paired:
        """The differences in accuracy, seed by seed, and what they show.

        Raises:
            InputError: if the runs are restricted: their scores are the data holder's own (``result.private``).
        """
        if self.is_restricted:
            raise InputError("the accuracies of private runs are their holder's own: comparing by them is a release")
        found = _accuracies(self.upcycled) - _accuracies(self.vanilla)
        return Paired(tuple(found.tolist()), self.confidence)

    @property
    def differences(self) -> Real:
        """Upcycled minus vanilla accuracy, seed by seed."""
        return np.array(self.paired.differences)

    @property
    def gain(self) -> float:
        return self.paired.mean

    @property
    def interval(self) -> tuple[float, float]:
        """Student's interval of the mean difference."""
        return self.paired.interval

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.paired.is_significant

    @property
    def is_restricted(self) -> bool:
        """Whether runs can be compared by what they cost only."""
        return any(result.private is not None for result in (*self.vanilla, *self.upcycled))

    def _costs(self) -> str:
        words = []
        for name, runs in (("vanilla", self.vanilla), ("upcycled", self.upcycled)):
            worst = [run.privacy.max_epsilon(run.privacy.default_delta) for run in runs if run.privacy is not None]
            messages = count(runs[0].history.total("messages"))
            words.append(
                f"{name} {runs[0].history[-1].data_round} data rounds, {messages} messages, worst epsilon "
                f"{epsilon(max(worst, default=None))}"
            )
        return f"{'; '.join(words)}; accuracies are the data holder's own"

    def __str__(self) -> str:
        if self.is_restricted:
            return self._costs()
        vanilla, upcycled = (fixed(_accuracies(runs).mean(), 2, 100) for runs in (self.vanilla, self.upcycled))
        rounds = [runs[0].history[-1].data_round for runs in (self.vanilla, self.upcycled)]
        return (
            f"vanilla {vanilla} % ({rounds[0]} data rounds), upcycled {upcycled} % ({rounds[1]}): "
            f"{signed(self.gain, 2, 100)} points, {general(100 * self.confidence)} % interval "
            f"{interval(*self.interval, 2, 100)}: {self.paired.verdict}"
        )


def compare(
    data: FederatedData,
    *,
    equal: str = "work",
    upcycle: object = 0.5,
    iterations: int = 160,
    seeds: Sequence[int] = (0, 1, 2, 3),
    confidence: float = 0.95,
    progress: bool = True,
    **arguments: Any,
) -> Comparison:
    """Run vanilla and upcycled over seeds in one batch; further arguments are those of :func:`train`.

    ``equal="work"``: as many data rounds each, so the vanilla runs have half the iterations; same clients, bytes and
    charges. ``equal="epsilon"``: as many iterations each, with noise calibrated to the same proven epsilon, so the
    mechanism must be given ``epsilon=``.

    Args:
        data: with a test part.
        equal: what the two have the same of, ``"work"`` or ``"epsilon"``.
        upcycle: the coefficient or rule of the upcycled runs.
        iterations: of an upcycled run, upcycled ones included.
        seeds: two or more; each gives a pair of runs.
        confidence: of the interval.
        progress: show a live table on standard error.
        **arguments: of :class:`~upcycled.RunSpec`, for all runs.

    Returns:
        The runs and their paired difference; ``print`` shows it.

    Raises:
        InputError: in one sentence, if something is wrong or does not fit together.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, seed=0)
    >>> found = up.compare(data, algorithm=up.FedAvg(), iterations=4, seeds=(0, 1), progress=False)
    >>> [len(result.history) for result in (*found.vanilla, *found.upcycled)]
    [2, 2, 4, 4]
    """
    if equal not in EQUALS:
        raise unknown("equal", equal, EQUALS)
    check_number("confidence", confidence, above=0, below=1)
    check_number("iterations", iterations, at_least=2, integer=True)
    if len(set(seeds)) < 2 or len(set(seeds)) != len(seeds):
        raise InputError(field="seeds", value=list(seeds), but="a comparison needs two or more different ones")
    if upcycle is None:
        raise InputError("upcycle is None, but a comparison needs the coefficient of its upcycled runs")
    if data.test is None:
        raise InputError("data has no test part, but a comparison needs one: see data.split(...)")
    if equal == "epsilon" and not meets_epsilon(arguments.get("privacy")):
        raise InputError("equal='epsilon' needs privacy= with a mechanism that was given epsilon=")
    vanilla = {"upcycle": None, "iterations": vanilla_iterations(iterations, equal, as_rule(upcycle).per_round)}
    upcycled = {"upcycle": upcycle, "iterations": iterations}
    runs = [{"data": data, **arguments, **kind, "seed": seed} for kind in (vanilla, upcycled) for seed in seeds]
    results = train_many(runs, progress=progress)
    done = []
    for result in results:
        if result.error is not None or not isinstance(result, Result):
            assert result.error is not None
            raise result.error
        done.append(result)
    return Comparison(tuple(done[: len(seeds)]), tuple(done[len(seeds) :]), equal, confidence)


def vanilla_iterations(iterations: int, equal: str, per_round: int = 1) -> int:
    """Return how many iterations vanilla gets against so many upcycled ones, ``per_round`` after each data round.

    >>> vanilla_iterations(160, "work"), vanilla_iterations(5, "work"), vanilla_iterations(160, "epsilon")
    (80, 3, 160)
    >>> vanilla_iterations(120, "work", per_round=2)
    40
    """
    return -(-iterations // (1 + per_round)) if equal == "work" else iterations


def _accuracies(results: tuple[Result, ...]) -> Real:
    return np.array([result.accuracy for result in results], dtype=np.float64)
