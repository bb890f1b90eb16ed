"""What a config file protects, in words and numbers, and the answers of the privacy calculators.

Answers of ``upcycled privacy epsilon``: each number with its meaning.

What a config file protects, in words and numbers, before anything is trained.

The charges of a run are known in advance: cohorts follow from the seed, and what a round costs from public facts. So
the run's ledger is filled with its schedule, and read as it would be afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from upcycled import privacy as dp
from upcycled._utils.formats import count, general, percent, significant
from upcycled._utils.messages import collected_warnings
from upcycled.coefficients import Constant
from upcycled.config.experiment import PLAN_KEYS, Experiment
from upcycled.config.tables import in_keys, named
from upcycled.core.errors import InputError
from upcycled.core.sampling import everybody
from upcycled.core.vectors import Real
from upcycled.privacy import Account, Ledger
from upcycled.privacy.charge_kinds import kind_named
from upcycled.privacy.charged_scores import pay_for_scores
from upcycled.privacy.ledger.statement import NOT_COVERED, plain_words
from upcycled.training.charging import costs_of, new_to_account, replan
from upcycled.training.plan import Plan, make_plan

Values: TypeAlias = Mapping[str, Any]

PROVEN = "one record replaced (replace-one), against whoever sees every release; fixed schedule"
PAPER = "the paper's formula, not proven"


@dataclass(frozen=True)
class Number:
    """One number of an answer, and what it is."""

    name: str
    value: float
    words: str
    is_proven: bool = True


def _gaussian_of(values: Values, sensitivity: float, words: str) -> Number:
    """Answer with the exact Gaussian formula for a known sensitivity."""
    about = f"{words}; exact for Gaussian noise; {PROVEN}"
    given = {name: values[name] for name in ("rounds", "noise_std", "epsilon", "delta") if name in values}
    if "epsilon" in given:
        return Number("delta", float(dp.gaussian_delta(sensitivity=sensitivity, **given)), about)
    return Number("epsilon", float(dp.gaussian_epsilon(sensitivity=sensitivity, **given)), about)


def gaussian(values: Values) -> list[Number]:
    """Known sensitivity."""
    return [_gaussian_of(values, values["sensitivity"], "for the sensitivity given, the user's word")]


def paper_output(values: Values) -> list[Number]:
    """The paper's first theorem, beside what clipping guarantees."""
    clip, n = values["clip_norm"], values["n"]
    words = f"{PAPER}: it assumes that one record moves the clipped model by clip_norm/n"
    if "epsilon" in values:
        paper = Number("paper_delta", float(dp.paper_delta(**values)), words, False)
    else:
        paper = Number("paper_epsilon", float(dp.paper_epsilon(**values)), words, False)
    mean = _gaussian_of(values, 2 * clip / n, "what replace-one costs under the paper's own assumption")
    return [
        _gaussian_of(values, 2 * clip, "what clipping guarantees: sensitivity 2 clip_norm, whatever n is"),
        paper,
        Number(f"{mean.name}_if_assumed", mean.value, f"{mean.words}; the assumption is not proven", False),
    ]


def sampled(values: Values) -> list[Number]:
    """DP-SGD."""
    is_replace = values.get("adjacency", "replace") == "replace"
    meaning = PROVEN if is_replace else "one record added or removed, NOT this package's epsilon"
    words = f"secret Poisson batches, an upper bound by privacy loss distributions; {meaning}"
    return [Number("epsilon", dp.sampled_gaussian_epsilon(**values), words)]


ANSWERS: dict[str, Callable[[Values], list[Number]]] = {
    "gaussian": gaussian,
    "paper-output": paper_output,
    "sampled": sampled,
}
"""The answer of each formula that the command line knows; its numbers are checked by the accounting functions."""


@dataclass(frozen=True)
class Scenario:
    """One way to run the file, and what it costs every client."""

    title: str
    iterations: int
    ledger: Ledger
    plan: Plan
    delta: float
    epsilon: Real
    """The epsilon of every client; what it is called says the ledger's claim."""
    plain_epsilon: Real | None
    """The plain sum of pure rounds, at delta = 0; None elsewhere."""
    paper_epsilon: Real | None
    """The paper's number for every client; None where it has none."""

    @property
    def noise(self) -> tuple[str, Real]:
        """What the noise is measured by, and its size for every client."""
        mechanism, clients = self.plan.mechanism, self.plan.facts.num_clients
        if mechanism.alpha is not None:
            return "alpha", mechanism.alpha
        charge = mechanism.charge(everybody(clients))
        return "noise_std", np.zeros(clients) if charge is None else charge.noise_std

    @property
    def stops_after(self) -> int | None:
        """The data round after which nobody can pay; None where the budget lasts, or there is none."""
        last = max((entry.round for entry in self.ledger if entry.charge is not None), default=0)
        return last if self.ledger.budget is not None and last < self.plan.data_rounds else None

    @property
    def client_numbers(self) -> tuple[str, ...]:
        """The numbers that :meth:`clients` has beside n and rounds."""
        found = (self.noise[0], "epsilon", "paper_epsilon")
        return found if self.paper_epsilon is not None else found[:2]

    def clients(self) -> list[dict[str, Any]]:
        """Return a line for every client; None stands for infinity."""
        sizes, paper, (name, noise) = self.plan.facts.sizes, self.paper_epsilon, self.noise
        columns = {"n": sizes, "rounds": self.ledger.rounds, name: noise, "epsilon": self.epsilon}
        if paper is not None:
            columns["paper_epsilon"] = paper
        return [
            {"client": i, **{key: _plain(values[i].item()) for key, values in columns.items()}}
            for i in range(sizes.size)
        ]

    def row(self) -> dict[str, str]:
        """Return the variant's cells of the table."""
        rounds, (name, noise), paper = self.ledger.rounds, self.noise, self.paper_epsilon
        cells = {
            "iterations": str(self.iterations),
            "data rounds": str(self.plan.data_rounds),
            "rounds of a client": f"{rounds.min()} to {rounds.max()}",
            f"{name} (least, median, most)": ", ".join(map(significant, (noise.min(), np.median(noise), noise.max()))),
        }
        if (budget := self.ledger.budget) is not None:
            lasts = "to the end" if self.stops_after is None else f"{self.stops_after} data rounds"
            cells |= {"budget": f"{significant(budget.epsilon)} at {budget.delta:g}", "budget lasts": lasts}
        if not self.ledger.promise.is_claimed:
            cells |= {"epsilon": "none is claimed"}
        else:
            spread = _spread(self.epsilon)
            cells |= {
                f"epsilon ({self.ledger.claim}), {SPREAD[of]}": significant(value) for of, value in spread.items()
            }
            if self.plain_epsilon is not None and self.delta > 0:
                cells |= {"epsilon at delta = 0 (plain sum), worst": significant(self.plain_epsilon.max())}
        if paper is not None:
            cells |= {"paper's number (not proven), worst": significant(paper.max())}
        return cells

    def as_json(self) -> dict[str, Any]:
        claimed, paper, plain = self.ledger.promise.is_claimed, self.paper_epsilon, self.plain_epsilon
        budget = self.ledger.budget
        spread = {key: _plain(value) for key, value in _spread(self.epsilon).items()}
        return {
            "title": self.title.replace("\n", " "),
            "iterations": self.iterations,
            "data_rounds": self.plan.data_rounds,
            "delta": self.delta,
            "budget": None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta},
            "stops_after": self.stops_after,
            "epsilon": spread if claimed else None,
            "plain_epsilon": None if plain is None else _plain(float(plain.max())),
            "paper_epsilon": None if paper is None else _plain(float(paper.max())),
            "clients": self.clients(),
        }


@dataclass(frozen=True)
class Explanation:
    """What is protected, in words, and what each way to run the file costs."""

    sentences: tuple[str, ...]
    variants: tuple[Scenario, ...] = ()
    remarks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    plain: tuple[tuple[str, str], ...] = ()
    """What is protected, from whom, how far and what is not, for those whose records they are: topics and sentences."""

    @property
    def is_private(self) -> bool:
        """Whether an epsilon is claimed and the noise is real."""
        ledgers = [variant.ledger for variant in self.variants]
        return bool(ledgers) and all(one.promise.is_claimed and not one.is_simulation for one in ledgers)

    def as_json(self) -> dict[str, Any]:
        return {
            "private": self.is_private,
            "statement": list(self.sentences),
            "variants": [variant.as_json() for variant in self.variants],
            "remarks": list(self.remarks),
            "warnings": list(self.warnings),
        }


def explain(experiment: Experiment, source: str, delta: float | None = None) -> Explanation:
    """Say what a config file protects: vanilla and upcycled at its iterations, and vanilla at equal data rounds.

    Args:
        experiment: from :func:`upcycled.config.experiment.load_config`.
        source: the file's name, for error sentences.
        delta: to state epsilon at; if left out, the one that a run of the file states it at.
    """
    if experiment.privacy is None:
        return Explanation((_NOTHING,))
    keys = PLAN_KEYS | {"delta": "privacy.delta" if delta is None else "--delta"}
    with named(source), in_keys(keys), collected_warnings() as found:
        data, seed = experiment.build_data(), experiment.seeds[0]
        spec = experiment.spec(seed)
        # What upcycled iterations cost does not depend on how far they go.
        upcycle = spec.upcycle if spec.upcycle is not None else Constant(0.5)
        total = experiment.iterations
        variants = []
        for title, rule, iterations in (
            ("vanilla", None, total),
            ("upcycled", upcycle, total),
            ("vanilla, as many\ndata rounds as upcycled", None, -(-total // 2)),
        ):
            plan = make_plan(data, spec.replace(upcycle=rule, iterations=iterations))
            variants.append(_variant(title, iterations, plan, delta))
        own = variants[1] if spec.upcycle is not None else variants[0]
        words = tuple(own.ledger.statement(own.delta).splitlines())
        charged = _charged_to(experiment, own.plan)
    size = f"The model has {count(own.plan.layout.size)} parameters: a release of it is so many numbers."
    remarks = (size, *_remarks(experiment, variants), *charged, *_read_off(data.inferred))
    ledger = own.ledger
    plain = plain_words(ledger.promise, ledger.claim, ledger.is_simulation, float(own.epsilon.max()), own.delta)
    return Explanation(words, tuple(variants), remarks, tuple(found), plain)


def planned_ledger(plan: Plan) -> Ledger:
    """Return the ledger as the run would leave it: every scheduled charge, and nothing trained."""
    assert plan.setting is not None  # callers have a private plan
    ledger = Ledger(plan.mechanism, plan.spec.noise, plan.setting, plan.spec.budget)
    clients, seed = plan.facts.num_clients, plan.spec.seed
    for iteration in range(1, plan.iterations + 1):
        m = plan.strategy.data_rounds(iteration)
        if m == plan.strategy.data_rounds(iteration - 1):
            _plan_scores(plan, ledger, iteration, m)
            continue
        attempt, cohort = 0, everybody(clients)
        if not plan.mechanism.draws_secretly:  # secret draws are charged to everybody
            cohort, attempt = plan.participation.draw_nonempty(seed, m, clients, epochs=1)
        charge = plan.mechanism.charge(cohort)
        paying = ledger.can_pay(charge)
        if not paying.all():
            ledger.leave_out(iteration, m, attempt, cohort.clients[~paying])
            if not paying.any():  # the run stops here
                break
            cohort = cohort[paying]
            charge = plan.mechanism.charge(cohort)
        if charge is not None and cohort.clients.size:
            ledger.charge(iteration, m, attempt, charge)
        _plan_scores(plan, ledger, iteration, m)
    ledger.end()
    return ledger


def _plan_scores(plan: Plan, ledger: Ledger, iteration: int, round: int) -> None:
    if plan.scores is not None and plan.task.test is not None and plan.scores.is_due(iteration):
        pay_for_scores(ledger, plan.scores, plan.task.test.sizes, iteration, round)


def _variant(title: str, iterations: int, plan: Plan, delta: float | None) -> Scenario:
    ledger = planned_ledger(plan)
    delta = ledger.default_delta if delta is None else delta
    paper = ledger.paper_epsilon(delta) if ledger.states_paper_epsilon else None
    plain = ledger.epsilon(0.0) if kind_named(ledger.kind).is_pure else None
    return Scenario(title, iterations, ledger, plan, delta, ledger.epsilon(delta), plain, paper)


def _remarks(experiment: Experiment, variants: list[Scenario]) -> tuple[str, ...]:
    found = [
        "Upcycled iterations cost nothing because they reuse releases; the saving is that of taking half the data "
        "rounds, which the third column shows for a vanilla run.",
    ]
    if variants[0].paper_epsilon is not None:
        found.append(
            "The paper's number rests on an assumption that does not hold for trained models (one record moves the "
            "clipped model by clip_norm/n; in objective perturbation u1 = 1): do not rely on it."
        )
    if any(variant.stops_after is not None for variant in variants):
        found.append(
            "A run whose budget is spent stops there and keeps its model, history and ledger; the claim is the budget."
        )
    if len(experiment.seeds) > 1:
        found.append(
            f"These are the numbers of one run, with seed {experiment.seeds[0]}; the file has "
            f"{len(experiment.seeds)} seeds, and all runs on the same data add up."
        )
    return tuple(found)


def _charged_to(experiment: Experiment, plan: Plan) -> tuple[str, ...]:
    """Say what a run of the file charges to its account, and whether it can pay; nothing is charged here."""
    path = plan.spec.account_path
    if path is None:
        return ()
    account = Account(path)
    seeds = experiment.seeds
    costs = [cost for seed in seeds for cost in costs_of(replan(plan, experiment.spec(seed)))]
    runs = "The run" if len(seeds) == 1 else f"The {len(seeds)} runs of this file together"
    terms = account.terms
    found = (
        f"{runs} will be charged to account {account.id}: {percent(account.share_of(costs))} of the worst client's "
        f"budget of epsilon {general(terms.epsilon)} at delta {general(terms.delta)}."
    )
    names = [name for cost in costs for name in cost.clients]
    new = tuple(f"{words[0].upper()}{words[1:]}." for words in new_to_account(account, names))
    try:
        account.check(costs, runs[0].lower() + runs[1:])
    except InputError as error:
        return found, *new, f"It will be refused: {error}."
    return found, *new


def _read_off(inferred: frozenset[str]) -> tuple[str, ...]:
    if not inferred:
        return ()
    facts = ", ".join(sorted(inferred))
    return (f'Read off the data: {facts}. A simulation may; with noise = "system" what is public must be given.',)


_NOTHING = (
    "Nothing is protected: the file has no [privacy] table, so clients send their trained models as they are. "
    f"Whoever sees them may learn about single records. Also not covered: {NOT_COVERED}."
)


SPREAD = {"worst": "worst client", "median": "median", "best": "best"}


def _spread(values: Real) -> dict[str, float]:
    return {"worst": float(values.max()), "median": float(np.median(values)), "best": float(values.min())}


def _plain(value: float) -> float | None:
    return value if np.isfinite(value) else None
