"""The evidence folder: files that anybody can read, and recompute with another library."""

from __future__ import annotations

import hashlib
import io
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

import upcycled
from upcycled._utils.extras import missing
from upcycled._utils.files import read_json, reading, write_together
from upcycled.audit.evidence.claims import Claim, claim_of_account, claim_of_run
from upcycled.audit.evidence.texts import about_verifying, for_a_board, statement
from upcycled.core.errors import InputError
from upcycled.core.vectors import Real
from upcycled.privacy.accounts.account import Account
from upcycled.privacy.accounts.account_file import FILE as ACCOUNT
from upcycled.privacy.ledger.joint import read_beside
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.privacy.ledger.ledger_file import ledger_files
from upcycled.training.checkpoint.fingerprint import versions

LEDGER, MODEL = "ledger.jsonl", "model.safetensors"


@dataclass(frozen=True)
class Evidence:
    """What was written."""

    claim: Claim
    files: list[str]
    tip: str
    """The last chain value of the charges, to be kept outside the folder."""


def write_evidence(source: str | Path, folder: str | Path, audit: str | Path | None = None) -> Evidence:
    """Write the evidence for a run's epsilon, or for an account's.

    Of a run all attempts count. Only what everybody may see is read, and the holder's key where it is there: it shows
    whose the head is.

    Args:
        source: a seed's folder of a finished run, the results folder of a single seed, or an account's folder.
        folder: where; it must not be there yet, or be empty.
        audit: a file with what ``upcycled audit --json`` printed.

    Returns:
        What is claimed, the names of the files, and the tip that the folder is checked against.

    Raises:
        InputError: in one sentence, if there is nothing to give evidence of.
    """
    place, target = Path(source), Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is not empty, but evidence needs a folder of its own")
    if (place / ACCOUNT).exists():
        account = Account(place)
        claim, head = claim_of_account(account, f"account {account.id}"), account.head.as_json()
        files = {ACCOUNT: account.content}
    else:
        claim, head, files = _of_run(_seed_of(place))
    files["head.json"] = _json(head)
    files["versions.json"] = _json(_versions())
    if audit is not None:
        files["audit.json"] = _audit(Path(audit))
    clients = [client.as_json(claim.delta) for client in claim.clients]
    about = {
        "delta": claim.delta,
        "claimed_epsilon": _finite(claim.epsilon),
        "claim": claim.word,
        "is_account": claim.is_account,
    }
    files["verify.py"] = Path(__file__).with_name("verify.py").read_bytes()
    files["STATEMENT.md"] = statement(claim).encode()
    files["BOARD.md"] = for_a_board(claim).encode()
    files["curve.csv"] = _csv(*claim.curve)
    if not missing("matplotlib"):
        files["curve.png"] = _picture(claim)
    files["VERIFY.md"] = about_verifying(claim, [*files, "events.json", "VERIFY.md"]).encode()
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    files["events.json"] = _json({**about, "neighbours": "replace one", "clients": clients, "files": hashes})
    write_together(target, files)
    return Evidence(claim, sorted(files), head["tip"])


def _seed_of(place: Path) -> Path:
    """Return the folder itself, or that of its only seed: each seed is a run, with a ledger of its own."""
    seeds = sorted(path.parent for path in place.glob("seed-*/summary.json"))
    if (place / "summary.json").exists() or not seeds:
        return place
    if len(seeds) > 1:
        raise InputError(f"{place} has {len(seeds)} finished seeds, each with a ledger of its own: say one, {seeds[0]}")
    return seeds[0]


def _of_run(place: Path) -> tuple[Claim, dict[str, Any], dict[str, bytes]]:
    expected = "a finished run in a seed's folder such as results/NAME/seed-0, or an account's folder"
    summary = read_json(place / "summary.json", expected)
    with reading(place / "config.toml", expected):
        config = (place / "config.toml").read_bytes()
    privacy = summary.get("privacy")
    if not isinstance(privacy, dict):
        raise InputError(f"{place} holds a run without privacy: there is no epsilon to give evidence of")
    paths = [path for path in ledger_files(place) if b"\n" in path.read_bytes()]
    if not paths:
        raise InputError(f"{place} has no {LEDGER}, but evidence is a ledger first of all")
    attempts, before = [*map(Ledger.read, paths[:-1]), ledger := read_beside(paths[-1])], None
    for path, one in zip(paths, attempts, strict=True):
        assert one.head is not None  # of a file
        if one.header.previous != before:
            raise InputError(f"{path}: this ledger does not say which attempt was before it: put the file back")
        before = one.head.tip
    assert ledger.head is not None  # of a file
    head = ledger.head.as_json() if ledger.ahead or not ledger.is_held else privacy["head"]
    with reading(place / "summary.json", expected):
        delta = float(privacy["delta"])
    claim = claim_of_run(attempts, delta, f"run {ledger.run}", _numbers(place / MODEL))
    # A last line without its end belongs to a release that never left.
    files = {path.name: content[: content.rfind(b"\n") + 1] for path in paths for content in [path.read_bytes()]}
    return claim, head, files | {"config.toml": config}


def _numbers(path: Path) -> int | None:
    """Return how many numbers the model has, which is the length of what a client sends; None where it is not there."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as file:
            found: int = sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
            return found
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is damaged, but it says how many numbers a client sent: {error}") from None


def _versions() -> dict[str, Any]:
    return {**versions(), "python": platform.python_version(), "source_sha256": source_hash()}


def source_hash() -> str:
    """Return the SHA-256 of this package's source: of each file's path, length and bytes, in the order of paths."""
    root = Path(upcycled.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        content = path.read_bytes()
        found.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _audit(path: Path) -> bytes:
    read_json(path, "what `upcycled audit --json` printed")
    return path.read_bytes()


def _json(document: Mapping[str, Any] | None) -> bytes:
    return json.dumps(document, indent=2, allow_nan=False).encode() + b"\n"


def _csv(epsilons: Real, deltas: Real) -> bytes:
    rows = [f"{epsilon!r},{delta!r}" for epsilon, delta in zip(epsilons.tolist(), deltas.tolist(), strict=True)]
    return "\n".join(["epsilon,delta", *rows, ""]).encode()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _picture(claim: Claim) -> bytes:
    from matplotlib.figure import Figure

    epsilons, deltas = claim.curve
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.semilogy(epsilons, deltas.clip(1e-16), color="#0072b2")
    if math.isfinite(claim.epsilon):
        axes.plot([claim.epsilon], [claim.delta], "o", color="#d55e00")
        axes.annotate("claimed", (claim.epsilon, claim.delta), textcoords="offset points", xytext=(6, 6))
    axes.set(xlabel="epsilon", ylabel="delta(epsilon)", title=f"{claim.title}: the worst client")
    axes.grid(color="#e4e4e4")
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=120, metadata={"Software": None})
    return stream.getvalue()
