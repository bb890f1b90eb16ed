"""The first line of a ledger's file: all that is needed to read the lines below it, without the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

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


@dataclass(frozen=True, eq=False)
class Header:
    """Public facts of a run: whose charges follow, and what they mean."""

    run: str
    mechanism: str
    noise: str
    """``"seeded"`` or ``"system"``."""
    promise: Promise
    budget: Budget | None
    num_clients: int
    data_rounds: int
    """M, as planned."""
    sizes: Ints
    """n_i of every client; of a file that was read, zero where no line has it."""
    seal: Seal
    """The sizes of all clients in short, as the file has them."""
    sampling: str
    participation: float
    planned: Mapping[str, PlannedCharges]
    """The charges that were planned before the first round, by kind of entry."""
    paper: PaperClaim | None = None
    """What the paper claims for the mechanism, if it does."""
    account: Commitment | None = None
    """The terms of the holder's account that the run is charged to, if there is one."""
    previous: str | None = None
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


def to_json(header: Header) -> dict[str, Any]:
    promise, budget = header.promise, header.budget
    return {
        "kind": "run",
        "format": FORMAT,
        "run": header.run,
        "mechanism": header.mechanism,
        "noise": header.noise,
        "note": SIMULATION if header.noise == "seeded" else None,
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
        "schedule": "fixed" if budget is None else "filtered",
        "budget": None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta},
        "num_clients": header.num_clients,
        "sizes": dict(vars(header.seal)),
        "data_rounds_planned": header.data_rounds,
        "sampling": header.sampling,
        "participation": header.participation,
        "paper": None if header.paper is None else header.paper.to_json(),
        **({} if header.account is None else {"account": header.account.to_json()}),
        "planned": {kind: part.to_json() for kind, part in header.planned.items()},
        **({} if header.previous is None else {"previous": header.previous}),
    }


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
    num_clients, budget, noise = _whole(line, "num_clients", 1), line["budget"], line["noise"]
    if num_clients > MOST_CLIENTS:
        raise ValueError(f"its num_clients is {shown(num_clients)}, and must be at most {MOST_CLIENTS}")
    if noise not in ("seeded", "system"):
        raise ValueError(f"its noise is {shown(noise)}, and a ledger's is 'seeded' or 'system'")
    participation = line["participation"]
    SHARE.check("participation", participation)
    return Header(
        run=_text(line, "run"),
        mechanism=_text(line, "mechanism"),
        noise=noise,
        promise=_promise(line),
        budget=None if budget is None else Budget(budget["epsilon"], budget["delta"]),
        num_clients=num_clients,
        data_rounds=_whole(line, "data_rounds_planned", 0),
        sizes=np.zeros(0, dtype=np.int64),
        seal=seal_from_json(line["sizes"]),
        sampling=_text(line, "sampling"),
        participation=participation,
        paper=paper_from_json(line["paper"]),
        account=commitment_of(line["account"]) if "account" in line else None,
        planned=planned_from_json(line["planned"], num_clients),
        previous=_text(line, "previous") if "previous" in line else None,
    )


def _promise(line: Mapping[str, Any]) -> Promise:
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


def _text(line: Mapping[str, Any], name: str) -> str:
    value = line[name]
    if not isinstance(value, str):
        raise ValueError(f"its {name} is {shown(value)}, and must be a text")
    return value


def _whole(line: Mapping[str, Any], name: str, at_least: int) -> int:
    value = line[name]
    if type(value) is not int or value < at_least:
        raise ValueError(f"its {name} is {shown(value)}, and must be an integer >= {at_least}")
    return value
