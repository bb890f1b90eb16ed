"""The first line of a ledger's file: all that is needed to read the lines below it, without the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, TypeGuard, get_type_hints

import numpy as np

from upcycled.core.errors import FRACTION, SHARE, InputError, shown
from upcycled.core.mechanism import Fitted, PaperClaim, Promise, Setting
from upcycled.core.vectors import Ints
from upcycled.privacy.accounts.filters import Commitment, commitment_of
from upcycled.privacy.ledger.budget import DATA, Budget, PlannedCharges, planned_charges, planned_from_json
from upcycled.privacy.ledger.entries import (
    LISTED,
    First,
    PaperOutput,
    PaperTilt,
    Seal,
    paper_from_json,
    seal_from_json,
    seal_of,
    spread,
)

FORMAT = 4
MOST_CLIENTS = 2**31
"""No federation has more, and no memory what a larger number in a file would ask for."""
SIMULATION = "simulation: not private"


def _as_it_is(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


@dataclass(frozen=True)
class Stored:
    """How a field of the header stands in the file."""

    read: Callable[[Mapping[str, Any], str], Any]
    """(line, name) -> the field; KeyError, TypeError or ValueError if it is invalid."""
    write: Callable[[str, Any], dict[str, Any]] = _as_it_is
    """(name, field) -> what the line has of it."""
    name: str = ""
    """Its name in the file; the field's own if empty."""
    is_optional: bool = False
    """Whether the line leaves it out where it is None."""


def _value(read: Callable[[Any], Any], write: Callable[[Any], Any], name: str = "", **options: bool) -> Stored:
    """Store a field under one name, as what ``write`` gives for it."""

    def to_line(name: str, value: Any) -> dict[str, Any]:
        return {name: write(value)}

    return Stored(lambda line, name: read(line[name]), to_line, name, **options)


def _paper_to_json(paper: PaperClaim | None) -> dict[str, Any] | None:
    return None if paper is None else paper.to_json()


def _text(line: Mapping[str, Any], name: str) -> str:
    value = line[name]
    if not isinstance(value, str):
        raise ValueError(f"its {name} is {shown(value)}, and must be a text")
    return value


def _whole(line: Mapping[str, Any], name: str, at_least: int = 0) -> int:
    value = line[name]
    if type(value) is not int or value < at_least:
        raise ValueError(f"its {name} is {shown(value)}, and must be an integer >= {at_least}")
    return value


def _num_clients(line: Mapping[str, Any], name: str) -> int:
    found = _whole(line, name, 1)
    if found > MOST_CLIENTS:
        raise ValueError(f"its {name} is {shown(found)}, and must be at most {MOST_CLIENTS}")
    return found


def _share(line: Mapping[str, Any], name: str) -> float:
    value: float = line[name]
    SHARE.check(name, value)
    return value


def _noise(line: Mapping[str, Any], name: str) -> str:
    noise: str = line[name]
    if noise not in ("seeded", "system"):
        raise ValueError(f"its noise is {shown(noise)}, and a ledger's is 'seeded' or 'system'")
    return noise


def _noise_to_json(name: str, noise: str) -> dict[str, Any]:
    return {name: noise, "note": SIMULATION if noise == "seeded" else None}


def _budget(line: Mapping[str, Any], name: str) -> Budget | None:
    budget = line[name]
    return None if budget is None else Budget(budget["epsilon"], budget["delta"])


def _budget_to_json(name: str, budget: Budget | None) -> dict[str, Any]:
    return {"schedule": "fixed" if budget is None else "filtered", name: None if budget is None else asdict(budget)}


def _promise(line: Mapping[str, Any], name: str) -> Promise:
    unit, sees = line["unit"], line["sees"]
    if unit not in ("record", "client") or sees not in ("releases", "aggregates"):
        raise ValueError(f"its unit is {shown(unit)} and the adversary sees {shown(sees)}, which no mechanism promises")
    sentences = [line["assumptions_checked"], line["assumptions_trusted"]]
    if not all(isinstance(each, list) and all(isinstance(one, str) for one in each) for each in sentences):
        raise ValueError("its assumptions are no sentences")
    checked, trusted = map(tuple, sentences)
    is_secret, is_claimed, delta = line["sampling_is_secret"], line["is_claimed"], line["delta"]
    if type(is_secret) is not bool or type(is_claimed) is not bool:
        raise ValueError("its sampling_is_secret and is_claimed are not true or false")
    if delta is not None:
        FRACTION.check("delta", delta)
    return Promise(
        _text(line, "released"),
        checked,
        trusted,
        unit=unit,
        sees=sees,
        sampling_is_secret=is_secret,
        is_claimed=is_claimed,
        delta=delta,
    )


def _promise_to_json(name: str, promise: Promise) -> dict[str, Any]:
    return {
        "unit": promise.unit,
        "adjacency": "replace-one",
        "adversary": promise.adversary,
        "sees": promise.sees,
        "released": promise.released,
        "assumptions_checked": list(promise.checked),
        "assumptions_trusted": list(promise.trusted),
        "sampling_is_secret": promise.sampling_is_secret,
        "is_claimed": promise.is_claimed,
        "delta": promise.delta,
    }


def _planned(line: Mapping[str, Any], name: str) -> dict[str, PlannedCharges]:
    return planned_from_json(line[name], _num_clients(line, "num_clients"))


def _planned_to_json(name: str, planned: Mapping[str, PlannedCharges]) -> dict[str, Any]:
    return {name: {kind: part.to_json() for kind, part in planned.items()}}


@dataclass(frozen=True, eq=False, kw_only=True)
class Header:
    """Public facts of a run: whose charges follow, and what they mean. The file has stored fields in this order."""

    run: Annotated[str, Stored(_text)]
    mechanism: Annotated[str, Stored(_text)]
    noise: Annotated[str, Stored(_noise, _noise_to_json)]
    """``"seeded"`` or ``"system"``."""
    promise: Annotated[Promise, Stored(_promise, _promise_to_json)]
    budget: Annotated[Budget | None, Stored(_budget, _budget_to_json)]
    num_clients: Annotated[int, Stored(_num_clients)]
    sizes: Ints
    """n_i of every client; of a file that was read, zero where no line has it."""
    seal: Annotated[Seal, _value(seal_from_json, asdict, name="sizes")]
    """The sizes of all clients in short, as the file has them."""
    data_rounds: Annotated[int, Stored(_whole, name="data_rounds_planned")]
    """M, as planned."""
    sampling: Annotated[str, Stored(_text)]
    participation: Annotated[float, Stored(_share)]
    paper: Annotated[PaperClaim | None, _value(paper_from_json, _paper_to_json)] = None
    """What the paper claims for the mechanism, if it does."""
    account: Annotated[Commitment | None, _value(commitment_of, Commitment.to_json, is_optional=True)] = None
    """The terms of the holder's account that the run is charged to, if there is one."""
    planned: Annotated[Mapping[str, PlannedCharges], Stored(_planned, _planned_to_json)]
    """The charges that were planned before the first round, by kind of entry."""
    previous: Annotated[str | None, Stored(_text, is_optional=True)] = None
    """The last chain value of the ledger that an earlier attempt at this run left; None for the first attempt."""

    @property
    def count(self) -> int:
        """What delta is held against: n of the largest client, or N where clients are protected."""
        return self.num_clients if self.promise.unit == "client" else self.seal.largest

    @property
    def planned_draws(self) -> int:
        """How many numbers of real noise a client may need over all planned rounds and scores."""
        drawn = 0
        for kind, part in self.planned.items():
            each = 0 if part.charge.draws is None else int(part.charge.draws.max())
            drawn += each * max(self.data_rounds if kind == DATA else int(part.times.max()), 1)
        return drawn

    def first(self, clients: Ints) -> First:
        """Return what is to be said of clients that are charged for the first time."""
        return First(clients, self.sizes[clients], self.paper.numbers[clients] if _is_own(self.paper) else None)

    def filled(self, firsts: Iterable[First]) -> Header:
        """Return the header that was read, with what its lines say of each client."""
        sizes, numbers = spread(self.num_clients, firsts)
        return replace(self, sizes=sizes, paper=self.paper.of(numbers) if _is_own(self.paper) else None)

    def goes_on_as(self, other: Header) -> bool:
        """Whether both open the same run's ledger; sizes are public, so that a run of other ones is another."""
        mine, theirs = (
            (
                *(one.run, one.mechanism, one.noise, one.promise.unit, one.budget),
                *(one.num_clients, one.data_rounds, one.account, one.seal),
            )
            for one in (self, other)
        )
        return mine == theirs


def header_of(
    mechanism: Fitted,
    noise: str,
    setting: Setting,
    budget: Budget | None,
    run: str,
    account: Commitment | None = None,
) -> Header:
    """Return the header of a run's ledger."""
    return Header(
        run=run,
        mechanism=mechanism.name,
        noise=noise,
        promise=mechanism.promise,
        budget=budget,
        num_clients=setting.facts.num_clients,
        data_rounds=setting.data_rounds,
        sizes=setting.facts.sizes,
        sampling=setting.participation.sampler.name,
        participation=setting.participation.sampler.fraction,
        seal=seal_of(setting.facts.sizes),
        paper=mechanism.paper,
        account=account,
        planned=planned_charges(mechanism, setting, setting.facts.num_clients > LISTED),
    )


STORED: Mapping[str, Stored] = {
    name: part
    for name, hint in get_type_hints(Header, include_extras=True).items()
    for part in getattr(hint, "__metadata__", ())
    if isinstance(part, Stored)
}
"""How each field of a header stands in the file, in the order of the file."""


def to_json(header: Header) -> dict[str, Any]:
    line: dict[str, Any] = {"kind": "run", "format": FORMAT}
    for name, stored in STORED.items():
        value = getattr(header, name)
        if value is not None or not stored.is_optional:
            line |= stored.write(stored.name or name, value)
    return line


def _is_own(claim: PaperClaim | None) -> TypeGuard[PaperOutput | PaperTilt]:
    """Whether a claim is one that a ledger's file can have."""
    return isinstance(claim, PaperOutput | PaperTilt)


def from_json(line: Mapping[str, Any]) -> Header:
    """Return the header that :func:`to_json` was given; ValueError, in words, if it was none."""
    if line.get("kind") != "run":
        raise ValueError("it does not open a run's ledger")
    version = line.get("format")
    if type(version) is not int or version != FORMAT:
        raise ValueError(f"its format is {shown(version)}; expected {FORMAT}")
    try:
        header = _parsed(line)
    except KeyError as error:
        raise ValueError(f"it has no {error}") from None
    except InputError as error:  # of a budget
        raise ValueError(str(error)) from None
    except (TypeError, AttributeError, OverflowError):
        raise ValueError("it holds a value of another type than a ledger's") from None
    # What is the same again has no names that a ledger does not write, lacks none, and agrees with itself.
    again = to_json(header)
    if again != line:
        wrong = [name for name in again if name not in line or line[name] != again[name]]
        raise ValueError(f"its {shown([*wrong, *set(line).difference(again)][0])} is not as a ledger writes it")
    return header


def _parsed(line: Mapping[str, Any]) -> Header:
    found: dict[str, Any] = {
        name: stored.read(line, stored.name or name)
        for name, stored in STORED.items()
        if not stored.is_optional or (stored.name or name) in line
    }
    return Header(sizes=np.zeros(0, dtype=np.int64), **found)
