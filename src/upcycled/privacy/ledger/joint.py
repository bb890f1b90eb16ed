"""Several runs' charges together: as events that ``dp_accounting`` composes, and the epsilon of whole ledgers.

This is for schedules that were fixed before the first release; what accounts claim is not composed here.

Pitfalls of ``dp_accounting`` 0.6 that the events avoid: its REPLACE_ONE takes a plain Gaussian to move by two
sensitivities, so the noise multiplier is doubled; it ignores how often a RandomizedResponseDpEvent is to be counted, so
that each pure round is an event of its own; and its RDP accountant knows neither Poisson draws with REPLACE_ONE nor
randomised response: only the PLD accountant serves.

Runs' ledgers where they lie, held against what the summary beside them says, and what several cost together.
"""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from upcycled._utils.files import PRIVATE, read_json
from upcycled._utils.formats import epsilon as epsilon_in_words
from upcycled._utils.formats import general
from upcycled.core.errors import InputError
from upcycled.core.mechanism import Charge
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.accounting import gdp_delta, gdp_epsilon
from upcycled.privacy.accounting.discrete_noise import PARTS, epsilon_of_draws, sampler_delta
from upcycled.privacy.charge_kinds import GAUSSIAN, PURE, SAMPLED, Event, kind_named, kind_of
from upcycled.privacy.ledger.composition import Spent
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.privacy.ledger.ledger_file import ledger_files
from upcycled.privacy.ledger.statement import contradiction

MOST_DISTRIBUTIONS = 16
"""Clients whose privacy loss distributions are computed without being asked for."""
FIXED_ONLY = "a guarantee only if all schedules were fixed before the first release"


def events_of(charges: Iterable[tuple[Charge, int]]) -> Counter[Event] | None:
    """Return one client's charges, each with its place in the columns, as events; None where nothing bounds them.

    >>> one = np.ones(1)
    >>> events_of([(Charge("gaussian", np.array([0]), one, 4 * one), 0)] * 3)
    Counter({('GaussianDpEvent', 8.0, 1.0): 3})
    """
    found = Counter[Event]()
    for charge, place in charges:
        events = kind_of(charge).events(place)
        if events is None:
            return None
        for event, count in events:
            found[event] += count
    return found


def events_as_json(events: Mapping[Event, int]) -> list[dict[str, Any]]:
    """Return events with the words of ``dp_accounting``."""
    rows: list[dict[str, Any]] = []
    for (kind, number, rate), count in sorted(events.items()):
        if kind == PURE:
            rows.append({"event": kind, "noise_parameter": number, "num_buckets": 2, "count": count})
        elif kind == SAMPLED:
            rows.append({"event": kind, "sampling_probability": rate, "noise_multiplier": number, "count": count})
        else:
            rows.append({"event": kind, "noise_multiplier": number, "count": count})
    return rows


def draws_of(charges: Iterable[tuple[Charge, int]]) -> int:
    """Return the numbers of real noise in one client's charges."""
    return sum(int(charge.draws[place]) for charge, place in charges if charge.draws is not None)


def charges_of(ledger: Ledger, client: int) -> list[tuple[Charge, int]]:
    """Return a client's charges in a ledger, outstanding ones too, each with its place in the columns."""
    found = []
    for entry in ledger:
        if entry.charge is not None:
            found += [(entry.charge, int(place)) for place in np.flatnonzero(entry.clients == client)]
    for more in ledger.outstanding:
        found += [(more.charge, client)] * int(more.times[client])
    return found


def joint_epsilon(ledgers: Sequence[Ledger], delta: float) -> Real:
    """Return what each client spent in all of the ledgers together; infinite where none is provable.

    Of one kind of releases it is exact or optimal; of several kinds, or of sampled ones, the joint privacy loss
    distribution's, an upper bound. Clients are the same by their numbers.

    Raises:
        InputError: in one sentence, for ledgers that are not about the same clients, or one that is given twice.
    """
    _check_alike(ledgers)
    for ledger in ledgers:
        ledger.max_epsilon(delta)  # refuses a delta that this ledger does
    num_clients = ledgers[0].rounds.size
    if _is_of_one_kind(ledgers):
        charges = [entry for ledger in ledgers for entry in ledger if entry.charge is not None]
        spent = Spent(num_clients)
        for entry in charges:
            assert entry.charge is not None
            # Every charge is a release: the optimal theorem for equal ones counts them.
            spent.add(entry.charge)
        for charge, rounds in (one for ledger in ledgers for more in ledger.outstanding for one in more.composed()):
            spent.add(charge, rounds)
        return spent.epsilon(delta)
    found = np.zeros(num_clients)
    for client in range(num_clients):
        own = [one for ledger in ledgers for one in charges_of(ledger, client)]
        found[client] = epsilon_of_events(events_of(own), draws_of(own), delta)
    return found


def is_quickly_composed(ledgers: Sequence[Ledger]) -> bool:
    """Whether :func:`joint_epsilon` takes no longer than a reader of a page would wait.

    A privacy loss distribution takes a second, and clients with other charges have one of their own.
    """
    return _is_of_one_kind(ledgers) or ledgers[0].rounds.size <= MOST_DISTRIBUTIONS


def _is_of_one_kind(ledgers: Sequence[Ledger]) -> bool:
    """Whether all charges are of one kind that composes exactly or optimally."""
    kinds = {entry.charge.kind for ledger in ledgers for entry in ledger if entry.charge is not None}
    return len(kinds) <= 1 and all(kind_named(kind).is_exact for kind in kinds)


def epsilon_of_events(events: Mapping[Event, int] | None, draws: int, delta: float) -> float:
    """Return the epsilon of events at what the draws of real noise leave of delta."""
    if events is None:
        return math.inf
    if not events:
        return 0.0
    rows, mu = tuple(sorted(events.items())), _mu(events)

    def exact(places: Ints, left: float) -> Real:
        return np.array([gdp_epsilon(mu=mu, delta=left) if _is_gaussian(events) else _pld_epsilon(rows, left)])

    with np.errstate(all="ignore"):
        return float(epsilon_of_draws(exact, np.array([mu]), np.array([draws], dtype=np.int64), delta)[0])


@lru_cache(maxsize=256)  # clients of one size have the same events
def _pld_epsilon(rows: tuple[tuple[Event, int], ...], delta: float) -> float:
    with np.errstate(all="ignore"):
        return float(_accountant(rows).get_epsilon(delta))


def _is_gaussian(events: Mapping[Event, int]) -> bool:
    return all(kind == GAUSSIAN for kind, _, _ in events)


def _mu(events: Mapping[Event, int]) -> float:
    """Return the shift of all of it as one Gaussian, an upper bound where steps are sampled; pure rounds have none."""
    if any(kind == PURE for kind, _, _ in events):
        return math.inf
    return math.sqrt(math.fsum(count * (2 / number) ** 2 for (_, number, _), count in events.items()))


def _accountant(rows: tuple[tuple[Event, int], ...]) -> Any:
    import dp_accounting  # takes a second
    from dp_accounting.pld import PLDAccountant

    mu = _mu(dict(rows))
    # As fine as the library's own, but for losses so large that it would take minutes.
    interval = max(1e-4, (mu**2 / 2 + 6 * mu) / 50_000) if math.isfinite(mu) else 1e-4
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE, value_discretization_interval=interval)
    with np.errstate(all="ignore"):
        for (kind, number, rate), count in rows:
            if kind == PURE:
                for _ in range(count):
                    accountant.compose(dp_accounting.RandomizedResponseDpEvent(number, 2))
            elif kind == SAMPLED:
                step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(number))
                accountant.compose(step, count)
            else:
                accountant.compose(dp_accounting.GaussianDpEvent(number), count)
    return accountant


def _check_alike(ledgers: Sequence[Ledger]) -> None:
    if not ledgers:
        raise InputError("there must be one ledger at least")
    names = [ledger.run for ledger in ledgers]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"two of the ledgers are of run {twice}, but each run counts once: of copies that went on by themselves "
            "nobody knows which lines are the same release"
        )
    for ledger in ledgers:
        if ledger.rounds.size != ledgers[0].rounds.size:
            raise InputError(
                f"the ledgers are of {ledgers[0].rounds.size} and {ledger.rounds.size} clients, but clients are the "
                "same by their numbers"
            )
        one, two = ledgers[0].sizes, ledger.sizes
        if ledgers[0].header.seal != ledger.header.seal:
            # A long file has no size of a client that was never charged; it knows by the digest that one is another.
            differing = np.flatnonzero((one != two) & (one > 0) & (two > 0))
            client = int(differing[0]) if differing.size else None
            found = (
                "a client that was not charged in both has another size in one ledger than in another"
                if client is None
                else f"client {client} has {one[client]} samples in one ledger and {two[client]} in another"
            )
            raise InputError(
                f"{found}, but clients are the same by their numbers: give ledgers of the same clients in the same "
                "order (an account knows them by name)"
            )
        if ledger.promise.unit != ledgers[0].promise.unit:
            raise InputError(
                f"the ledgers protect a {ledgers[0].promise.unit} and a {ledger.promise.unit}, but what adds up must "
                "be about the same"
            )


def delta_for_events(delta: float, epsilon: float, draws: int) -> float:
    """Return what drawing integers in the place of real numbers leaves of delta, where all of it proves this epsilon.

    An epsilon too large for that is stated by the discrete Gaussian's own divergence, which needs next to nothing.
    """
    cost = float(sampler_delta(epsilon=epsilon, draws=draws))
    return delta * (1 - next((part for part in (0.0, *PARTS) if cost <= part * delta), 2.0**-10))


def deltas_of_events(events: Mapping[Event, int] | None, draws: int, epsilons: Sequence[float]) -> Real:
    """Return delta(epsilon) of events, the cost of drawing real noise included; one where nothing is proven."""
    if events is None:
        return np.ones(len(epsilons))
    if _is_gaussian(events):
        found = np.asarray(gdp_delta(mu=_mu(events), epsilon=np.asarray(epsilons)))
    else:
        with np.errstate(all="ignore"):
            found = np.asarray(_accountant(tuple(sorted(events.items()))).get_delta(list(epsilons)), dtype=np.float64)
    return np.minimum(found + sampler_delta(epsilon=np.asarray(epsilons, dtype=np.float64), draws=draws), 1.0)


def group_epsilon(events: Mapping[Event, int] | None, draws: int, delta: float, records: int) -> float | None:
    """Return the epsilon at ``delta`` for so many records of one person, all replaced; None if not that simple.

    Gaussian releases whose sensitivity grows with the records: mu becomes k mu. Pure ones: k epsilon.
    """
    if events is None:
        return None
    grown = Counter[Event]()
    for (kind, number, rate), count in events.items():
        if kind == SAMPLED:
            return None
        if kind == PURE:
            grown[kind, 2 / (1 + (2 / number - 1) ** records), rate] += count
        else:
            grown[kind, number / records, rate] += count
    return epsilon_of_events(grown, draws, delta)


SUMMARY = "summary.json"


def read_beside(path: Path, asks_key: bool = True) -> Ledger:
    """Return a run's ledger, held against the summary that lies beside it, and against the holder's key where it is.

    A summary speaks of the last attempt only. Without one the ledger is as its file alone shows it, unanchored.

    Args:
        path: the ledger's file.
        asks_key: whether the holder's own may be looked at, which what everybody may see never does.

    Raises:
        InputError: in one sentence, if it is no ledger, or not what the summary says.
    """
    privacy = _summary(path)
    head = privacy.get("head")
    ledger = Ledger.read(path, head=head, key=_key(path.parent) if head and asks_key else None)
    if isinstance(delta := privacy.get("delta"), int | float):
        contradicts = contradiction(privacy, ledger.max_epsilon(float(delta)))
        if contradicts is not None:
            raise InputError(f"{path} {contradicts}")
    return ledger


@dataclass(frozen=True)
class Together:
    """What several runs on the same clients cost the worst of them."""

    runs: int
    epsilon: float | None
    """Infinite where none is stated; None where it was not composed."""
    delta: float
    why_not: str = ""
    """Why it was not composed, in a sentence."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values; None stands for infinity too."""
        is_stated = self.epsilon is not None and math.isfinite(self.epsilon)
        return {
            "runs": self.runs,
            "epsilon": self.epsilon if is_stated else None,
            "delta": None if math.isnan(self.delta) else self.delta,
            "why_not": self.why_not or None,
        }

    @property
    def words(self) -> str:
        """Say it in a sentence, but for its end."""
        if self.epsilon is None:
            return f"What these {self.runs} runs cost together is not stated here: {self.why_not}"
        stated = f"epsilon {epsilon_in_words(self.epsilon)} for the worst client at delta {general(self.delta)}"
        return f"All {self.runs} runs together: {stated}, {FIXED_ONLY}"


def cost_together(folders: Iterable[Path], asks_key: bool = True) -> Together | None:
    """Return what all runs with real noise in these folders cost together; None where there are fewer than two.

    Attempts that were begun anew count, and so do runs that stopped: what they released was seen.
    """
    paths = [path for folder in folders for path in ledger_files(folder)]
    if len(paths) < 2:
        return None
    try:
        with warnings.catch_warnings():
            # Each run warned of a large delta itself.
            warnings.simplefilter("ignore", UserWarning)
            ledgers = [one for path in paths if not (one := read_beside(path, asks_key)).is_simulation]
            if len(ledgers) < 2:
                return None
            delta = min(ledger.default_delta for ledger in ledgers)
            if is_quickly_composed(ledgers):
                return Together(len(ledgers), float(joint_epsilon(ledgers, delta).max()), delta)
    except InputError as error:
        return Together(len(paths), None, math.nan, str(error))
    return Together(len(ledgers), None, delta, "`upcycled privacy ledger` composes them, which takes long")


def _summary(path: Path) -> Mapping[str, Any]:
    """Return what the summary beside a ledger says of its privacy; nothing where there is none, or it is of another."""
    beside = path.parent / SUMMARY
    if path not in ledger_files(path.parent)[-1:] or not beside.exists():
        return {}
    privacy = read_json(beside, f"a summary with the head that {path} is held against").get("privacy")
    return privacy if isinstance(privacy, dict) else {}


def _key(folder: Path) -> bytes | None:
    """Return the holder's key, where the one who asks is the holder: a head that it did not make is then refused."""
    path = folder / PRIVATE / "ledger.key"
    return path.read_bytes() if os.access(path, os.R_OK) else None
