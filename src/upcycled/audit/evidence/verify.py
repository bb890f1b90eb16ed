"""Check the evidence in this folder, without the package that wrote it.

    pip install dp-accounting
    python verify.py                        check the folder alone: exit code 0 if it is consistent
    python verify.py --head TIP             also check that no charge was changed or taken away
    python verify.py --head TIP FOLDER      check another folder, with a script that you trust

TIP is the last chain value of the charges. It must come from outside the folder: it was printed when the run ended, and
the data holder keeps it. Without it, somebody could have rewritten the whole folder.

The charges are the lines of ledger.jsonl, ledger-2.jsonl, ... (one file for each attempt at the run), or of
account.jsonl. The script checks their chain and derives each client's releases from them. If a run did not end as
planned, it adds the charges that were planned and not made, because a run may have stopped because of its data. It
recomputes epsilon with dp_accounting and compares all of this with events.json and head.json.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GAUSSIAN, SAMPLED, PURE = "GaussianDpEvent", "PoissonSampledDpEvent", "RandomizedResponseDpEvent"
COLUMNS = {
    "gaussian": ("sensitivity", "noise_std"),
    "pure": ("sensitivity", "noise_std", "epsilon"),
    "sampled": ("sensitivity", "noise_std", "sampling_rate", "steps"),
    "none": ("sensitivity", "noise_std"),
}
HEADER = {
    *("kind", "format", "run", "mechanism", "noise", "note", "unit", "adjacency", "adversary", "sees", "released"),
    *("assumptions_checked", "assumptions_trusted", "sampling_is_secret", "is_claimed", "delta", "schedule", "budget"),
    *("num_clients", "sizes", "data_rounds_planned", "sampling", "participation", "paper", "planned"),
}
ENTRY = {"kind", "iteration", "round", "attempt", "clients"}
PARTS = (0.0, 2.0**-20, 2.0**-10, 2.0**-7, 0.1)
"""Of delta: what may be set aside for drawing noise as integers."""
TEXTS = {
    "STATEMENT.md": r"([0-9.e+-]+)(?: for the worst client| at delta [0-9.e+-]+, over all studies)",
    "BOARD.md": r"differential privacy with epsilon ([0-9.,e+-]+) and delta",
    "VERIFY.md": None,
}
"""The texts that people read, and where they state epsilon."""
MOST_CLIENTS, MOST_PURE_ROUNDS = 10_000_000, 100_000
ROOM = 1e-5
"""The part by which a recomputed epsilon may exceed a stated one: both are computed in floating point."""


class Inconsistent(Exception):
    """The folder contradicts itself, or shows nothing; the text says where."""


def check(folder: Path, head: str | None = None) -> list[str]:
    """Return what was found, a sentence each.

    Raises:
        Inconsistent: in one sentence.
    """
    try:
        return _checked(folder, head)
    except Inconsistent:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OSError, RecursionError) as error:
        raise Inconsistent(f"a file is missing or damaged ({type(error).__name__}: {error})") from error


def _checked(folder: Path, head: str | None) -> list[str]:
    document, kept = (_table((folder / name).read_bytes()) for name in ("events.json", "head.json"))
    for name, digest in document["files"].items():
        _must(Path(name).name == name, f"{name!r} is not a file of this folder")
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        _must(found == digest, f"{name} is not the file that events.json names")
    ledgers = sorted(
        (path for path in folder.iterdir() if re.fullmatch(r"ledger(-[0-9]+)?\.jsonl", path.name)),
        key=lambda path: (len(path.name), path.name),
    )
    is_account = (folder / "account.jsonl").exists()
    _must(is_account != bool(ledgers), "there must be either account.jsonl or ledger.jsonl")
    claim = _account(folder / "account.jsonl") if is_account else _run(ledgers)
    lines, tip = claim["lines"], claim["tip"]
    _must(kept["lines"] == lines and kept["tip"] == tip, "head.json is not the head of these charges")
    said = _compared(document, claim)
    _check_texts(folder, document, claim)
    if claim["is_simulation"]:
        said.append("simulation: the noise follows from a seed and protects nobody")
    if head is None:
        said.append("head not compared: ask who kept it, and run `python verify.py --head TIP`")
    else:
        _must(head.strip().lower() == tip, "these are not the charges of the head that was given")
        said.append("head compared: no charge was changed or taken away since it was made")
    return said


def _compared(document: dict[str, Any], claim: dict[str, Any]) -> list[str]:
    """Return what epsilon is, if events.json says what follows from the charges."""
    delta, clients, said, stated = claim["delta"], claim["clients"], [], []
    _must(document["is_account"] == claim["is_account"], "events.json is about something else than the charges")
    _must(document["delta"] == delta, f"events.json states delta {document['delta']}; the charges give {delta}")
    names = [name for group in document["clients"] for name in group["clients"]]
    _must(sorted(names) == sorted(clients), "the clients of events.json are not those of the charges")
    _must(any(client.events for client in clients.values()), "nothing was charged: there is no epsilon to recompute")
    for group in document["clients"]:
        _must(bool(group["clients"]), "events.json has a group of no clients")
        for name in group["clients"]:
            client = clients[name]
            _must(client.is_bounded, f"client {name}: its charges give no finite epsilon")
            _must(group["events"] == client.as_json(), f"client {name}: its events are not those of its charges")
            _must(group["draws_of_real_noise"] == client.draws, f"client {name}: its draws are not those charged")
        epsilon = group["stated_epsilon"]
        _must(type(epsilon) in (int, float) and math.isfinite(epsilon), "events.json states no epsilon")
        left = client.left(delta, epsilon)
        found = min(client.proven(delta, epsilon), claim["limit"])
        said.append(f"clients {', '.join(group['clients'])}: epsilon recomputed {found:.6g}, stated {epsilon:.6g}")
        _must(math.isclose(group["delta_for_events"], left, rel_tol=1e-9), f"{said[-1]}: wrong delta_for_events")
        _must(found <= epsilon * (1 + ROOM) + client.rounding, f"{said[-1]}: the stated epsilon is too small")
        stated.append(epsilon)
    claimed, budget = document["claimed_epsilon"], claim["epsilon"]
    _must(claimed == (max(stated) if budget is None else budget), "the claimed epsilon is not what the charges give")
    _must(max(stated) <= claimed * (1 + ROOM), "more is stated than is claimed")
    return [*said, f"epsilon {claimed:.6g} at delta {delta:g}: consistent with the charges"]


def _check_texts(folder: Path, document: dict[str, Any], claim: dict[str, Any]) -> None:
    """Refuse texts that are about another run or account, or state a smaller epsilon."""
    epsilon, delta = document["claimed_epsilon"], document["delta"]
    for name, words in TEXTS.items():
        _must(name in document["files"], f"events.json does not name {name}")
        text = (folder / name).read_text(encoding="utf-8")
        _must(text.partition("\n")[0].endswith(f": {claim['title']}"), f"{name} is not about {claim['title']}")
        if words is None:
            continue
        numbers = [float(number.replace(",", "")) for number in re.findall(words, text)]
        # Texts have some digits only.
        is_right = all(number >= epsilon * (1 - 1e-3) for number in numbers) and bool(numbers)
        _must(is_right, f"{name} states another epsilon than events.json")
        _must(f"{delta:.6g}" in text, f"{name} states another delta than events.json")


class Client:
    """The charges of one client, as events of dp_accounting."""

    def __init__(self) -> None:
        self.events: Counter[tuple[str, float, float]] = Counter()
        self.draws = 0
        self.is_bounded = True

    def add(self, charge: dict[str, Any], times: int = 1) -> None:
        """Count a charge: numbers by the names of its columns."""
        kind, moves, std = charge["charge"], charge["sensitivity"], charge["noise_std"]
        self.draws += times * charge.get("draws", 0)
        if times == 0:
            return
        if kind == "pure":
            if charge["epsilon"] > 0:
                # Randomised response with the same epsilon.
                self.events[PURE, 2 / (1 + math.exp(min(charge["epsilon"], 700.0))), 1.0] += times
        elif kind == "none" or not math.isfinite(moves) or (moves > 0 and std == 0):
            self.is_bounded = False
        elif kind == "sampled":
            if moves > 0 and charge["sampling_rate"] > 0 and charge["steps"]:
                self.events[SAMPLED, std / moves, charge["sampling_rate"]] += times * charge["steps"]
        elif moves > 0:
            # In the library's REPLACE_ONE a plain Gaussian moves by two sensitivities.
            self.events[GAUSSIAN, 2 * std / moves, 1.0] += times

    def as_json(self) -> list[dict[str, Any]]:
        """Return the events as events.json has them."""
        rows: list[dict[str, Any]] = []
        for (kind, number, rate), count in sorted(self.events.items()):
            if kind == PURE:
                rows.append({"event": kind, "noise_parameter": number, "num_buckets": 2, "count": count})
            elif kind == SAMPLED:
                rows.append({"event": kind, "sampling_probability": rate, "noise_multiplier": number, "count": count})
            else:
                rows.append({"event": kind, "noise_multiplier": number, "count": count})
        return rows

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of the events."""
        return _epsilon(tuple(sorted(self.events.items())), delta) if self.events else 0.0

    def left(self, delta: float, epsilon: float) -> float:
        """Return what is left of delta to the events, if all of it proves this epsilon.

        Real noise is drawn as integers, which costs (1 + e^epsilon) 2^-43 sqrt(draws) of delta. The least of some parts
        that covers the cost is set aside; where none does, epsilon is stated by the integers' own divergence, which
        needs 2^-10 of delta.
        """
        return delta * (1 - next((part for part in PARTS if self._drawing(epsilon) <= part * delta), 2.0**-10))

    def proven(self, delta: float, epsilon: float) -> float:
        """Return the least epsilon that is proven at delta, if ``epsilon`` is to be."""
        left = self.left(delta, epsilon)
        _must(delta > 0 or all(kind == PURE for kind, _, _ in self.events), "Gaussian noise proves nothing at delta 0")
        if self._drawing(epsilon) <= PARTS[-1] * delta or not self.events:
            return self.epsilon(left)
        if any(kind == PURE for kind, _, _ in self.events):
            return math.inf
        # Discrete Gaussians are rho-zero-concentrated with rho = mu^2/2 (Canonne, Kamath, Steinke 2020); the best order
        # is near 1 + sqrt(log(1/delta) / rho). Each number is drawn right up to a part of 2^-44.
        rho = max(math.fsum(count * (2 / number) ** 2 for (_, number, _), count in self.events.items()), 1e-12) / 2
        rest, bounds = math.log(1 / left), []
        for step in range(161):
            above = math.sqrt(rest / rho) * 2.0 ** (-2 + step / 40)
            order = 1 + above
            bounds.append(order * rho + math.log(above / order) + (rest - math.log(order)) / above)
        found = max(min(bounds), 0.0) + 3 * self.draws * 2.0**-44
        is_reached = math.exp(min(found, 700.0)) * self.draws * 2.0**-125 <= delta * 2.0**-12
        return found if is_reached and self.draws * 2.0**-44 <= 2.0**-12 else math.inf

    def _drawing(self, epsilon: float) -> float:
        return (1 + math.exp(min(epsilon, 700.0))) * 2.0**-43 * math.sqrt(self.draws)

    @property
    def rounding(self) -> float:
        """How much the library's rounding may add to epsilon: it rounds the loss of each pure round upwards."""
        rows = tuple(sorted(self.events.items()))
        return _interval(rows) * (1 + sum(count for (kind, _, _), count in rows if kind == PURE))


def _interval(rows: tuple[tuple[tuple[str, float, float], int], ...]) -> float:
    """Return the grid of privacy losses: the library's own, but for losses so large that it would take minutes."""
    if any(kind == PURE for (kind, _, _), _ in rows):
        return 1e-4
    square = math.fsum(count * (2 / number) ** 2 for (_, number, _), count in rows)
    return max(1e-4, (square / 2 + 6 * math.sqrt(square)) / 50_000)


@functools.lru_cache(maxsize=4096)  # clients that were charged alike
def _epsilon(rows: tuple[tuple[tuple[str, float, float], int], ...], delta: float) -> float:
    return float(_accountant(rows).get_epsilon(delta))


@functools.lru_cache(maxsize=64)
def _accountant(rows: tuple[tuple[tuple[str, float, float], int], ...]) -> Any:
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_ONE, value_discretization_interval=_interval(rows))
    for (kind, number, rate), count in rows:
        if kind == PURE:
            _must(count <= MOST_PURE_ROUNDS, f"{count} pure rounds are too many to recompute")
            for _ in range(count):  # the library ignores how often this event is to be counted
                accountant.compose(dp.RandomizedResponseDpEvent(number, 2))
        elif kind == SAMPLED:
            accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(number)), count)
        else:
            accountant.compose(dp.GaussianDpEvent(number), count)
    return accountant


# Ledgers


def _run(paths: list[Path]) -> dict[str, Any]:
    """Return what the ledgers of all attempts at a run give together."""
    clients: dict[str, Client] = {}
    before, header, limit, lines = None, None, math.inf, 0
    for path in paths:
        table, tip = _chain(path)
        last, table = table[0], table[1:]
        _must(last["kind"] == "run" and last["format"] == 4, f"{path.name} does not open with a run")
        _check_header(last, f"{path.name}, line 1")
        _must(last.get("previous") == before, f"{path.name} does not follow the attempt before it")
        if header is not None:
            same = ("num_clients", "sizes", "unit", "noise")
            _must(all(header[name] == last[name] for name in same), f"{path.name} is about other clients")
        clients = clients or {str(i): Client() for i in range(last["num_clients"])}
        is_as_planned = _ledger(last, table, clients, path.name)
        budget, header, before, lines = last["budget"], last, tip, 1 + len(table)
        # A filter holds a run to its budget however it ends.
        is_limited = len(paths) == 1 and budget is not None and not is_as_planned
        limit = budget["epsilon"] if is_limited and _delta(last) >= budget["delta"] else math.inf
    assert header is not None
    return {
        "clients": clients,
        "delta": _delta(header),
        "epsilon": None,
        "limit": limit,
        "lines": lines,
        "tip": before,
        "title": f"run {header['run']}",
        "is_account": False,
        "is_simulation": header["noise"] == "seeded",
    }


def _check_header(header: dict[str, Any], where: str) -> None:
    """Refuse a first line that no ledger has."""
    optional = {name for name in ("account", "previous") if header.get(name) is not None}
    _must(set(header) == HEADER | optional, f"{where}: it is not written as a ledger writes it")
    sizes, num_clients, budget = header["sizes"], header["num_clients"], header["budget"]
    _must(type(num_clients) is int and 1 <= num_clients <= MOST_CLIENTS, f"{where}: unknown number of clients")
    _must(type(sizes["largest"]) is int and sizes["largest"] >= 1, f"{where}: its sizes must be positive integers")
    _must(header["schedule"] == ("fixed" if budget is None else "filtered"), f"{where}: wrong schedule")
    _must(budget is None or (set(budget) == {"epsilon", "delta"} and budget["epsilon"] > 0), f"{where}: wrong budget")
    _must(budget is None or budget["delta"] < 1, f"{where}: wrong budget")
    _must(all(number >= 0 for number in _numbers(header)), f"{where}: it has a number below zero")
    _must((header["noise"] == "seeded") == (header["note"] is not None), f"{where}: is it a simulation?")
    _must(header["unit"] in ("record", "client") and header["adjacency"] == "replace-one", f"{where}: unknown unit")
    _must(0 < header["participation"] <= 1, f"{where}: wrong participation")
    rounds = header["data_rounds_planned"]
    _must(type(rounds) is int and rounds >= 0, f"{where}: wrong number of planned rounds")


def _numbers(value: Any) -> Iterator[float]:
    """Yield every number in a value."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)


def _delta(header: dict[str, Any]) -> float:
    """Return the delta of a run: the mechanism's own, the budget's, or 1e-5 and at most a tenth of 1/n."""
    count = header["sizes"]["largest"] if header["unit"] == "record" else header["num_clients"]
    delta = header["delta"]
    if delta is None:
        budget = header["budget"]
        delta = min(1e-5, 0.1 / count) if budget is None else budget["delta"]
    _must(delta < 1 / count, f"delta {delta} is not below 1/n")
    return float(delta)


def _ledger(header: dict[str, Any], table: list[dict[str, Any]], clients: dict[str, Client], name: str) -> bool:
    """Count a ledger's charges, and those that were planned and not made; say whether the run ended as planned."""
    num_clients, rounds = header["num_clients"], header["data_rounds_planned"]
    _must(header["noise"] in ("seeded", "system") and header["is_claimed"] is True, f"{name} claims no epsilon")
    planned = {kind: _planned(part, num_clients) for kind, part in header["planned"].items()}
    _must(set(planned) <= {"data", "scores"}, f"{name} plans something unknown")
    own = [Client() for _ in range(num_clients)]
    # Who was charged as planned in a round, or for the scores of an iteration.
    charged: dict[str, dict[int, set[int]]] = {"data": {}, "scores": {}}
    left_out: Counter[int] = Counter()
    done, scored, last, is_ended = set[int](), set[int](), None, False
    round_of: dict[int, int] = {}
    seen = set[int]()
    for number, line in enumerate(table, start=2):
        where, kind = f"{name}, line {number}", line["kind"]
        first = line.pop("first", None) if kind in charged else None
        _check_entry(line, num_clients, where)
        _must(line["round"] <= rounds, f"{where}: its round is not one of the run's")
        if kind == "ended":
            is_over = _is_over(header, planned, own, done, scored, left_out, last, rounds)
            _must(is_over, f"{where}: it says that the run ended as planned, and planned charges are missing")
            is_ended = True
            continue
        _must(round_of.setdefault(line["iteration"], line["round"]) == line["round"], f"{where}: its round is another")
        last = line
        if kind == "left out":
            left_out.update(line["clients"])
        if kind not in charged:
            continue
        _must(kind in planned and planned[kind][0][0]["charge"] == line["charge"], f"{where}: it was not planned")
        new = set(line["clients"]) - seen
        _check_first(header, first, len(new), where)
        seen |= new
        for place, client in enumerate(line["clients"]):
            row = _row(line, place)
            own[client].add(row)
            clients[str(client)].add(row)
        is_ended = False
        (done if kind == "data" else scored).add(line["round"] if kind == "data" else line["iteration"])
        if line["attempt"] == 0:
            key = line["round"] if kind == "data" else line["iteration"]
            charged[kind].setdefault(key, set()).update(line["clients"])
    in_order = [round_of[iteration] for iteration in sorted(round_of)]
    _must(in_order == sorted(in_order), f"{name}: rounds go down where iterations go up")
    if is_ended or not (done or scored):
        return True
    is_as_planned = True
    for kind, part in planned.items():
        times = Counter(client for each in charged[kind].values() for client in each)
        for client, (charge, planned_times) in enumerate(part):
            left = max(planned_times - times[client], 0)
            if kind == "data":
                missed = left_out[client] if "account" in header else 0
                left = min(left, rounds - max(done, default=0) + missed)
            clients[str(client)].add(charge, left)
            is_as_planned = is_as_planned and not left
    return is_as_planned


def _is_over(
    header: dict[str, Any],
    planned: dict[str, Any],
    own: list[Client],
    done: set[int],
    scored: set[int],
    left_out: Counter[int],
    last: dict[str, Any] | None,
    rounds: int,
) -> bool:
    """Return whether every planned charge was made, or no client of a round could pay within the run's own budget."""
    budget = header["budget"]
    if last is None or ("account" in header and left_out):
        return False
    if len(done) == rounds:
        is_limited = budget is not None or "account" in header
        return "scores" not in planned or is_limited or len(scored) == planned["scores"][0][1]
    if budget is None or last["kind"] != "left out" or done != set(range(1, last["round"])):
        return False
    for client in last["clients"]:
        more = Client()
        more.events.update(own[client].events)
        more.add(planned["data"][client][0])
        pure = [(number, count) for (kind, number, _), count in more.events.items() if kind == PURE]
        spent = math.fsum(count * math.log(2 / number - 1) for number, count in pure)
        # Of delta the filter sets up to a tenth aside for drawing integers.
        if not pure and more.is_bounded:
            spent = more.epsilon(0.9 * budget["delta"])
        if more.is_bounded and spent + more.rounding < budget["epsilon"] * (1 - ROOM):
            return False
    return True


def _planned(part: dict[str, Any], num_clients: int) -> list[tuple[dict[str, Any], int]]:
    """Return each client's planned charge, and how often it is planned."""
    times, rows = part["times"], part["rows"]
    _check_columns(part, len(times), "planned charges", {"rows", "times"})
    _must(all(type(k) is int and k >= 0 for k in times), "planned charges: times must be integers of at least 0")
    rows = [0] * num_clients if rows is None else rows
    _must(len(rows) == num_clients and all(0 <= row < len(times) for row in rows), "planned charges: wrong rows")
    _must(part["rows"] is not None or len(times) == 1, "planned charges: several rows, but clients have no row numbers")
    return [(_row(part, row), times[row]) for row in rows]


def _row(line: dict[str, Any], place: int) -> dict[str, Any]:
    names = (*COLUMNS[line["charge"]], *(("draws",) if "draws" in line else ()))
    return {"charge": line["charge"], **{name: line[name][place] for name in names}}


def _check_entry(line: dict[str, Any], num_clients: int, where: str) -> None:
    kind, clients = line["kind"], line["clients"]
    _must(kind in ("data", "scores", "left out", "upcycled", "ended"), f"{where}: unknown kind {kind!r}")
    is_charge = kind in ("data", "scores")
    for name, least in (("iteration", 1), ("round", 1), ("attempt", 0)):
        _must(type(line[name]) is int and line[name] >= least, f"{where}: its {name} is out of range")
    _must(line["round"] <= line["iteration"], f"{where}: its iteration cannot have reached its round")
    _must(all(type(client) is int and 0 <= client < num_clients for client in clients), f"{where}: unknown clients")
    _must(len(set(clients)) == len(clients), f"{where}: it names a client twice")
    if is_charge:
        _check_columns(line, len(clients), where, ENTRY)
        _must(kind == "data" or (line["charge"] == "gaussian" and bool(clients)), f"{where}: no scores are charged so")
    else:
        _must(set(line) == ENTRY | {"cost"} and line["cost"] == 0, f"{where}: it is not written as a ledger writes it")
        _must(bool(clients) == (kind == "left out"), f"{where}: it is about {len(clients)} clients")


def _check_first(header: dict[str, Any], first: Any, count: int, where: str) -> None:
    """Refuse a line without the sizes and the paper's numbers of those clients that it is the first to charge."""
    given = {} if first is None else first
    names = {"sizes"} if header["paper"] is None else {"sizes", "paper"}
    _must(set(given) == (names if count else set()) and (first is None) == (count == 0), f"{where}: wrong sizes")
    _must(all(len(values) == count for values in given.values()), f"{where}: wrong sizes")
    largest, sizes = header["sizes"]["largest"], given.get("sizes", [])
    _must(all(type(n) is int and 1 <= n <= largest for n in sizes), f"{where}: wrong sizes")
    _must(all(type(x) in (int, float) and 0 <= x < math.inf for x in given.get("paper", [])), f"{where}: wrong numbers")


def _check_columns(line: dict[str, Any], length: int, where: str, others: set[str]) -> None:
    """Refuse columns that are not those of the charge's kind, or numbers that no charge has."""
    _must(
        line["charge"] in COLUMNS, f"{where}: unknown charge {line['charge']!r}; this script knows {', '.join(COLUMNS)}"
    )
    names = {*COLUMNS[line["charge"]], *({"draws"} & set(line))}
    _must(set(line) == others | names | {"charge"}, f"{where}: it is not written as a ledger writes it")
    for name in names:
        counts, most = name in ("steps", "draws"), 1.0 if name == "sampling_rate" else math.inf
        _must(isinstance(line[name], list) and len(line[name]) == length, f"{where}: {name} is not one for each client")
        for value in line[name]:
            is_number = type(value) is int if counts else type(value) in (int, float)
            _must(is_number and 0 <= value <= most, f"{where}: {name} is {value!r}")
            _must(name in ("sensitivity",) or math.isfinite(value), f"{where}: {name} is {value!r}")


# Accounts


def _account(path: Path) -> dict[str, Any]:
    """Return what an account's charges give: a filter holds every client to its budget."""
    table, tip = _chain(path)
    terms = table[0]["terms"]
    _must(table[0] == {"kind": "account", "format": 1, "terms": terms}, "account.jsonl does not open an account")
    _must(set(terms) == {"id", "unit", "pots"}, "account.jsonl: unknown terms")
    for pot in terms["pots"]:
        _must(set(pot) == {"kind", "epsilon", "delta", "order", "draws"}, "account.jsonl: unknown terms")
        _must(pot["epsilon"] > 0 and 0 <= pot["delta"] < 1 and pot["draws"] >= 0, "account.jsonl: unknown terms")
        each = 2.0**-43 * math.sqrt(pot["draws"]) if pot["kind"] == "gaussian" else 2.0**-125 * pot["draws"]
        part = 0.1 if pot["kind"] == "gaussian" else 2.0**-10
        is_covered = (1 + math.exp(min(pot["epsilon"], 700.0))) * each <= part * pot["delta"] or pot["draws"] == 0
        _must(is_covered, "account.jsonl: its delta does not cover the numbers of real noise that it allows")
    studies: list[list[str]] = []
    clients: dict[str, Client] = {}
    # Planned charges that were not made, of each study that has not ended: a charge and how often, for each client.
    kept: dict[int, dict[str, list[list[Any]]]] = {}
    made: list[tuple[int, str, list[int]]] = []
    for number, line in enumerate(table[1:], start=2):
        where, kind = f"account.jsonl, line {number}", line["kind"]
        if kind == "study":
            studies.append(line["clients"])
            continue
        if kind == "closed":
            continue
        study = line["study"]
        _must(type(study) is int and 1 <= study <= len(studies), f"{where}: unknown study {study!r}")
        names = studies[study - 1]
        if kind == "ended":
            kept.pop(study, None)
        elif kind == "committed":
            planned = {part: _planned(value, len(names)) for part, value in line["planned"].items()}
            kept[study] = {part: [list(each) for each in rows] for part, rows in planned.items()}
            for of_study, of_kind, charged in made:
                if of_study == study:
                    _take_off(kept[study], of_kind, charged)
        elif kind == "charge":
            entry = line["entry"]
            _check_entry(entry, len(names), where)
            _must(entry["kind"] in ("data", "scores"), f"{where}: it charges nothing")
            for place, client in enumerate(entry["clients"]):
                clients.setdefault(names[client], Client()).add(_row(entry, place))
            made.append((study, entry["kind"], entry["clients"]))
            _take_off(kept.get(study, {}), entry["kind"], entry["clients"])
        else:
            raise Inconsistent(f"{where}: unknown kind {kind!r}")
    for study, parts in kept.items():
        for rows in parts.values():
            for client, (charge, times) in enumerate(rows):
                if studies[study - 1][client] in clients:
                    clients[studies[study - 1][client]].add(charge, times)
    return {
        "clients": clients,
        "delta": math.fsum(pot["delta"] for pot in terms["pots"]),
        "epsilon": math.fsum(pot["epsilon"] for pot in terms["pots"]),
        "limit": math.inf,
        "lines": len(table),
        "tip": tip,
        "title": f"account {terms['id']}",
        "is_account": True,
        "is_simulation": False,
    }


def _take_off(parts: dict[str, list[list[Any]]], kind: str, clients: list[int]) -> None:
    for client in clients if kind in parts else ():
        parts[kind][client][1] = max(parts[kind][client][1] - 1, 0)


# Files


def _chain(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Return a file's lines, and the chain's value after the last.

    Each line ends in the SHA-256 of the value before it (64 zeros before the first) and its own text without the value.
    """
    content, tip, found = path.read_bytes(), 64 * "0", []
    _must(content.endswith(b"\n"), f"{path.name} is empty, or its last line has no end")
    for number, line in enumerate(content[:-1].split(b"\n"), start=1):
        text, mark, value = line.decode("ascii").rpartition(',"chain":"')
        tip = hashlib.sha256((tip + text + "}").encode()).hexdigest()
        _must(bool(mark) and value == tip + '"}', f"{path.name}, line {number}: its chain is broken")
        table = _table((text + "}").encode())
        _must(json.dumps(table, separators=(",", ":")) == text + "}", f"{path.name}, line {number}: other JSON")
        found.append(table)
    return found, tip


def _table(text: bytes) -> dict[str, Any]:
    def pairs(values: list[tuple[str, Any]]) -> dict[str, Any]:
        _must(len(dict(values)) == len(values), "a name stands twice in a table")
        return dict(values)

    def constant(word: str) -> float:
        _must(word == "Infinity", f"{word} is not a number")
        return math.inf

    found = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    if not isinstance(found, dict):
        raise Inconsistent("a file or line is not a JSON object")
    return found


def _must(is_so: bool, words: str) -> None:
    if not is_so:
        raise Inconsistent(words)


def main() -> int:
    """Check a folder: the one that this script lies in, if no other is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", metavar="TIP", help="the last chain value of the charges, from outside this folder")
    parser.add_argument("folder", metavar="FOLDER", nargs="?", type=Path, default=Path(__file__).resolve().parent)
    args = parser.parse_args()
    try:
        print(*check(args.folder, args.head), sep="\n")
    except Inconsistent as error:
        print(f"inconsistent: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
