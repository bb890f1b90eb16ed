"""LEAF's JSON, which FedProx writes too.

{"users": [name, ...], "num_samples": [count, ...], "user_data": {name: {"x": [...], "y": [...]}}}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from upcycled.core.errors import InputError, reason_of
from upcycled.core.vectors import Ints


@dataclass(frozen=True)
class User:
    """One user's samples as the file has them."""

    name: str
    x: list[Any]
    y: list[Any]


def is_leaf(path: Path) -> bool:
    """Say whether a path is a JSON file, or a folder with JSON files in it or in its folder ``train``."""
    if path.is_dir():
        return any(path.glob("*.json")) or any(path.glob("train/*.json")) or any(path.glob("data/train/*.json"))
    return path.suffix.lower() == ".json"


def read_leaf(path: Path) -> tuple[list[User], list[User] | None]:
    """Return the users of a file or folder, and those of its test part: None where there are no train/ and test/."""
    if (path / "data" / "train").is_dir():
        path = path / "data"
    if not (path / "train").is_dir():
        return _read_part(path), None
    if not (path / "test").is_dir():
        raise InputError("has a folder train but no folder test, but it must have both", field=str(path))
    return _read_part(path / "train"), _read_part(path / "test")


def merged(users: int, devices: int | None) -> Ints:
    """Return the device of every user: as many users after one another as needed; None makes each a device.

    >>> merged(5, 3).tolist(), merged(3, None).tolist()
    ([0, 0, 1, 1, 2], [0, 1, 2])
    """
    if devices is None:
        return np.arange(users)
    if devices > users:
        raise InputError(field="devices", value=devices, must=f"at most the number of users {users}")
    each = -(-users // devices)
    if -(-users // each) != devices:
        raise InputError(
            field="devices",
            value=devices,
            but=(
                f"{users} users cannot be merged into that many, {each} by {each} or fewer: it must be "
                f"{-(-users // each)}, for example"
            ),
        )
    return np.arange(users) // each


def _read_part(path: Path) -> list[User]:
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise InputError("has no .json files, but it must have at least one", field=str(path))
    found: dict[str, User] = {}
    for file in files:
        for user in _read_file(file):
            if user.name in found:
                raise InputError(
                    f"has the user '{user.name}' a second time, but every user must be unique", field=str(file)
                )
            found[user.name] = user
    if not found:
        raise InputError("has no users, but it must have at least one", field=str(path))
    return list(found.values())


def _read_file(path: Path) -> list[User]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"cannot be read as JSON, but it must be a whole JSON file ({reason_of(error)})", field=str(path)
        ) from error
    try:
        entries = [(name, content["user_data"][name]) for name in content["users"]]
        found = [User(name, list(entry["x"]), list(entry["y"])) for name, entry in entries]
    except (KeyError, TypeError) as error:
        raise _wrong(path, reason_of(error)) from error
    for user in found:
        if len(user.x) != len(user.y):
            raise _wrong(path, f"the user '{user.name}' has {len(user.x)} samples and {len(user.y)} labels")
    return found


def _wrong(path: Path, reason: str) -> InputError:
    return InputError(
        f"is not LEAF's format, but it must have 'users' and 'user_data' with an x and a y each ({reason})",
        field=str(path),
    )
