"""What an account commits itself to when it is opened: pots, each a filter of its own, whose epsilons and deltas add.

A pot adds up one number a client and refuses what would make it exceed its limit; the claim is the pot's (epsilon,
delta), whatever later releases depended on.

- ``gaussian`` takes Gaussian releases: (sensitivity / noise_std)^2 adds up to mu^2 of (epsilon, delta), exactly (Smith
  and Thakurta 2022).
- ``pure`` takes pure releases: their epsilons add up, at delta = 0.
- ``mixed`` takes Gaussian, pure and sampled ones: their Renyi divergences at one order add up (Feldman and Zrnic 2021).
  The order is fixed at opening and costs some percent of mu.

Optimal composition and privacy loss distributions are never used: as filters they are unsound.

Real noise is not exact. A Gaussian pot sets a part of delta aside for so many draws, fixed at opening; a mixed one adds
what each draw costs, and 2^-10 of delta covers the sampler's end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from upcycled._utils.formats import general
from upcycled.core.errors import FRACTION, POSITIVE, InputError, Limits, check_fields, shown, unknown
from upcycled.core.mechanism import Charge
from upcycled.core.vectors import Real
from upcycled.privacy.accounting import gdp_epsilon, gdp_mu
from upcycled.privacy.accounting.discrete_noise import PARTS, most_draws, part_of_delta
from upcycled.privacy.accounting.gaussian import ROOM
from upcycled.privacy.accounting.renyi import best_order, renyi_budget, renyi_epsilon
from upcycled.privacy.charge_kinds import kind_named, kind_of

POTS = ("gaussian", "pure", "mixed")
"""The kinds of pots; which of them takes a charge, its kind says."""
UNITS = ("record", "client")
MOST_DRAWS = 2**53
USUAL_DRAWS = 10_000_000
"""A Gaussian pot pays for at least so many, if a tenth of its delta can."""
PART = 2.0**-10
"""Of a mixed pot's delta: what covers the sampler's end."""
_END = 2.0**-125
"""What lies past the sampler's reach, a draw."""


@dataclass(frozen=True)
class Pot:
    """One filter, and all that it was fixed to at opening."""

    kind: str
    epsilon: Annotated[float, POSITIVE]
    delta: Annotated[float, FRACTION]
    order: Annotated[float, Limits(above=1)] | None = None
    """Of a mixed pot."""
    draws: Annotated[int, Limits(at_least=0, at_most=MOST_DRAWS, integer=True)] = 0
    """The most numbers of real Gaussian noise that a client may be charged for."""

    def __post_init__(self) -> None:
        if self.kind not in POTS:
            raise unknown("kind", self.kind, POTS)
        check_fields(self)
        if (self.delta == 0) != (self.kind == "pure"):
            must = "0 for pure releases" if self.kind == "pure" else "> 0: only pure releases have an epsilon at 0"
            raise InputError(field="delta", value=self.delta, must=must)
        if (self.order is None) == (self.kind == "mixed"):
            but = "a mixed account has one" if self.kind == "mixed" else f"a '{self.kind}' account has none"
            raise InputError(field="order", value=self.order, but=but)
        if not self.limit > 0:
            must = "larger: at this order and delta nothing would be left to spend"
            raise InputError(field="epsilon", value=self.epsilon, must=must)
        if self.kind == "mixed" and self.draws * _END * (1 + math.exp(min(self.epsilon, 700))) > PART * self.delta:
            raise InputError(field="draws", value=self.draws, must="fewer: their sampler's end would not fit in delta")

    @cached_property
    def limit(self) -> float:
        """What a client's sum may reach."""
        if self.kind == "pure":
            return self.epsilon
        # Less by more than the room that sums of many charges get for rounding.
        less = 1 - 4 * ROOM
        if self.order is not None:
            return less * renyi_budget(epsilon=self.epsilon, order=self.order, delta=self._rest)
        return less * float(gdp_mu(epsilon=self.epsilon, delta=self._rest)) ** 2

    def costs(self, charge: Charge) -> Real:
        """Return what a charge adds to each of its clients' sums; infinite where nothing bounds it.

        Raises:
            InputError: for a kind that this pot has no rule for.
        """
        columns = kind_of(charge)
        if self.kind not in columns.pots:
            raise InputError(f"a '{self.kind}' budget: no rule for charges of kind '{charge.kind}'")
        return columns.pot_cost() if self.order is None else columns.renyi(self.order)

    def epsilon_of(self, spent: float) -> float:
        """Return the epsilon of what was spent so far, by the pot's own rule: the claim is the pot's epsilon."""
        if spent == 0 or self.kind == "pure":
            return spent
        if self.order is not None:
            return renyi_epsilon(spent=spent, order=self.order, delta=self._rest)
        return float(gdp_epsilon(mu=math.sqrt(spent), delta=self._rest)) if math.isfinite(spent) else math.inf

    @property
    def _rest(self) -> float:
        """What the sampler leaves of delta."""
        if self.order is not None:
            return self.delta * (1 - PART)
        return self.delta * (1 - float(part_of_delta(epsilon=self.epsilon, delta=self.delta, draws=self.draws)))

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("kind", "epsilon", "delta", "order", "draws")}


def make_pot(kind: str, epsilon: float, delta: float, order: float | None = None, draws: int | None = None) -> Pot:
    """Return a pot with the best order for its budget, and as many draws as a small part of delta pays for."""
    if kind not in POTS:
        raise unknown("kind", kind, POTS)
    POSITIVE.check("epsilon", epsilon)
    FRACTION.check("delta", delta)
    epsilon, delta = float(epsilon), float(delta)
    if kind == "mixed" and order is None and delta > 0:
        order = best_order(epsilon=epsilon, delta=delta * (1 - PART))
    if draws is None:
        draws = _usual_draws(kind, epsilon, delta)
        if draws == 0 and kind != "pure" and delta > 0:
            but = f"delta {general(delta)} pays for no number of real noise beside it, so that nothing could be charged"
            raise InputError(field="epsilon", value=epsilon, but=f"{but}: take a larger delta, or a smaller epsilon")
    return Pot(kind, epsilon, delta, None if order is None else float(order), draws)


def _usual_draws(kind: str, epsilon: float, delta: float) -> int:
    if kind == "pure" or delta == 0:
        return 0
    if kind == "mixed":
        return int(min(PART * delta / (_END * (1 + math.exp(min(epsilon, 700)))), MOST_DRAWS))
    paid = [most_draws(epsilon=epsilon, delta=delta, part=part) for part in PARTS]
    return int(min(next((draws for draws in paid if draws >= USUAL_DRAWS), paid[-1]), MOST_DRAWS))


@dataclass(frozen=True)
class Commitment:
    """An account's public terms, fixed when it was opened."""

    id: str
    """Random; all that tells accounts apart in public."""
    unit: str
    """``"record"`` or ``"client"``."""
    pots: tuple[Pot, ...]

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise unknown("unit", self.unit, UNITS)
        if not self.pots or len({pot.kind for pot in self.pots}) < len(self.pots):
            raise InputError("must be one or more, each of a kind of its own", field="pots")
        FRACTION.check("delta", self.delta)

    @property
    def epsilon(self) -> float:
        """What no client exceeds over all studies: the pots' add up."""
        return math.fsum(pot.epsilon for pot in self.pots)

    @property
    def delta(self) -> float:
        """The delta that goes with it."""
        return math.fsum(pot.delta for pot in self.pots)

    def place_of(self, kind: str) -> int | None:
        """Return which pot pays for charges of a kind, one that takes no others first; None where none does."""
        places = [i for i, pot in enumerate(self.pots) if pot.kind in kind_named(kind).pots]
        return min(places, key=lambda i: self.pots[i].kind == "mixed", default=None)

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "unit": self.unit, "pots": [pot.to_json() for pot in self.pots]}


def commitment_of(value: object) -> Commitment:
    """Return the terms that ``to_json`` gave; ValueError, in words, for anything else."""
    if not isinstance(value, Mapping) or not isinstance(value.get("pots"), list):
        raise ValueError("it has no account's terms")
    try:
        pots = tuple(Pot(**pot) for pot in value["pots"])
        found = Commitment(value["id"], value["unit"], pots)
        if not isinstance(found.id, str):
            raise ValueError(f"its id is {shown(found.id)}")
    except (KeyError, TypeError, InputError) as error:
        raise ValueError(f"its account's terms are no such ({error})") from None
    if found.to_json() != value:
        raise ValueError("its account's terms are not as an account writes them")
    return found
