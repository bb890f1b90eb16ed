"""What makes a run this very run: a checkpoint goes on in no other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from upcycled.core.errors import InputError
from upcycled.runtime.checkpointing.fingerprint import as_words, digest, hash_of_shards, keyed, versions
from upcycled.runtime.checkpointing.own_code import changed_code, own_code
from upcycled.runtime.plan import Plan

DATA_KEY = "data.key"
"""The file in a restricted run's folder with the 32 bytes that its data's hashes are keyed with."""
_DATA = ("training data", "test data", "validation data")
_HASHED = ("model", "initial weights", *_DATA)


def way_out(has_real_noise: bool, what: str = "folder") -> str:
    """Return the advice for a folder that this run cannot use.

    Never to remove real releases' ledger: it is the only record of what they spent.
    """
    if has_real_noise:
        return f"choose another {what} and keep that folder, which records what its releases have spent"
    return f"choose another {what}, or remove that folder to start again"


def identity_of(plan: Plan, key: bytes | None = None) -> dict[str, Any]:
    """Return all that a run's bits depend on: the spec in plain values, data, weights and code by hashes, versions.

    With a key, which a restricted run has, the hashes of data are keyed.

    Take it before an engine is opened: engines write into the task's module.
    """
    task = plan.task
    kept = {name: value.numpy(force=True) for name, value in task.module.state_dict().items()}
    frozen = [(name, array) for name, array in kept.items() if name not in task.layout.names]
    data = {"training data": hash_of_shards(task.train), "test data": hash_of_shards(task.test)}
    if plan.validation is not None:
        data["validation data"] = hash_of_shards(plan.validation)
    return {
        "spec": plan.spec.plain() | {"engine": plan.engine.name, "model": f"{task.module!r} {digest(frozen)}"},
        "initial weights": digest([("initial", plan.initial)]),
        **{name: words if words is None or key is None else keyed(key, words) for name, words in data.items()},
        "code": own_code(plan.spec),
        "versions": versions(),
    }


def check_same(
    now: Mapping[str, Any], before: Mapping[str, Any], folder: Path, is_anyway: bool, compares_data: bool = True
) -> None:
    """Refuse a folder whose checkpoints belong to another run, code or versions, and say what differs.

    A restricted run does not compare its data: whether it goes on would tell whether a record was changed.
    """
    wanted, held = _flat(now), _flat(before)
    advice = way_out(held.get("noise") == "system")
    for name in dict.fromkeys([*wanted, *held]):
        if wanted.get(name) == held.get(name) or (name in _DATA and not compares_data):
            continue
        if name in _HASHED:
            raise InputError(f"checkpoint folder '{folder}' holds a run with other {name} than this one's: {advice}")
        ours, theirs = (as_words(one[name]) if name in one else "not given" for one in (wanted, held))
        raise InputError(f"{name} is {ours}, but checkpoint folder '{folder}' holds a run with {theirs}: {advice}")
    edited = changed_code(now["code"], before["code"])
    if edited is not None and not is_anyway:
        raise InputError(
            f"checkpoint folder '{folder}' was written before {edited} was edited, which may give other bits: "
            f"{advice}, or say resume_anyway=True (--resume-anyway)"
        )
    for name, version in now["versions"].items():
        other = before["versions"].get(name)
        if other != version and not is_anyway:
            raise InputError(
                f"checkpoint folder '{folder}' was written with {name} {other}, but this is {version}, which may give "
                "other bits: go on with the version that wrote it, or say resume_anyway=True (--resume-anyway)"
            )


def has_other_data(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return any(now.get(name) != before.get(name) for name in _DATA)


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in identity.items() if name not in ("spec", "code", "versions")}
    return {**identity["spec"], **own}
