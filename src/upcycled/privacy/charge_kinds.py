"""The kinds of charges: one class a kind holds its columns, their ranges, their JSON, and how charges add up.

Ledgers, accounts, joint composition, evidence and sites know a kind by its class in :data:`KINDS` alone. A new kind is
a frozen, keyword-only dataclass with :func:`register` on it, in the package or outside of it::

    @register
    @dataclass(frozen=True, eq=False, kw_only=True)
    class Laplace(ChargeKind):
        kind: ClassVar = "laplace"
        ratio: Annotated[Real, Limits(at_least=0, at_most=MOST)]  # a column of its own
        totals: ClassVar = {"ratios": Total(np.add, 0.0)}

        def amounts(self): return {"ratios": self.ratio}

        @classmethod
        def epsilons(cls, points, delta): return [ratios for ratios, _ in points]

A mechanism then charges ``Charge("laplace", clients, sensitivity, noise_std, more={"ratio": ...})``. What the class
leaves out is refused with an error and never guessed: a budget, an account, events of dp_accounting.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError, Limits, limits_of, shown
from upcycled.core.mechanism import Charge, charge_of
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.accounting import gdp_epsilon, gdp_mu, pure_composition_epsilon, sampled_gaussian_epsilon
from upcycled.privacy.accounting.discrete_noise import epsilon_of_draws, most_draws, part_of_delta
from upcycled.privacy.accounting.gaussian import squared_ratio
from upcycled.privacy.accounting.renyi import draws_renyi, gaussian_renyi, pure_renyi, sampled_renyi
from upcycled.privacy.accounting.sampled import quick_sampled_epsilon

MOST, MOST_COUNT = 1e300, 2**53
Numbers: TypeAlias = Annotated[Real, Limits(at_least=0, at_most=MOST)]
Counts: TypeAlias = Annotated[Ints, Limits(at_least=0, at_most=MOST_COUNT, integer=True)]

Point: TypeAlias = tuple[float, ...]
"""All that the epsilon of a client depends on; more of any coordinate is worse."""
Event: TypeAlias = tuple[str, float, float]
"""An event of ``dp_accounting``: (class, noise multiplier or parameter, sampling rate)."""
GAUSSIAN, SAMPLED, PURE = "GaussianDpEvent", "PoissonSampledDpEvent", "RandomizedResponseDpEvent"


_limits: Callable[[type], Mapping[str, Limits]] = cache(limits_of)


@dataclass(frozen=True)
class Total:
    """A number that a client's charges add up to."""

    how: np.ufunc
    """How a charge joins it: ``np.add``, ``np.maximum`` or ``np.minimum``."""
    start: float
    """Its value before the first charge; an integer for totals of integers."""

    def of(self, num_clients: int) -> Any:
        """Return its value for so many clients; zeros take memory only where they are written."""
        return np.full(num_clients, self.start) if self.start else np.zeros(num_clients, dtype=type(self.start))


@dataclass(frozen=True, eq=False)
class Totals:
    """What the charges of some clients add up to."""

    clients: Ints
    values: Mapping[str, Any]
    """The totals of the kind by name, and ``draws``: one number for each client."""
    charges: Sequence[Charge]
    """All charges, also those of other clients."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ChargeKind:
    """The columns of one charge. Subclasses add columns as fields, with their ranges, and say how charges add up.

    Every column but ``noise_std`` must cost more the larger it is.
    """

    kind: ClassVar[str] = ""
    """The name in ledgers."""
    is_claimed: ClassVar[bool] = True
    """Whether an epsilon is claimed."""
    is_pure: ClassVar[bool] = False
    """Whether the plain sum is an epsilon at delta = 0."""
    has_gaussian_noise: ClassVar[bool] = False
    """Whether ``noise_std`` is the std of Gaussian noise, which joins something that moves by ``sensitivity``."""
    is_noisy_vector: ClassVar[bool] = False
    """Whether that noise joins the released vector itself."""
    is_exact: ClassVar[bool] = False
    """Whether charges of several ledgers compose exactly or optimally as those of one."""
    is_filterable: ClassVar[bool] = False
    """Whether a budget can be enforced: whether :meth:`fits` is there."""
    pots: ClassVar[tuple[str, ...]] = ()
    """The kinds of an account's budgets that take it: ``"mixed"`` if :meth:`renyi` is there."""
    totals: ClassVar[Mapping[str, Total]] = {}
    """What charges add up to."""
    is_slow: ClassVar[bool] = True
    """Whether the worst epsilon is computed only for clients that no other exceeds."""
    seconds: ClassVar[float] = 0.0
    """How long the epsilon of one client takes."""

    clients: Ints
    sensitivity: Annotated[Real, Limits(at_least=0, at_most=math.inf)]
    noise_std: Numbers
    draws: Counts | None = None

    # The columns, and how a ledger writes them

    @classmethod
    def columns(cls) -> Mapping[str, Limits]:
        """Return the ranges of the columns, ordered as in ledgers; ``draws``, the last, is there with real noise."""
        limits = _limits(cls)
        return {name: limits[name] for name in limits if name != "draws"} | {"draws": limits["draws"]}

    def as_charge(self) -> Charge:
        """Return the columns as a charge."""
        columns = {"clients": self.clients} | {name: getattr(self, name) for name in self.columns()}
        return charge_of(self.kind, {name: values for name, values in columns.items() if values is not None})

    def to_json(self) -> dict[str, Any]:
        """Return the charge as plain values, without its clients."""
        found: dict[str, Any] = {"charge": self.kind}
        for name, limits in self.columns().items():
            if (values := getattr(self, name)) is not None:
                found[name] = np.asarray(values, dtype=np.int64 if limits.integer else np.float64).tolist()
        return found

    @classmethod
    def from_json(cls, line: Mapping[str, Any], clients: Ints) -> Self:
        """Return the columns that :meth:`to_json` gave, whatever their ranges; KeyError or ValueError if invalid."""
        columns: dict[str, Any] = {
            name: integers(line, name) if limits.integer else _numbers(line, name)
            for name, limits in cls.columns().items()
            if name != "draws" or name in line
        }
        return cls(clients=clients, **columns)

    def check(self) -> None:
        """Reject columns of another length, and numbers out of range, with a ValueError."""
        for name, limits in self.columns().items():
            if (given := getattr(self, name)) is None:
                continue
            values = np.asarray(given, dtype=np.int64 if limits.integer else np.float64)
            if values.shape != self.clients.shape:
                raise ValueError("a charge needs one number for each client")
            least, most = limits.at_least if limits.above is None else limits.above, limits.at_most
            assert least is not None  # checked by register
            assert most is not None
            is_within = (values >= least if limits.above is None else values > least) & (values <= most)
            if not is_within.all():
                start = "from" if limits.above is None else "above"
                raise ValueError(f"its {name} is {values[~is_within][0]:g}, and must be {start} {least:g} to {most:g}")
        self._check_amounts()

    def _check_amounts(self) -> None:
        """Reject amounts that would be lost in the totals, with a ValueError."""
        with np.errstate(all="ignore"):  # what a file says may be beyond all numbers
            amounts = self.amounts()
        if {*amounts} != {*self.totals}:
            given, expected = (", ".join(sorted(names)) or "nothing" for names in (amounts, self.totals))
            raise ValueError(f"the kind '{self.kind}' adds to {given}; expected {expected}")
        for name, values in amounts.items():
            if np.isnan(values).any():
                raise ValueError(f"what it adds to {name} is not a number")
            if isinstance(self.totals[name].start, int) and np.not_equal(values, np.floor(values)).any():
                raise ValueError(f"what it adds to {name} is not an integer, but the total begins at an integer")

    # How charges add up

    def amounts(self) -> Mapping[str, Real | Ints]:
        """Return what this charge adds to each of ``totals``: one number for each client."""
        return {}

    @classmethod
    def points(cls, totals: Totals) -> list[Point]:
        """Return what the epsilon of each client follows from: its totals in order, then its draws."""
        columns = [totals.values[name].tolist() for name in (*cls.totals, "draws")]
        return list(zip(*columns, strict=True))

    @classmethod
    def epsilons(cls, points: Sequence[Point], delta: float) -> list[float]:
        """Return the epsilon of each point; infinite where none is provable."""
        raise NotImplementedError

    @classmethod
    def all_epsilons(cls, totals: Totals, delta: float) -> Real:
        """Return the epsilon of each client."""
        points = cls.points(totals)
        distinct = list(set(points))
        values = dict(zip(distinct, cls.epsilons(distinct, delta), strict=True))
        return np.array([values[point] for point in points], dtype=np.float64)

    @classmethod
    def frontier(cls, points: Iterable[Point]) -> list[Point]:
        """Return the points that the worst epsilon follows from."""
        if any(total.how is np.minimum for total in cls.totals.values()):
            return list(set(points))  # less of a minimum may be worse: no point exceeds another
        return pareto(points)

    @classmethod
    def most_computed(cls, frontier: int) -> int | None:
        """Return how many epsilons a curve over rounds has at most, where so many clients are on the frontier."""
        return None

    @classmethod
    def curve(cls, frontiers: Sequence[Sequence[Point]], end: float, delta: float) -> list[float]:
        """Return the worst epsilon of each frontier, none above ``end``, which all charges together cost."""
        flat = cls.epsilons([point for each in frontiers for point in each], delta) if frontiers else []
        ends = np.cumsum([len(each) for each in frontiers], dtype=np.int64).tolist()
        return [max(flat[stop - len(each) : stop], default=0.0) for each, stop in zip(frontiers, ends, strict=True)]

    # What plans, budgets, accounts and sites ask

    def worst_row(self) -> Charge:
        """Return one row that exceeds every client's in every column."""
        given = {name: getattr(self, name) for name in self.columns()}
        worst = {name: values.max(keepdims=True) for name, values in given.items() if values is not None}
        worst["noise_std"] = self.noise_std.min(keepdims=True)
        return charge_of(self.kind, {"clients": np.zeros(1, dtype=np.int64), **worst})

    def repeated(self, times: Ints) -> Charge | None:
        """Return one charge that composes to so many of each client; None if there is none."""
        return None

    def distance(self) -> Real:
        """Return how far neighbours may lie apart."""
        return self.sensitivity

    def fits(self, totals: Totals, epsilon: float, delta: float, planned_draws: int) -> NDArray[np.bool_]:
        """Return which clients stay within a budget, as a filter, if this charge joins their totals.

        With real noise the part of delta is set aside that ``planned_draws`` need, which bounds the draws. It is the
        same for every charge, or the filter would hold to none.
        """
        raise no_rule(self.kind)

    def pot_cost(self) -> Real:
        """Return what a budget of this kind's own adds up, in an account; of a pure kind, epsilon at delta = 0."""
        raise no_rule(self.kind)

    def renyi(self, order: float) -> Real:
        """Return the Renyi divergence at one order, for mixed budgets of an account."""
        raise no_rule(self.kind)

    def events(self, place: int) -> list[tuple[Event, int]] | None:
        """Return the charge at this place as events of ``dp_accounting``, each with its count; None if unbounded."""
        raise InputError(f"ledger: no event of dp_accounting stands for a charge of kind '{self.kind}'")


KINDS: dict[str, type[ChargeKind]] = {}
"""The registered kinds by name."""
RESERVED = {"attempt", "chain", "charge", "clients", "cost", "first", "iteration", "kind", "more", "round"} | {
    *("question", "rows", "times")
}
"""Names that lines of ledgers and accounts have beside the columns."""
K = TypeVar("K", bound=type[ChargeKind])


def register(made: K) -> K:
    """Add a kind to :data:`KINDS`: a class decorator.

    Raises:
        InputError: if the name is taken, a column has no range or a name that ledgers use for something else, or a
            method is missing that its class variables ask for.
    """
    known = KINDS.get(made.kind)
    where = f"kind of charge {shown(made.kind)}"
    if known is not None and (known.__module__, known.__qualname__) != (made.__module__, made.__qualname__):
        raise InputError(f"{where} is registered already; choose another name")
    if not made.kind:
        raise InputError(f"{where}: a kind needs a name")
    if wrong := sorted(RESERVED & set(made.columns())):
        raise InputError(f"{where}: '{wrong[0]}' is no name for a column; ledgers use it for something else")
    if missing := {column.name for column in fields(made)} - {"clients", *made.columns()}:
        raise InputError(f"{where}: column '{min(missing)}' has no range; annotate it with Limits")
    for limits in made.columns().values():
        if limits.at_most is not None and (limits.above is None) != (limits.at_least is None):
            continue
        raise InputError(f"{where}: each column needs Limits with at_most, and either above or at_least")
    _check_members(made, where)
    KINDS[made.kind] = made
    return made


def _check_members(made: type[ChargeKind], where: str) -> None:
    """Reject a kind that leaves out what its charges, budgets or accounts would ask for."""

    def is_own(name: str) -> bool:
        return inspect.getattr_static(made, name) is not inspect.getattr_static(ChargeKind, name)

    if "draws" in made.totals:
        raise InputError(f"{where}: 'draws' is no name for a total; draws add up for every kind")
    if made.is_claimed and not (made.totals or is_own("points")):
        raise InputError(f"{where}: an epsilon is claimed, but nothing adds up; give it totals, or is_claimed = False")
    needs = {
        "epsilons": made.is_claimed,
        "amounts": bool(made.totals),
        "fits": made.is_filterable,
        "renyi": "mixed" in made.pots,
        "pot_cost": bool({*made.pots} - {"mixed"}),
    }
    for name, is_needed in needs.items():
        if is_needed and not is_own(name):
            raise InputError(f"{where}: it has no method {name}, which its class variables ask for")


def kind_named(name: str | None) -> type[ChargeKind]:
    """Return the class of a kind; of None, where nothing is charged, the base class. InputError if it is unknown."""
    if name is None:
        return ChargeKind
    if not isinstance(name, str) or name not in KINDS:
        raise InputError(f"unknown kind of charge {shown(name)}; expected one of {', '.join(KINDS)}")
    return KINDS[name]


def kind_of(charge: Charge) -> ChargeKind:
    """Return a charge's columns as those of its kind; InputError for an unknown kind, or columns of another one."""
    made, columns = kind_named(charge.kind), charge.columns
    given, expected = {*columns} - {"clients", "draws"}, {*made.columns()} - {"draws"}
    if given != expected:
        raise InputError(
            f"a charge of kind '{charge.kind}' has the columns {', '.join(sorted(given))}; "
            f"expected {', '.join(sorted(expected))}"
        )
    return made(**columns)


def charge_from_json(line: Mapping[str, Any], clients: Ints) -> Charge:
    """Return the charge that :meth:`ChargeKind.to_json` wrote; KeyError or ValueError for what no ledger writes."""
    name = line["charge"]
    if not isinstance(name, str) or name not in KINDS:
        raise ValueError(f"its charge is {shown(name)}; expected one of {', '.join(KINDS)}")
    found = KINDS[name].from_json(line, clients)
    found.check()
    return found.as_charge()


def no_rule(kind: str) -> InputError:
    return InputError(f"no rule adds up charges of kind '{kind}' here")


@dataclass(frozen=True, eq=False, kw_only=True)
class _WithNoise(ChargeKind):
    """Kinds of Gaussian noise, whose cost rises with sensitivity / noise_std."""

    has_gaussian_noise: ClassVar[bool] = True

    def worst_row(self) -> Charge:
        worst = np.array(
            [np.argmax(np.nan_to_num(squared_ratio(self.sensitivity, self.noise_std), nan=0.0, posinf=np.inf))]
        )
        row = super().worst_row()
        return replace(row, sensitivity=self.sensitivity[worst], noise_std=self.noise_std[worst])

    def drawn_renyi(self, order: float) -> Real:
        """Return what the inexactness of real noise adds."""
        return draws_renyi(draws=0 if self.draws is None else self.draws, order=order)

    def _is_unbounded(self, place: int) -> bool:
        moves = float(self.sensitivity[place])
        return not math.isfinite(moves) or (moves > 0 and float(self.noise_std[place]) == 0)

    def _draws_of(self, times: Ints) -> Ints | None:
        return None if self.draws is None else self.draws * times


@register
@dataclass(frozen=True, eq=False, kw_only=True)
class Gaussian(_WithNoise):
    """Releases with Gaussian noise: (sensitivity / noise_std)^2 adds up, exactly. Charged scores are of this kind."""

    kind: ClassVar[str] = "gaussian"
    is_noisy_vector: ClassVar[bool] = True
    is_exact: ClassVar[bool] = True
    is_filterable: ClassVar[bool] = True
    pots: ClassVar[tuple[str, ...]] = ("gaussian", "mixed")
    totals: ClassVar[Mapping[str, Total]] = {"squares": Total(np.add, 0.0)}
    is_slow: ClassVar[bool] = False

    def amounts(self) -> Mapping[str, Real | Ints]:
        return {"squares": np.nan_to_num(self.pot_cost(), nan=np.inf, posinf=np.inf)}

    @classmethod
    def epsilons(cls, points: Sequence[Point], delta: float) -> list[float]:
        squares, draws = np.array([*points], dtype=np.float64).reshape(-1, 2).T
        return list(_gaussian_epsilon(squares, draws.astype(np.int64), delta).tolist())

    @classmethod
    def all_epsilons(cls, totals: Totals, delta: float) -> Real:
        # All at once: of 200,000 different clients, points would take as long as their epsilons.
        return _gaussian_epsilon(totals.values["squares"], totals.values["draws"], delta)

    def repeated(self, times: Ints) -> Charge | None:
        moves = self.sensitivity * np.sqrt(times)
        return replace(self, sensitivity=moves, draws=self._draws_of(times)).as_charge()

    def fits(self, totals: Totals, epsilon: float, delta: float, planned_draws: int) -> NDArray[np.bool_]:
        squares, most = totals.values["squares"] + self.pot_cost(), 1 + 1e-12
        if self.draws is None or not self.clients.size:
            is_within: NDArray[np.bool_] = squares <= _most_squares(epsilon, delta) * most
            return is_within
        part = 0.0 if delta == 0 else float(part_of_delta(epsilon=epsilon, delta=delta, draws=planned_draws))
        draws = totals.values["draws"] + self.draws
        is_within = squares <= _most_squares(epsilon, delta * (1 - part)) * most
        is_drawn: NDArray[np.bool_] = draws <= most_draws(epsilon=epsilon, delta=delta, part=part)
        return is_within & is_drawn

    def pot_cost(self) -> Real:
        return squared_ratio(self.sensitivity, self.noise_std)

    def renyi(self, order: float) -> Real:
        return gaussian_renyi(squares=self.pot_cost(), order=order) + self.drawn_renyi(order)

    def events(self, place: int) -> list[tuple[Event, int]] | None:
        moves = float(self.sensitivity[place])
        if self._is_unbounded(place):
            return None
        # In dp_accounting's REPLACE_ONE a plain Gaussian moves by two sensitivities.
        return [((GAUSSIAN, 2 * float(self.noise_std[place]) / moves, 1.0), 1)] if moves > 0 else []


@register
@dataclass(frozen=True, eq=False, kw_only=True)
class Pure(ChargeKind):
    """Releases with an epsilon at delta = 0: a plain sum at delta = 0, the optimal composition above."""

    kind: ClassVar[str] = "pure"
    is_pure: ClassVar[bool] = True
    is_exact: ClassVar[bool] = True
    is_filterable: ClassVar[bool] = True
    pots: ClassVar[tuple[str, ...]] = ("pure", "mixed")
    totals: ClassVar[Mapping[str, Total]] = {
        "sum": Total(np.add, 0.0),
        "most": Total(np.maximum, 0.0),
        "least": Total(np.minimum, math.inf),
        "count": Total(np.add, 0),
    }
    UNEQUAL: ClassVar[float] = -1.0
    """Opens the point of a client whose epsilons differ: then all of them, in rising order."""

    epsilon: Numbers

    def amounts(self) -> Mapping[str, Real | Ints]:
        each = dict.fromkeys(("sum", "most", "least"), self.epsilon)
        return {**each, "count": np.ones(self.clients.size, dtype=np.int64)}

    @classmethod
    def points(cls, totals: Totals) -> list[Point]:
        """Return (epsilon, count) of each client, or all its epsilons where they differ."""
        values = totals.values
        found: list[Point] = list(zip(values["most"].tolist(), values["count"].tolist(), strict=True))
        unequal = np.flatnonzero(values["least"] != values["most"]).tolist()
        spent: dict[int, list[float]] = {int(totals.clients[place]): [] for place in unequal}
        for charge in totals.charges if spent else ():
            for client, epsilon in zip(charge.clients.tolist(), charge.columns["epsilon"].tolist(), strict=True):
                if client in spent:
                    spent[client].append(epsilon)
        for place, each in zip(unequal, spent.values(), strict=True):
            found[place] = (cls.UNEQUAL, *sorted(each))
        return found

    @classmethod
    def epsilons(cls, points: Sequence[Point], delta: float) -> list[float]:
        each = [point[1:] if point[0] == cls.UNEQUAL else (point[0],) * int(point[1]) for point in points]
        return [float(pure_composition_epsilon(epsilons=np.array(one), delta=delta)) for one in each]

    @classmethod
    def frontier(cls, points: Iterable[Point]) -> list[Point]:
        """Return the pairs that no other exceeds, and all points of unequal epsilons, which compare with none."""
        distinct = set(points)
        equal = {point for point in distinct if len(point) == 2}
        return [*pareto(equal), *(distinct - equal)]

    @classmethod
    def most_computed(cls, frontier: int) -> int | None:
        return 60

    def fits(self, totals: Totals, epsilon: float, delta: float, planned_draws: int) -> NDArray[np.bool_]:
        is_within: NDArray[np.bool_] = totals.values["sum"] + self.epsilon <= epsilon * (1 + 1e-12)
        return is_within

    def pot_cost(self) -> Real:
        return self.epsilon

    def renyi(self, order: float) -> Real:
        return pure_renyi(epsilon=self.epsilon, order=order)

    def events(self, place: int) -> list[tuple[Event, int]] | None:
        epsilon = float(self.epsilon[place])
        return [((PURE, 2 / (1 + math.exp(min(epsilon, 700.0))), 1.0), 1)] if epsilon > 0 else []


@register
@dataclass(frozen=True, eq=False, kw_only=True)
class Sampled(_WithNoise):
    """Gaussian steps on secret Poisson draws: steps add up; should rates or noise differ, the worst counts for all."""

    kind: ClassVar[str] = "sampled"
    pots: ClassVar[tuple[str, ...]] = ("mixed",)
    totals: ClassVar[Mapping[str, Total]] = {
        "steps": Total(np.add, 0),
        "rate": Total(np.maximum, 0.0),
        "less_noise": Total(np.maximum, -math.inf),
    }
    seconds: ClassVar[float] = 0.1

    sensitivity: Annotated[Real, Limits(above=0, at_most=math.inf)]
    sampling_rate: Annotated[Real, Limits(at_least=0, at_most=1)]
    steps: Counts

    def amounts(self) -> Mapping[str, Real | Ints]:
        return {"steps": self.steps, "rate": self.sampling_rate, "less_noise": -self.multiplier()}

    def multiplier(self) -> Real:
        """Return noise_std / sensitivity."""
        return self.noise_std / self.sensitivity

    @classmethod
    def epsilons(cls, points: Sequence[Point], delta: float) -> list[float]:
        return [_sampled_epsilon(steps, q, -less, draws, delta) for steps, q, less, draws in points]

    @classmethod
    def most_computed(cls, frontier: int) -> int | None:
        return max(8, 6000 // max(1, frontier))

    @classmethod
    def curve(cls, frontiers: Sequence[Sequence[Point]], end: float, delta: float) -> list[float]:
        """Return upper bounds, each computed quickly."""
        return [min(_quick_worst(each, delta), end) for each in frontiers]

    def repeated(self, times: Ints) -> Charge | None:
        return replace(self, steps=self.steps * times, draws=self._draws_of(times)).as_charge()

    def distance(self) -> Real:
        return 2 * self.sensitivity  # the sensitivity is that to a record that is left out

    def renyi(self, order: float) -> Real:
        draws = 0 if self.draws is None else self.draws
        q, multiplier = self.sampling_rate, self.multiplier()
        found = sampled_renyi(q=q, noise_multiplier=multiplier, steps=self.steps, order=order, draws=draws)
        return self.drawn_renyi(order) + found

    def events(self, place: int) -> list[tuple[Event, int]] | None:
        moves, rate, steps = (float(column[place]) for column in (self.sensitivity, self.sampling_rate, self.steps))
        if self._is_unbounded(place):
            return None
        if not (moves > 0 and rate > 0 and steps):
            return []
        return [((SAMPLED, float(self.noise_std[place]) / moves, rate), int(self.steps[place]))]


@register
@dataclass(frozen=True, eq=False, kw_only=True)
class NoClaim(ChargeKind):
    """Releases without a guarantee: epsilon is infinite."""

    kind: ClassVar[str] = "none"
    is_claimed: ClassVar[bool] = False

    @classmethod
    def epsilons(cls, points: Sequence[Point], delta: float) -> list[float]:
        return [math.inf for _ in points]

    def repeated(self, times: Ints) -> Charge | None:
        return self.as_charge()

    def events(self, place: int) -> list[tuple[Event, int]] | None:
        return None


def integers(line: Mapping[str, Any], name: str) -> Ints:
    """Return a line's list of integers; KeyError or ValueError if it has none."""
    values = _list(line, name)
    try:
        if all(type(value) is int for value in values):
            return np.array(values, dtype=np.int64)
    except OverflowError:
        pass
    raise ValueError(f"its {name} are no integers")


def _numbers(line: Mapping[str, Any], name: str) -> Real:
    values = _list(line, name)
    if not all(type(value) is float or type(value) is int for value in values):
        raise ValueError(f"its {name} is no list of numbers")
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:
        raise ValueError(f"its {name} is no list of numbers") from None


def _list(line: Mapping[str, Any], name: str) -> list[Any]:
    value = line[name]
    if not isinstance(value, list):
        raise ValueError(f"its {name} is no list of numbers")
    return value


# Epsilons of points


def pareto(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other one reaches in every coordinate.

    >>> sorted(pareto({(1.0, 5.0), (2.0, 5.0), (3.0, 1.0)}))
    [(2.0, 5.0), (3.0, 1.0)]
    """
    found: list[Point] = []
    for point in sorted(set(points), reverse=True):
        if not any(all(a <= b for a, b in zip(point, other, strict=True)) for other in found):
            found.append(point)
    return found


@lru_cache(maxsize=64)  # asked for in every round
def _most_squares(epsilon: float, delta: float) -> float:
    return float(gdp_mu(epsilon=epsilon, delta=delta) ** 2)


def _gaussian_epsilon(squares: Real, draws: Ints, delta: float) -> Real:
    finite = np.isfinite(squares)
    found: Real = np.full(squares.size, np.inf)
    mu = np.sqrt(squares[finite])

    def exact(places: Ints, left: float) -> Real:
        return np.asarray(gdp_epsilon(mu=mu[places], delta=left))

    found[finite] = epsilon_of_draws(exact, mu, draws[finite], delta)
    return found


def _quick_worst(points: Iterable[Point], delta: float) -> float:
    """Return the largest epsilon of sampled points, an upper bound: for curves, where each number must be quick."""
    # Rough bounds say which points can be the largest: few need a closer look.
    rough = sorted(((_quick_epsilon(point, delta, is_rough=True), point) for point in points), reverse=True)
    largest = 0.0
    for bound, point in rough:
        if bound <= largest:
            break
        largest = max(largest, min(bound, _quick_epsilon(point, delta, is_rough=False)))
    return largest


def _quick_epsilon(point: Point, delta: float, *, is_rough: bool) -> float:
    steps, q, less, draws = point
    if not -less > 0:
        return float("inf")

    def exact(places: Ints, left: float) -> Real:
        return np.array([quick_sampled_epsilon(q, -less, int(steps), left, is_rough=is_rough)])

    mu = np.array([2 * np.sqrt(steps) / -less])
    return float(epsilon_of_draws(exact, mu, np.array([draws], dtype=np.int64), delta)[0])


@lru_cache(maxsize=4096)  # seeds of one experiment, and rounds of one run, ask for the same numbers
def _sampled_epsilon(steps: float, q: float, multiplier: float, draws: float, delta: float) -> float:
    if not multiplier > 0:
        return float("inf")

    def exact(places: Ints, left: float) -> Real:
        return np.array([sampled_gaussian_epsilon(q=q, noise_multiplier=multiplier, steps=int(steps), delta=left)])

    # Without sampling the sum would move by two clip norms in each step.
    mu = np.array([2 * np.sqrt(steps) / multiplier])
    return float(epsilon_of_draws(exact, mu, np.array([draws], dtype=np.int64), delta)[0])
