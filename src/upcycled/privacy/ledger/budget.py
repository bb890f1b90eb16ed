"""The most a client may spend, enforced by a filter that holds for rounds chosen on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from upcycled.core.errors import FRACTION, POSITIVE, InputError, check_fields
from upcycled.core.mechanism import Fitted, Setting
from upcycled.core.sampler import everybody
from upcycled.privacy.accounting.sampler import part_of_delta
from upcycled.privacy.mechanisms.requirements import check_delta


@dataclass(frozen=True)
class Budget:
    """The most a client may spend over all its data rounds, enforced before it trains: ``train(..., budget=...)``.

    A client that cannot pay for a round is left out of it, and the ledger says so; when no client of a round can pay,
    the run stops with :class:`BudgetSpentError`. The claim is then the budget, whatever the rounds depended on.

    A valid filter for adaptive rounds: Gaussian releases by sum (sensitivity / noise_std)^2, pure ones by their plain
    sum. Real noise takes a part of delta for its sampler's error, set aside beforehand. Sampled releases are refused:
    no accountant gives their Renyi divergence under replace-one, and their epsilon holds for a schedule fixed in
    advance only. That a client is left out discloses what it spent, which depends on its size and the schedule, not on
    its records.

    Args:
        epsilon: the most.
        delta: the delta that goes with it; 0 for pure releases only.

    >>> Budget(epsilon=2.0, delta=1e-5)
    Budget(epsilon=2.0, delta=1e-05)
    """

    epsilon: Annotated[float, POSITIVE]
    delta: Annotated[float, FRACTION]

    def __post_init__(self) -> None:
        check_fields(self)


def check_budget(budget: Budget | None, mechanism: Fitted, setting: Setting) -> None:
    """Refuse a budget that no filter can enforce for this mechanism."""
    charge = mechanism.charge(everybody(setting.sizes.size))
    if budget is None or charge is None:
        return
    try:
        check_delta(budget.delta, setting.sizes, mechanism.promise.unit)
    except InputError as error:
        raise error.renamed("budget.delta") from None
    if charge.kind == "gaussian" and budget.delta == 0:
        raise InputError(
            field="budget.delta",
            value=budget.delta,
            but="Gaussian noise reaches no epsilon at delta = 0: it must be > 0",
        )
    if charge.kind not in ("gaussian", "pure"):
        raise InputError(
            f"a budget cannot be enforced for '{mechanism.name}': its rounds compose by a schedule fixed in advance; "
            "calibrate with epsilon= and delta= instead"
        )
    set_aside(budget, planned_draws(mechanism, setting))


def planned_draws(mechanism: Fitted, setting: Setting) -> int:
    """Return how many numbers of real noise a client may need over all planned rounds and scores."""
    charge = mechanism.charge(everybody(setting.sizes.size))
    if charge is None or charge.draws is None or not charge.draws.size:
        return setting.score_draws
    return int(charge.draws.max()) * max(setting.data_rounds, 1) + setting.score_draws


def set_aside(budget: Budget, planned: int) -> float:
    """Return the part of a budget's delta that so many numbers of real noise take; refuse more than a tenth."""
    if budget.delta == 0:
        return 0.0
    return float(part_of_delta(epsilon=budget.epsilon, delta=budget.delta, draws=planned))
