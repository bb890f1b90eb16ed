"""The evidence folder: files that anybody can read, and recompute with another library."""

from __future__ import annotations

import hashlib
import io
import json
import math
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

import upcycled
from upcycled.auditing.evidence.board import for_a_board
from upcycled.auditing.evidence.claims import Claim, claim_of_account, claim_of_ledger
from upcycled.auditing.evidence.words import SCRIPT, about_verifying, statement
from upcycled.core.errors import InputError
from upcycled.core.vectors import Real
from upcycled.privacy.accounts.account import Account
from upcycled.privacy.accounts.account_file import FILE as ACCOUNT
from upcycled.privacy.ledger.run_folder import ledger_files, read_beside
from upcycled.runtime.checkpointing.fingerprint import versions
from upcycled.support.extras import missing
from upcycled.support.files import write_together

LEDGER, MODEL = "ledger.jsonl", "model.safetensors"


def write_evidence(source: str | Path, folder: str | Path, audit: str | Path | None = None) -> tuple[Claim, list[str]]:
    """Write the evidence for a run's epsilon, or for an account's.

    Of a run only what everybody may see is read, and the holder's key where it is there: it shows whose the head is.

    Args:
        source: a seed's folder of a finished run, the results folder of a single seed, or an account's folder.
        folder: where; it must not be there yet, or be empty.
        audit: a file with what ``upcycled audit --json`` printed.

    Returns:
        What is claimed, and the names of the files.

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
    files["events.json"] = _json({**about, "neighbours": "replace one", "clients": clients})
    files["verify.py"] = SCRIPT.encode()
    files["STATEMENT.md"] = statement(claim).encode()
    files["BOARD.md"] = for_a_board(claim).encode()
    files["curve.csv"] = _csv(*claim.curve)
    if not missing("matplotlib"):
        files["curve.png"] = _picture(claim)
    files["VERIFY.md"] = about_verifying(claim, [*files, "VERIFY.md"]).encode()
    write_together(target, files)
    return claim, sorted(files)


def _seed_of(place: Path) -> Path:
    """Return the folder itself, or that of its only seed: each seed is a run, with a ledger of its own."""
    seeds = sorted(path.parent for path in place.glob("seed-*/summary.json"))
    if (place / "summary.json").exists() or not seeds:
        return place
    if len(seeds) > 1:
        raise InputError(f"{place} has {len(seeds)} finished seeds, each with a ledger of its own: say one, {seeds[0]}")
    return seeds[0]


def _of_run(place: Path) -> tuple[Claim, Any, dict[str, bytes]]:
    try:
        summary = json.loads((place / "summary.json").read_text(encoding="utf-8"))
        config = (place / "config.toml").read_bytes()
    except (OSError, ValueError):
        raise InputError(
            f"{place} has no finished run, but it must be a seed's folder such as results/NAME/seed-0, or an account's"
        ) from None
    privacy = summary.get("privacy") if isinstance(summary, dict) else None
    if not isinstance(privacy, dict):
        raise InputError(f"{place} holds a run without privacy: there is no epsilon to give evidence of")
    head = privacy.get("head")
    attempts = ledger_files(place)
    if not attempts:
        raise InputError(f"{place} has no {LEDGER}, but evidence is a ledger first of all")
    ledger = read_beside(attempts[-1])
    claim = claim_of_ledger(ledger, float(privacy["delta"]), f"run {ledger.run}", _numbers(place / MODEL))
    return claim, head, {LEDGER: attempts[-1].read_bytes(), "config.toml": config}


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
    try:
        content = path.read_bytes()
        if not isinstance(json.loads(content), dict):
            raise ValueError
    except (OSError, ValueError):
        raise InputError(f"{path} must be what `upcycled audit --json` printed, but it is not") from None
    return content


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
