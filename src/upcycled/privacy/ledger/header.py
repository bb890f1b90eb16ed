"""The first line of a ledger's file: all that is needed to read the lines below it, without the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upcycled.core.mechanism import Fitted, PaperClaim, Promise, Setting
from upcycled.core.vectors import Ints
from upcycled.privacy.ledger import paper_claim
from upcycled.privacy.ledger.budget import Budget
from upcycled.privacy.ledger.entries import Entry

FORMAT = 2
"""Of files written now. Format 1 has no number, no sizes and fewer fields of the promise."""
UNCHAINED = "unchained"
"""Nothing in the file shows that lines were changed or taken away."""
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
    sizes: Ints | None = None
    """n_i of every client; None in files of format 1."""
    sampling: str | None = None
    participation: float | None = None
    paper: PaperClaim | None = None
    """What the paper claims for the mechanism, if it does."""
    format: int = FORMAT
    chain: str = UNCHAINED

    @property
    def count(self) -> int | None:
        """What delta is held against: n of the largest client, or N where clients are protected; None if unknown."""
        if self.promise.unit == "client":
            return self.num_clients
        return None if self.sizes is None else int(self.sizes.max())

    def is_of_same_run(self, other: Header) -> bool:
        """Whether both open the same run's ledger, whatever version of this package wrote them."""
        mine, theirs = (
            (one.run, one.mechanism, one.noise, one.promise.unit, one.budget, one.num_clients, one.data_rounds)
            for one in (self, other)
        )
        return mine == theirs

    def completed(self, entries: Iterable[Entry]) -> Header:
        """Return the header of format 1 with the facts that only its entries show."""
        kinds = {entry.charge.kind for entry in entries if entry.charge is not None}
        is_secret = self.promise.unit == "client" and "sampled" in kinds
        return replace(
            self, promise=replace(self.promise, sampling_is_secret=is_secret, is_claimed="none" not in kinds)
        )


def header_of(mechanism: Fitted, noise: str, setting: Setting, budget: Budget | None, run: str) -> Header:
    """Return the header of a run's ledger."""
    return Header(
        run=run,
        mechanism=mechanism.name,
        noise=noise,
        promise=mechanism.promise,
        budget=budget,
        num_clients=setting.num_clients,
        data_rounds=setting.data_rounds,
        # A client that plans for itself knows its own size only.
        sizes=setting.sizes if setting.sizes.size == setting.num_clients else None,
        sampling=setting.sampling,
        participation=setting.participation,
        paper=mechanism.paper,
    )


def to_json(header: Header) -> dict[str, Any]:
    promise, budget = header.promise, header.budget
    return {
        "kind": "run",
        "format": header.format,
        "chain": header.chain,
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
        "sizes": None if header.sizes is None else header.sizes.tolist(),
        "data_rounds_planned": header.data_rounds,
        "sampling": header.sampling,
        "participation": header.participation,
        "paper": None if header.paper is None else header.paper.to_json(),
    }


def from_json(line: Any) -> Header:
    """Return the header that :func:`to_json` was given, or one of format 1; ValueError, in words, if it was none."""
    if not isinstance(line, dict) or line.get("kind") != "run":
        raise ValueError("it does not open a run's ledger")
    version = line.get("format", 1)
    if version not in (1, FORMAT):
        raise ValueError(f"its format is {version!r}, and this version of the package reads 1 and {FORMAT}")
    if line.get("chain", UNCHAINED) != UNCHAINED:
        raise ValueError(f"its chain is {line['chain']!r}, and this version of the package reads '{UNCHAINED}'")
    try:
        return _parsed(line, version)
    except KeyError as error:
        raise ValueError(f"it has no {error}") from None
    except (TypeError, AttributeError, OverflowError):
        raise ValueError("it holds a value of another type than a ledger's") from None


def _parsed(line: Mapping[str, Any], version: int) -> Header:
    num_clients, budget = _whole(line, "num_clients", 1), line["budget"]
    sizes = None if line.get("sizes") is None else np.array(line["sizes"], dtype=np.int64)
    if version == FORMAT and (sizes is None or sizes.shape != (num_clients,) or sizes.min() < 0):
        raise ValueError(f"its sizes are not those of {num_clients} clients")
    noise = "seeded" if version == 1 and line["noise"] == SIMULATION else line["noise"]
    if noise not in ("seeded", "system"):
        raise ValueError(f"its noise is {noise!r}, and a ledger's is 'seeded' or 'system'")
    return Header(
        run=line["run"],
        mechanism=line["mechanism"],
        noise=noise,
        promise=_promise(line, version),
        budget=None if budget is None else Budget(budget["epsilon"], budget["delta"]),
        num_clients=num_clients,
        data_rounds=_whole(line, "data_rounds_planned", 0),
        sizes=sizes,
        sampling=line.get("sampling"),
        participation=line.get("participation"),
        paper=paper_claim.from_json(line.get("paper")),
        format=version,
    )


def _promise(line: Mapping[str, Any], version: int) -> Promise:
    unit = line["unit"]
    # Format 1 had one mechanism for clients, whose adversary sees aggregates.
    sees = line["sees"] if version == FORMAT else "aggregates" if unit == "client" else "releases"
    if unit not in ("record", "client") or sees not in ("releases", "aggregates"):
        raise ValueError(f"its unit is {unit!r} and the adversary sees {sees!r}, which no mechanism promises")
    promise = Promise(
        line["released"], tuple(line["assumptions_checked"]), tuple(line["assumptions_trusted"]), unit=unit, sees=sees
    )
    if version == 1:
        return promise
    return replace(
        promise, sampling_is_secret=line["sampling_is_secret"], is_claimed=line["is_claimed"], delta=line["delta"]
    )


def _whole(line: Mapping[str, Any], name: str, at_least: int) -> int:
    value = line[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"its {name} is {value!r}, and must be an integer >= {at_least}")
    return value
