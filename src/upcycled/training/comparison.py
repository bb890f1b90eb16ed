"""``compare``: vanilla against upcycled over seeds, with a paired interval instead of a claim.

For a constant coefficient rho there is a third arm, vanilla with ``server_lr = 1 + rho``: over the same data rounds an
upcycled run is a longer server step, so that a fair test gives vanilla the same step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Unpack

import numpy as np

from upcycled._utils.formats import (
    NONE,
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
from upcycled._utils.statistics import Paired, holm, mean_and_sd, verdict
from upcycled.coefficients import Auto, Constant, ScalarRule, as_rule
from upcycled.core.errors import InputError, check_number, unknown
from upcycled.core.mechanism import asked_epsilon
from upcycled.core.vectors import Real
from upcycled.data import FederatedData
from upcycled.metrics import as_metrics
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.training import plots
from upcycled.training.executor import train_many
from upcycled.training.result import Result
from upcycled.training.spec import SharedArguments

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
    longer_step: tuple[Result, ...] = ()
    """Vanilla runs with ``server_lr``; none where there is no such arm."""
    server_lr: float | None = None
    """Their server learning rate: 1 + the coefficient of the upcycled runs."""
    why_no_longer_step: str = ""
    """Why that arm is missing; empty where it is there, or was not asked for."""

    @property
    def arms(self) -> list[tuple[str, tuple[Result, ...]]]:
        """The runs by name: vanilla, upcycled and, where it ran, vanilla with a longer server step."""
        arms = [("vanilla", self.vanilla), ("upcycled", self.upcycled)]
        if self.server_lr is not None:
            arms.append((longer_step_title("vanilla", self.server_lr), self.longer_step))
        return arms

    @property
    def paired(self) -> Paired:
        """The differences in the score of upcycled and vanilla, seed by seed, and what they show.

        Raises:
            InputError: if the runs are restricted: their scores are the data holder's own (``result.private``).
        """
        return self._paired(self.vanilla)

    @property
    def paired_longer_step(self) -> Paired | None:
        """The differences of upcycled and vanilla with a longer server step; None where there is no such arm."""
        return self._paired(self.longer_step) if self.longer_step else None

    @property
    def holm_p_values(self) -> tuple[float, ...]:
        """Holm's p-values of ``paired`` and, where it is there, of ``paired_longer_step``."""
        tests = [self.paired, self.paired_longer_step]
        return tuple(holm([test.p_value for test in tests if test is not None]))

    def _paired(self, baseline: tuple[Result, ...]) -> Paired:
        if self.is_restricted:
            raise InputError("the accuracies of private runs are their holder's own: comparing by them is a release")
        found = self._scores(self.upcycled) - self._scores(baseline)
        asked = None if self.vanilla[0].spec is None else self.vanilla[0].spec.metrics
        return Paired(tuple(found.tolist()), self.confidence, is_lower_better(self.metric, asked))

    def _scores(self, runs: tuple[Result, ...]) -> Real:
        return np.array([score_of(run, self.metric) for run in runs], dtype=np.float64)

    @property
    def is_restricted(self) -> bool:
        """Whether runs can be compared by what they cost only."""
        return any(result.private is not None for _, runs in self.arms for result in runs)

    def _costs(self) -> str:
        words = []
        for name, runs in self.arms:
            messages = count(runs[0].history.total("messages"))
            words.append(
                f"{name} {runs[0].history[-1].data_round} data rounds, {messages} messages, worst epsilon "
                f"{epsilon(_worst_epsilon(runs))}"
            )
        return f"{'; '.join(words)}{self._missing()}; accuracies are the data holder's own"

    def _missing(self) -> str:
        return f"; no arm with a longer server step: {self.why_no_longer_step}" if self.why_no_longer_step else ""

    def __str__(self) -> str:
        if self.is_restricted:
            return self._costs()
        (digits, scale), paired = score_digits(self.metric), self.paired
        is_accuracy = self.metric == "accuracy"
        unit, words, points = (" %", "", " points") if is_accuracy else ("", f"{self.metric} ", "")
        means = (self._scores(runs).mean() for runs in (self.vanilla, self.upcycled))
        vanilla, upcycled = (f"{words}{fixed(mean, digits, scale)}{unit}" for mean in means)
        rounds = [runs[0].history[-1].data_round for runs in (self.vanilla, self.upcycled)]

        def difference(test: Paired) -> str:
            return (
                f"{signed(test.mean, digits, scale)}{points}, {general(100 * self.confidence)} % interval "
                f"{interval(*test.interval, digits, scale)}: {test.verdict}"
            )

        said = f"vanilla {vanilla} ({rounds[0]} data rounds), upcycled {upcycled} ({rounds[1]}): {difference(paired)}"
        longer = self.paired_longer_step
        if longer is None:
            return said + self._missing()
        name, runs = self.arms[-1]
        mean = f"{words}{fixed(self._scores(runs).mean(), digits, scale)}{unit}"
        return f"{said}; against {name} ({mean}): {difference(longer)}"

    @property
    def overview(self) -> Overview:
        """All arms in a few rows, means over seeds."""
        names, sides = zip(*self.arms, strict=True)
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
            rows[1:1] = self._tests()
        ledgers = _ledgers([run for runs in sides for run in runs])
        if ledgers:
            word = " (simulation: not private)" if any(ledger.is_simulation for ledger in ledgers) else ""
            rows.append((f"worst client's epsilon{word}", *(epsilon(_worst_epsilon(runs)) for runs in sides)))
        return Overview(str(self), tuple(rows), (f"{len(self.vanilla)} seeds each", *names))

    def _tests(self) -> list[tuple[str, ...]]:
        """Return the rows of the differences and of Holm's verdicts, where there are two to correct for."""
        longer, how = self.paired_longer_step, score_digits(self.metric)
        if longer is None:
            return []
        tests = (self.paired, longer)
        differences = [f"{signed(test.mean, *how)} ({interval(*test.interval, *how)})" for test in tests]
        corrected = [
            verdict(test.mean, p_value < 1 - self.confidence, test.lower_is_better)
            for test, p_value in zip(tests, self.holm_p_values, strict=True)
        ]
        titles = ("upcycled minus this", "after Holm's correction")
        return [(title, own[0], NONE, own[1]) for title, own in zip(titles, (differences, corrected), strict=True)]

    def plot(self, metric: str | None = None, *, against: str = "data_round", ax: Any = None) -> Any:
        """Draw all arms in one plot, means over seeds with a band (needs the extra ``report``).

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
        every = [run for _, runs in self.arms for run in runs]
        asked = self.metric if metric is None and not self.is_restricted else metric
        histories, ledgers = [run.history for run in every], [run.privacy for run in every]
        found = plots.chosen(asked, histories, ledgers, self.is_restricted)
        lines = []
        for name, runs in self.arms:
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
    longer_step: bool = True,
    progress: bool = True,
    **arguments: Unpack[SharedArguments],
) -> Comparison:
    """Run vanilla and upcycled over seeds in one batch; further arguments are those of :func:`train`.

    For a constant coefficient a third arm, vanilla with ``server_lr = 1 + upcycle``, makes the test fair. It needs an
    algorithm with ``server_lr`` at 1, and scores that may be compared; the result says why the arm is missing.

    ``equal="work"``: as many data rounds each, so the vanilla runs have half the iterations; same clients, bytes and
    charges. ``equal="epsilon"``: as many iterations each, with noise calibrated to the same epsilon, so the
    mechanism must be given ``epsilon=``.

    Args:
        data: with a test part.
        equal: what the arms have the same of, ``"work"`` or ``"epsilon"``.
        upcycle: the coefficient or rule of the upcycled runs.
        iterations: of an upcycled run, upcycled ones included.
        seeds: two or more; each gives a pair of runs.
        confidence: of the interval.
        metric: the score that is compared: ``"accuracy"``, ``"loss"`` or the name of one of ``metrics``; left out,
            accuracy, or the loss where right answers have no meaning.
        longer_step: whether there is an arm with the longer server step.
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
    vanilla: dict[str, Any] = {"upcycle": None, "iterations": vanilla_iterations(iterations, equal)}
    kinds = [vanilla, {"upcycle": upcycle, "iterations": iterations}]
    algorithm: Any = arguments.get("algorithm")
    server_lr, missing = None, ""
    if longer_step:
        is_real = arguments.get("noise") == "system" and arguments.get("privacy") is not None
        is_restricted, is_paid = is_real and not data.public, is_real and arguments.get("account") is not None
        server_lr, missing = longer_server_lr(algorithm, as_rule(upcycle), is_restricted, is_paid)
    if server_lr is not None:
        kinds.append(vanilla | {"algorithm": replace(algorithm, server_lr=server_lr)})
    runs = [{"data": data, **arguments, **kind, "seed": seed} for kind in kinds for seed in seeds]
    results = train_many(runs, progress=progress)
    done = []
    for result in results:
        if result.error is not None:
            raise result.error
        assert isinstance(result, Result)
        done.append(result)
    score = metric or ("loss" if any(one.accuracy is None and one.private is None for one in done) else "accuracy")
    arms = [tuple(done[i * len(seeds) : (i + 1) * len(seeds)]) for i in range(3)]  # the third may be empty
    return Comparison(arms[0], arms[1], equal, confidence, score, arms[2], server_lr, missing)


def longer_server_lr(
    algorithm: object, rule: object, is_restricted: bool = False, is_paid: bool = False
) -> tuple[float | None, str]:
    """Return the server_lr of the arm with the longer server step, 1 + rho; or None, and why there is no such arm.

    Args:
        algorithm: of the vanilla runs.
        rule: of the upcycled runs.
        is_restricted: whether the scores are the data holder's own.
        is_paid: whether an account pays for every run.

    >>> import upcycled as up
    >>> longer_server_lr(up.FedProx(), as_rule(0.5))
    (1.5, '')
    >>> longer_server_lr(up.PFedMe(), as_rule(0.5))
    (None, 'pfedme has no server_lr that is 1')
    """
    coefficient = rule.coefficient if isinstance(rule, ScalarRule) else None
    if not isinstance(coefficient, Constant | Auto):
        return None, "the upcycle coefficient is not constant"
    if coefficient.coefficient_at(1, None) == 0:
        return None, "the upcycle coefficient is 0, and such an arm is vanilla itself"
    if not _has_server_lr(algorithm):
        return None, f"{getattr(algorithm, 'name', 'the algorithm')} has no server_lr that is 1"
    if is_restricted:
        return None, "the scores of private runs are the data holder's own, and more runs cost more epsilon"
    if is_paid:
        return None, "the account would pay for more runs"
    return 1 + coefficient.coefficient_at(1, None), ""


def _has_server_lr(algorithm: object) -> bool:
    is_option = is_dataclass(algorithm) and any(f.name == "server_lr" and f.init for f in fields(algorithm))
    return is_option and getattr(algorithm, "server_lr", None) == 1


def longer_step_title(name: str, server_lr: float) -> str:
    """Return what tables call the arm with a longer server step.

    >>> longer_step_title("vanilla", 1.5)
    'vanilla, server_lr = 1.5'
    """
    return f"{name}, server_lr = {general(server_lr)}"


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
