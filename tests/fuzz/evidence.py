"""Forged evidence folders: what ``verify.py`` accepts must be no smaller than the truth, and never inconsistent."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import upcycled as up
from tests.privacy.runs import chained
from tests.privacy.test_ledger_evidence import EDITS
from upcycled.audit.evidence import verify
from upcycled.audit.evidence.folder import write_evidence
from upcycled.config.experiment import parse
from upcycled.core.errors import InputError
from upcycled.experiments.batch import run_experiment
from upcycled.privacy import Account, Ledger
from upcycled.privacy.ledger.joint import charges_of, draws_of, epsilon_of_events, events_of
from upcycled.privacy.ledger.ledger_file import ledger_files

Files = dict[str, bytes]
RUN = {
    "name": "run",
    "iterations": 4,
    "data": {"source": "synthetic", "alpha": "iid", "clients": 3, "sizes": 40},
    "algorithm": {"name": "fedprox", "mu": 0.5},
}
ERM = {"mechanism": "erm_output", "norm_bound": 1.0, "noise_std": 0.5, "noise": "system"}
BUDGET = {"budget": {"epsilon": 3.5, "delta": 1e-5}}
PURE = {"mechanism": "objective_perturbation", "norm_bound": 1.0, "alpha": 5.0, "noise": "system"}
SAMPLED = {"mechanism": "dpsgd", "clip_norm": 1.0, "noise_multiplier": 4.0, "noise": "system"}
STOPPED = {"callbacks": ["tests.fuzz.evidence:Stops"]}
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "ended": {"privacy": ERM},
    "stopped": {"privacy": ERM, "iterations": 6, **STOPPED},
    "two attempts": {"privacy": ERM, "clients": {"participation": 0.67}},
    "pure": {"privacy": PURE, **STOPPED},
    "sampled": {"privacy": SAMPLED, "algorithm": {"name": "fedavg"}, "local": {"batch_size": 10}},
    "budget": {"privacy": ERM | BUDGET, "iterations": 40},
    "budget, stopped": {"privacy": ERM | BUDGET, "iterations": 40, **STOPPED},
}


class Stops:
    """A callback that ends its run after two iterations."""

    def record(self, record: Any, run: Any) -> Any:
        return up.STOP if record.iteration == 2 else None


@dataclass(frozen=True)
class Case:
    """A folder of evidence, and what is true of it."""

    name: str
    files: Files
    tip: str
    epsilon: float


def _evidence(source: Path, name: str) -> Case:
    with TemporaryDirectory() as folder:
        written = write_evidence(source, Path(folder) / "evidence")
        files = {file: (Path(folder) / "evidence" / file).read_bytes() for file in written.files}
    # A picture takes most of the time to read, and nothing follows from it.
    files = resealed({file: content for file, content in files.items() if not file.endswith(".png")})
    return Case(name, files, written.tip, written.claim.epsilon)


@cache
def case_of(name: str) -> Case:
    """Return a folder of a kind: of an experiment, or of an account that paid for two."""
    with TemporaryDirectory() as home, chdir(home):
        if name == "account":
            account = Account.open(Path(home) / name, epsilon=8.0, delta=1e-5, kind="gaussian")
            for each in ("ended", "stopped"):
                privacy = {"privacy": ERM | {"account": str(account.folder)}}
                run_experiment(parse(RUN | EXPERIMENTS[each] | privacy | {"name": each}), "fuzz")
            return _evidence(account.folder, name)
        experiment = parse(RUN | EXPERIMENTS[name])
        folder = run_experiment(experiment, "fuzz").seeds[0].folder
        if name == "two attempts":
            shutil.rmtree(folder / "private")
            (folder / "summary.json").unlink()
            run_experiment(experiment, "fuzz")
        return _evidence(folder, name)


NAMES = (*EXPERIMENTS, "account")
QUICK = ("ended", "stopped", "two attempts", "budget, stopped", "account")
"""Those whose epsilon takes least to recompute."""


# Forgers


def resealed(files: Files) -> Files:
    """Return the files with the hashes of events.json made anew, where it is one."""
    try:
        document = json.loads(files["events.json"])
        names = document["files"]
    except (ValueError, LookupError, TypeError):
        return files
    document["files"] = {name: hashlib.sha256(files[name]).hexdigest() for name in names if name in files}
    return files | {"events.json": json.dumps(document, indent=2).encode() + b"\n"}


def charges_in(files: Files) -> list[str]:
    return [name for name in files if name.endswith(".jsonl")]


def edit(case: Case, rng: random.Random) -> Files:
    """Edit a random place of a random file."""
    name = rng.choice([file for file in case.files if file != "verify.py"])
    return case.files | {name: rng.choice(EDITS)(case.files[name], rng)}


def cut(case: Case, rng: random.Random) -> Files:
    """Truncate charges and head together, with a sound chain; perhaps say that the run ended."""
    name = rng.choice(charges_in(case.files))
    lines = case.files[name].splitlines()
    kept = [json.loads(line) for line in lines[: rng.randrange(1, len(lines))]]
    if rng.random() < 0.5 and len(kept) > 1:
        last = {"iteration": kept[-1].get("iteration", 1), "round": kept[-1].get("round", 1), "attempt": 0}
        kept.append({"kind": "ended", **last, "clients": [], "cost": 0})
    return rewritten(case.files, name, kept, rng)


def change(case: Case, rng: random.Random) -> Files:
    """Change numbers in the charges, their order, or which there are, with a sound chain."""
    name = rng.choice(charges_in(case.files))
    lines = [json.loads(line) for line in case.files[name].splitlines()]
    for _ in range(rng.choice([1, 1, 2, 5])):
        rng.choice([_numbers, _numbers, _header, _lines, _clients])(lines, rng)
    return rewritten(case.files, name, lines, rng)


def _numbers(lines: list[Any], rng: random.Random) -> None:
    """Multiply a number somewhere in a line."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            walk(inner)
            if type(inner) in (int, float):
                places.append((value, key))

    walk(lines[rng.randrange(len(lines))])
    if places:
        table, key = rng.choice(places)
        changed = table[key] * rng.choice([0, 0.1, 0.5, 2, 10, -1]) + rng.choice([0, 0, 1])
        table[key] = int(changed) if type(table[key]) is int else changed


def _header(lines: list[Any], rng: random.Random) -> None:
    """Change what the first line says of the plan, of delta or of the budget."""
    header, planned = lines[0], lines[0].get("planned", {})
    change = rng.randrange(7)
    if change == 0:
        header.pop("planned", None)
    elif change == 1 and "data" in planned:
        planned["data"]["times"] = [rng.choice([0, 1, 2]) for _ in planned["data"]["times"]]
    elif change == 2 and "data" in planned:
        planned["data"]["noise_std"] = [10 * value for value in planned["data"]["noise_std"]]
    elif change == 3:
        header["data_rounds_planned"] = rng.choice([0, 1, 2, 100])
    elif change == 4:
        header["delta"] = rng.choice([None, 0.0, 1e-3, 0.3, 1.0])
    elif change == 5:
        header["budget"] = rng.choice([None, {"epsilon": 0.1, "delta": 1e-5}, {"epsilon": 0.1, "delta": 0.3}])
    else:
        header["previous"] = rng.choice([None, "0" * 64, "x"])


def _lines(lines: list[Any], rng: random.Random) -> None:
    """Delete, swap, repeat or insert lines."""
    place = rng.randrange(len(lines))
    change = rng.randrange(4)
    if change == 0 and len(lines) > 1:
        del lines[place]
    elif change == 1:
        other = rng.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    elif change == 2:
        lines.insert(place, json.loads(json.dumps(lines[rng.randrange(len(lines))])))
    else:
        ended = {"kind": "ended", "iteration": 1, "round": 1, "attempt": 0, "clients": [], "cost": 0}
        lines.insert(place, rng.choice([ended, {"kind": "ended", "study": 1}, {"kind": "closed"}]))


def _clients(lines: list[Any], rng: random.Random) -> None:
    """Take a client out of a charge."""
    line = lines[rng.randrange(len(lines))]
    line = line.get("entry", line)
    if line.get("clients") and "charge" in line:
        place = rng.randrange(len(line["clients"]))
        for values in line.values():
            if isinstance(values, list):
                del values[place]


def rewritten(files: Files, name: str, lines: list[Any], rng: random.Random) -> Files:
    """Return the files with other charges; head, events and hashes made anew as far as the forger went."""
    content = chained(lines).encode()
    files = files | {name: content}
    effort = rng.randrange(4)
    if effort >= 1 and name == last_of(files):
        tip = json.loads(content.splitlines()[-1])["chain"]
        files["head.json"] = json.dumps({"lines": len(lines), "tip": tip, "mac": None}).encode()
    if effort >= 2:
        files = consistent(files)
    return resealed(files) if effort >= 3 or rng.random() < 0.5 else files


def last_of(files: Files) -> str:
    return max(charges_in(files), key=lambda name: (len(name), name))


def consistent(files: Files) -> Files:
    """Return the files with events.json and texts as they follow from the charges, as far as anything does."""
    document = json.loads(files["events.json"])
    with TemporaryDirectory() as folder:
        for name in charges_in(files):
            (Path(folder) / name).write_bytes(files[name])
        try:
            claim = derived(Path(folder))
            groups = [group_of(name, client, claim) for name, client in claim["clients"].items()]
        except Exception:  # the forger has nothing to state then
            return files
    claimed = claim["epsilon"] if claim["epsilon"] is not None else max(group["stated_epsilon"] for group in groups)
    document |= {"delta": claim["delta"], "claimed_epsilon": claimed, "clients": groups}
    delta, title = f"{claim['delta']:.6g}", claim["title"]
    stated = f"claim**: epsilon {claimed:.6g} at delta {delta}, over all studies; {claimed:.6g} for the worst client"
    board = f"# A forged one: {title}\n\ndifferential privacy with epsilon {claimed:.6g} and delta {delta}\n"
    return files | {
        "events.json": json.dumps(document, indent=2).encode() + b"\n",
        "STATEMENT.md": f"# A forged one: {title}\n\n{stated}\n".encode(),
        "BOARD.md": board.encode(),
        "VERIFY.md": f"# A forged one: {title}\n".encode(),
    }


def group_of(name: str, client: verify.Client, claim: dict[str, Any]) -> dict[str, Any]:
    epsilon = 0.0
    for _ in range(3):  # what is left of delta depends on epsilon a little
        epsilon = min(client.proven(claim["delta"], epsilon), claim["limit"])
    return {
        "clients": [name],
        "stated_epsilon": epsilon,
        "draws_of_real_noise": client.draws,
        "delta_for_events": client.left(claim["delta"], epsilon),
        "events": client.as_json(),
    }


def derived(folder: Path) -> dict[str, Any]:
    """Return what the script derives from the charges."""
    account = folder / "account.jsonl"
    return verify._account(account) if account.exists() else verify._run(ledger_files(folder))


def claims(case: Case, rng: random.Random) -> Files:
    """Change what events.json states; perhaps with hashes made anew."""
    document = json.loads(case.files["events.json"])
    for _ in range(rng.choice([1, 2, 4])):
        change = rng.randrange(8)
        groups = document["clients"]
        group = rng.choice(groups) if groups else {}
        if change == 0:
            for event in group.get("events") or []:
                event["count"] = max(1, event["count"] // 2)
        elif change == 1:
            for one in groups:
                one["stated_epsilon"] = None
        elif change == 2:
            group["delta_for_events"] = 0.3
        elif change == 3:
            document["clients"] = rng.choice([[], groups[:1], groups[1:]])
        elif change == 4:
            document["delta"] = rng.choice([0.3, 1e-3, None])
        elif change == 5:
            factor = rng.choice([0.1, 0.9, 0.999, 1 - 1e-9])
            document["claimed_epsilon"] = case.epsilon * factor
            for one in groups:
                if rng.random() < 0.7 and one["stated_epsilon"] is not None:
                    one["stated_epsilon"] *= factor
        elif change == 6:
            document["is_account"] = not document["is_account"]
        else:
            group["events"] = rng.choice([None, []])
    files = case.files | {"events.json": json.dumps(document, indent=2).encode() + b"\n"}
    if rng.random() < 0.3:
        files["head.json"] = rng.choice([b"null\n", b"{}\n", b'{"lines": 1, "tip": null, "mac": null}\n'])
    if rng.random() < 0.1:
        files[rng.choice(charges_in(files))] = b"garbage\n"
    return resealed(files) if rng.random() < 0.7 else files


def swap(case: Case, rng: random.Random) -> Files:
    """Put files of another folder in, exchange two, or take some away; perhaps with hashes made anew."""
    other, files = case_of(rng.choice(QUICK)), dict(case.files)
    change = rng.randrange(4)
    if change == 0:
        for name in rng.sample(sorted(other.files), rng.choice([1, 1, 2, 3])):
            files[name] = other.files[name]
    elif change == 1:
        one, two = rng.sample(sorted(files), 2)
        files[one], files[two] = files[two], files[one]
    elif change == 2:
        del files[rng.choice([name for name in files if name != "events.json"])]
    else:  # all that states the claim, beside the charges of this one
        files |= {name: other.files[name] for name in ("events.json", "STATEMENT.md", "BOARD.md")}
    return resealed(files) if rng.random() < 0.7 else files


FORGERS: tuple[Callable[[Case, random.Random], Files], ...] = (edit, cut, change, change, claims, swap)


def forged(place: int, seed: int, names: tuple[str, ...] = NAMES) -> tuple[Case, Files]:
    """Return a case and a forgery of it."""
    rng = random.Random(f"{seed} {place}")
    case, forger = case_of(names[place % len(names)]), FORGERS[place // len(names) % len(FORGERS)]
    return case, forger(case, rng)


# The judge


def written(files: Files, folder: Path) -> None:
    """Have these files in the folder, and no others."""
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()
    for name, content in files.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def wrong_of(case: Case, files: Files, folder: Path) -> tuple[str, str | None]:
    """Return how far a forgery came ("refused", or accepted with or without the head), and what is wrong with that."""
    written(files, folder)
    try:
        verify.check(folder)
    except verify.Inconsistent:
        with_head = accepted(folder, case.tip)
        return "refused", "only accepted with the head" if with_head else None
    wrong = contradiction(folder, files)
    if wrong is not None or not accepted(folder, case.tip):
        return "accepted without the head", wrong
    stated = [json.loads(files["events.json"])["claimed_epsilon"], *numbers_in(files)]
    # A claim that is smaller by less than rounding is none that anybody would forge.
    is_smaller = min(stated) < case.epsilon * (1 - 1e-4)
    return (
        "accepted with the head",
        f"accepted with epsilon {stated}, and it was {case.epsilon}" if is_smaller else None,
    )


def numbers_in(files: Files) -> list[float]:
    """Return the epsilons that people read, as far as their digits go."""
    statement, board = files["STATEMENT.md"].decode(), files["BOARD.md"].decode()
    found = re.findall(r"(\S+) for the worst client|claim\*\*: epsilon (\S+) at", statement)
    found += re.findall(r"privacy with epsilon ()(\S+) and delta", board)
    return [float((one or other).replace(",", "")) * (1 + 5e-4) for one, other in found]


def accepted(folder: Path, tip: str) -> bool:
    try:
        verify.check(folder, tip)
    except verify.Inconsistent:
        return False
    return True


def contradiction(folder: Path, files: Files) -> str | None:
    """Say how a folder that was accepted contradicts what this package reads in it; None if it does not."""
    document, head = json.loads(files["events.json"]), json.loads(files["head.json"])
    try:
        if "account.jsonl" in files:
            return _of_account(files["account.jsonl"], document, head)
        ledgers = [Ledger.read(path) for path in ledger_files(folder)]
        last = ledgers[-1].head
        assert last is not None
        if (last.lines, last.tip) != (head["lines"], head["tip"]):
            return "accepted with a head that is not the ledger's"
        delta = ledgers[-1].default_delta
        for ledger in ledgers:
            ledger.max_epsilon(delta)  # refuses a delta that proves nothing
        epsilon = max(epsilon_of(ledgers, client, delta) for client in range(ledgers[0].rounds.size))
        if len(ledgers) == 1 and not ledgers[0].is_as_planned and ledgers[0].budget is not None:
            epsilon = min(epsilon, ledgers[0].budget.epsilon)
    except InputError as error:
        return f"accepted, and the package refuses it: {error}"
    if document["delta"] != delta:
        return f"accepted at delta {document['delta']}, and it is {delta}"
    claimed = document["claimed_epsilon"]
    return None if epsilon <= claimed * (1 + 1e-3) else f"accepted with {claimed}, and it is {epsilon}"


def epsilon_of(ledgers: list[Ledger], client: int, delta: float) -> float:
    """Return a client's epsilon over all attempts, planned charges that were not made included."""
    charges = [charge for ledger in ledgers for charge in charges_of(ledger, client)]
    return epsilon_of_events(events_of(charges), draws_of(charges), delta)


def _of_account(content: bytes, document: dict[str, Any], head: dict[str, Any]) -> str | None:
    with TemporaryDirectory() as home:
        folder = Path(home) / "account"
        folder.mkdir(mode=0o700)
        (folder / "account.jsonl").write_bytes(content)
        account = Account(folder)
        if (account.head.lines, account.head.tip) != (head["lines"], head["tip"]):
            return "accepted with a head that is not the account's"
        stated = {name: one["stated_epsilon"] for one in document["clients"] for name in one["clients"]}
        if sorted(stated) != sorted(account.clients):
            return "accepted with other clients"
    terms = account.terms
    if (document["claimed_epsilon"], document["delta"]) != (terms.epsilon, terms.delta):
        return f"accepted with {document['claimed_epsilon']}, and the account's budget is {terms.epsilon}"
    return None
