"""``compare``: vanilla against upcycled over seeds, with a paired interval instead of a claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from upcycled._utils.formats import (
    Overview,
    count,
    epsilon,
    fixed,
    general,
    interval,
    mean_sd,
    megabytes,
    score_digits,
    score_title,
    signed,
)
from upcycled._utils.statistics import Paired, mean_and_sd
from upcycled.core.errors import InputError, check_number, unknown
from upcycled.core.mechanism import asked_epsilon
from upcycled.core.vectors import Real
from upcycled.data import FederatedData
from upcycled.metrics import as_metrics
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.training import plots
from upcycled.training.executor import train_many
from upcycled.training.result import Result

EQUALS = ("work", "epsilon")
SCORES = ("accuracy", "loss")
"""What every run has."""


@dataclass(frozen=True)
class Comparison:
    """Vanilla and upcycled runs with the same seeds, and their paired difference in a final test score."""

    vanilla: tuple[Result, ...]
    upcycled: tuple[Result, ...]
    equal: str
    confidence: float
    metric: str = "accuracy"
    """The score that is compared."""

    @property
    def paired(self) -> Paired:
        """The differences in the score, seed by seed, and what they show.

        Raises:
            InputError: if the runs are restricted: their scores are the data holder's own (``result.private``).
        """
        if self.is_restricted:
            raise InputError("the accuracies of private runs are their holder's own: comparing by them is a release")
        found = self._scores(self.upcycled) - self._scores(self.vanilla)
        asked = None if self.vanilla[0].spec is None else self.vanilla[0].spec.metrics
        return Paired(tuple(found.tolist()), self.confidence, is_lower_better(self.metric, asked))

    def _scores(self, runs: tuple[Result, ...]) -> Real:
        return np.array([score_of(run, self.metric) for run in runs], dtype=np.float64)

    @property
    def is_restricted(self) -> bool:
        """Whether runs can be compared by what they cost only."""
        return any(result.private is not None for result in (*self.vanilla, *self.upcycled))

    def _costs(self) -> str:
        words = []
        for name, runs in (("vanilla", self.vanilla), ("upcycled", self.upcycled)):
            messages = count(runs[0].history.total("messages"))
            words.append(
                f"{name} {runs[0].history[-1].data_round} data rounds, {messages} messages, worst epsilon "
                f"{epsilon(_worst_epsilon(runs))}"
            )
        return f"{'; '.join(words)}; accuracies are the data holder's own"

    def __str__(self) -> str:
        if self.is_restricted:
            return self._costs()
        (digits, scale), paired = score_digits(self.metric), self.paired
        is_accuracy = self.metric == "accuracy"
        unit, words, points = (" %", "", " points") if is_accuracy else ("", f"{self.metric} ", "")
        means = (self._scores(runs).mean() for runs in (self.vanilla, self.upcycled))
        vanilla, upcycled = (f"{words}{fixed(mean, digits, scale)}{unit}" for mean in means)
        rounds = [runs[0].history[-1].data_round for runs in (self.vanilla, self.upcycled)]
        return (
            f"vanilla {vanilla} ({rounds[0]} data rounds), upcycled {upcycled} ({rounds[1]}): "
            f"{signed(paired.mean, digits, scale)}{points}, {general(100 * self.confidence)} % interval "
            f"{interval(*paired.interval, digits, scale)}: {paired.verdict}"
        )

    @property
    def overview(self) -> Overview:
        """Both sides in a few rows, means over seeds."""
        sides = (self.vanilla, self.upcycled)
        rows = [
            ("data rounds", *(count(runs[0].history[-1].data_round) for runs in sides)),
            ("iterations", *(count(len(runs[0].history)) for runs in sides)),
            ("messages", *(count(_mean_total(runs, "messages")) for runs in sides)),
            ("MB sent up", *(megabytes(_mean_total(runs, "bytes_up")) for runs in sides)),
        ]
        if not self.is_restricted:
            digits = score_digits(self.metric)
            cells = (mean_sd(mean_and_sd(score_of(run, self.metric) for run in runs), *digits) for runs in sides)
            rows.insert(0, (score_title(self.metric), *cells))
        ledgers = _ledgers((*self.vanilla, *self.upcycled))
        if ledgers:
            word = " (simulation: not private)" if any(ledger.is_simulation for ledger in ledgers) else ""
            rows.append((f"worst client's epsilon{word}", *(epsilon(_worst_epsilon(runs)) for runs in sides)))
        return Overview(str(self), tuple(rows), (f"{len(self.vanilla)} seeds each", "vanilla", "upcycled"))

    def plot(self, metric: str | None = None, *, against: str = "data_round", ax: Any = None) -> Any:
        """Draw vanilla and upcycled in one plot, means over seeds with a band (needs the extra ``report``).

        The band is one standard deviation. Of restricted runs it draws what is public: charged scores, and epsilon.

        Args:
            metric: ``"accuracy"``, ``"loss"``, another one that was measured, or ``"epsilon"``; left out, the score
                that is compared, or what is public.
            against: ``"data_round"``, which is what costs, or ``"iteration"``.
            ax: matplotlib's axes to draw on; left out, those of a new figure.

        Returns:
            The axes.

        Raises:
            InputError: in one sentence, if that was not measured, or is the data holder's own.
        """
        every = (*self.vanilla, *self.upcycled)
        asked = self.metric if metric is None and not self.is_restricted else metric
        histories, ledgers = [run.history for run in every], [run.privacy for run in every]
        found = plots.chosen(asked, histories, ledgers, self.is_restricted)
        lines = []
        for name, runs in (("vanilla", self.vanilla), ("upcycled", self.upcycled)):
            if found == plots.EPSILON:
                lines.append((name, [plots.spent(_costliest(runs), against)]))
            else:
                lines.append((name, [plots.points(run.history, found, against) for run in runs]))
        return plots.draw(ax, plots.titled(found, every[0].privacy), against, lines)

    def __repr__(self) -> str:
        return f"<Comparison of {self}>"

    def _repr_html_(self) -> str:
        return self.overview.html


def _ledgers(runs: Sequence[Result]) -> list[Ledger]:
    return [run.privacy for run in runs if run.privacy is not None]


def _costliest(runs: Sequence[Result]) -> Ledger:
    return max(_ledgers(runs), key=lambda ledger: ledger.max_epsilon(ledger.default_delta))


def _worst_epsilon(runs: Sequence[Result]) -> float | None:
    return max((ledger.max_epsilon(ledger.default_delta) for ledger in _ledgers(runs)), default=None)


def _mean_total(runs: Sequence[Result], name: str) -> float | None:
    return mean_and_sd(run.history.total(name) for run in runs)["mean"]


def compare(
    data: FederatedData,
    *,
    equal: str = "work",
    upcycle: object = 0.5,
    iterations: int = 160,
    seeds: Sequence[int] = (0, 1, 2, 3),
    confidence: float = 0.95,
    metric: str | None = None,
    progress: bool = True,
    **arguments: Any,
) -> Comparison:
    """Run vanilla and upcycled over seeds in one batch; further arguments are those of :func:`train`.

    ``equal="work"``: as many data rounds each, so the vanilla runs have half the iterations; same clients, bytes and
    charges. ``equal="epsilon"``: as many iterations each, with noise calibrated to the same epsilon, so the
    mechanism must be given ``epsilon=``.

    Args:
        data: with a test part.
        equal: what the two have the same of, ``"work"`` or ``"epsilon"``.
        upcycle: the coefficient or rule of the upcycled runs.
        iterations: of an upcycled run, upcycled ones included.
        seeds: two or more; each gives a pair of runs.
        confidence: of the interval.
        metric: the score that is compared: ``"accuracy"``, ``"loss"`` or the name of one of ``metrics``; left out,
            accuracy, or the loss where right answers have no meaning.
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
    if "seed" in arguments:
        raise TypeError("compare() has no argument 'seed'; did you mean 'seeds'?")
    seeds = tuple(seeds)
    if len(set(seeds)) < 2 or len(set(seeds)) != len(seeds):
        raise InputError(field="seeds", value=list(seeds), but="a comparison needs two or more different ones")
    if upcycle is None:
        raise InputError("upcycle is None, but a comparison needs the coefficient of its upcycled runs")
    if data.test is None:
        raise InputError("data has no test part, but a comparison needs one: see data.split(...)")
    if equal == "epsilon" and asked_epsilon(arguments.get("privacy")) is None:
        raise InputError("equal='epsilon' needs privacy= with a mechanism that was given epsilon=")
    check_compared(metric, arguments.get("metrics"))
    vanilla = {"upcycle": None, "iterations": vanilla_iterations(iterations, equal)}
    upcycled = {"upcycle": upcycle, "iterations": iterations}
    runs = [{"data": data, **arguments, **kind, "seed": seed} for kind in (vanilla, upcycled) for seed in seeds]
    results = train_many(runs, progress=progress)
    done = []
    for result in results:
        if result.error is not None:
            raise result.error
        assert isinstance(result, Result)
        done.append(result)
    score = metric or ("loss" if any(one.accuracy is None and one.private is None for one in done) else "accuracy")
    return Comparison(tuple(done[: len(seeds)]), tuple(done[len(seeds) :]), equal, confidence, score)


def vanilla_iterations(iterations: int, equal: str) -> int:
    """Return how many iterations vanilla gets against so many upcycled ones.

    >>> vanilla_iterations(160, "work"), vanilla_iterations(5, "work"), vanilla_iterations(160, "epsilon")
    (80, 3, 160)
    """
    return -(-iterations // 2) if equal == "work" else iterations


def check_compared(metric: str | None, asked: object) -> None:
    """Refuse a score that no run will have."""
    names = [*SCORES, *(one.name for one in as_metrics(asked))]
    if metric is not None and metric not in names:
        raise InputError(field="metric", value=metric, must=f"one of {', '.join(names)}; metrics asks for more of them")


def is_lower_better(metric: str, asked: object) -> bool:
    """Say whether the smaller of two scores is the better one.

    >>> is_lower_better("loss", None), is_lower_better("auroc", ["auroc"]), is_lower_better("rmse", ["rmse"])
    (True, False, True)
    """
    own = {one.name: one.lower_is_better for one in as_metrics(asked)}
    return metric == "loss" or own.get(metric, False)


def score_of(run: Result, metric: str) -> float | None:
    """Return a run's last score of this name."""
    return {"accuracy": run.accuracy, "loss": run.loss}[metric] if metric in SCORES else run.metrics.get(metric)
