"""Whether a kept run may go on to more iterations than it was planned with: what is done must not depend on how many.

What is compared is what was used, not what it is called: rates, coefficients and charges of the rounds that are done,
under the number of rounds of then and of now.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from upcycled.aggregators import Median, Samples, TrimmedMean
from upcycled.coefficients import Anderson, FedExP, Hypergradient, Repeated, Trend
from upcycled.coefficients.scalar import Coefficient, ScalarRule
from upcycled.core.errors import InputError
from upcycled.core.mechanism import Fitted, meets_epsilon
from upcycled.core.sampler import everybody
from upcycled.core.solvers.local import rate_at
from upcycled.core.strategy import Upcycled
from upcycled.runtime.checkpointing.fingerprint import plain_form
from upcycled.runtime.plan import Plan, plan_of
from upcycled.runtime.spec import local_of

_WITHOUT_HORIZON = (Trend, Hypergradient, FedExP, Anderson)
"""Rules that do not look at ``Observed.horizon``."""

_SAME_EVERY_ROUND = (Samples, Median, TrimmedMean)
"""Aggregators that do not look at ``Received.horizon``."""


def check_extension(plan: Plan, before: int, done: int, where: str) -> None:
    """Refuse to go on from a run that was planned with fewer iterations, if what it did would have been other by now.

    Args:
        plan: of the longer run.
        before: the iterations that were planned.
        done: the data rounds that are done.
        where: what the run is kept in, for the sentence.

    Raises:
        InputError: in one sentence that says what depends on the number of iterations.
    """
    reason = next(_reasons(plan, before, done), None)
    if reason is not None:
        raise cannot_extend(plan, before, where, reason)


def cannot_extend(plan: Plan, before: int, where: str, reason: str) -> InputError:
    """Return the sentence for a run that cannot go on, since ``reason`` depends on how many iterations there are."""
    return InputError(
        field="iterations",
        value=plan.iterations,
        but=f"{where} holds a run that was planned with {before}, and {reason} depends on how many there are: choose "
        "another folder, or remove that one to start again",
    )


def _reasons(plan: Plan, before: int, done: int) -> Iterator[str]:
    spec, strategy = plan.spec, plan.strategy
    then, now = strategy.data_rounds(before), plan.data_rounds
    lr = local_of(spec).local.lr
    if any(rate_at(lr, m, then) != rate_at(lr, m, now) for m in range(1, done + 1) if callable(lr)):
        yield "the schedule of local.lr"
    if isinstance(strategy, Upcycled) and _looks_at_horizon(strategy.rule, then, now, done):
        yield "the coefficient of upcycled iterations"
    if not isinstance(plan.aggregator or Samples(), _SAME_EVERY_ROUND):
        yield "the weighting of releases"
    if spec.privacy is None:
        return
    if meets_epsilon(spec.privacy):
        yield "the noise, which is calibrated to its epsilon,"
    elif _numbers(plan_of(plan.facts, spec.replace(iterations=before))) != _numbers(plan):
        yield "what a round of the mechanism charges"
    if plan.scores is not None and before % plan.scores.wanted.every:
        yield "when there are charged scores"
    if spec.budget is not None and spec.noise == "system":
        yield "what the budget sets aside for the sampling of noise"


def _looks_at_horizon(rule: Any, then: int, now: int, done: int) -> bool:
    if isinstance(rule, Repeated):
        return _looks_at_horizon(rule.rule, then, now, done)
    if isinstance(rule, ScalarRule):
        return _looks_at_horizon(rule.coefficient, then, now, done)
    if isinstance(rule, Coefficient):
        return any(rule.rho(m, then) != rule.rho(m, now) for m in range(1, done + 1))
    # A rule of somebody's own may look at it, and nobody else knows.
    return not isinstance(rule, _WITHOUT_HORIZON)


def _numbers(plan: Plan) -> Any:
    """Return what a fitted mechanism is made of, as far as anybody but itself can see."""
    fitted: Fitted = plan.mechanism
    charge = fitted.charge(everybody(plan.facts.sizes.size))
    return plain_form([charge, fitted.norm_bound, fitted.prox_mu, fitted.alpha, dict(fitted.shared), plan.solver])
