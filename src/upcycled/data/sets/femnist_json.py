"""FEMNIST in LEAF's JSON: FedProx's users with the labels 0-9 for a-j, or LEAF's writers with EMNIST's 62 labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError, reason_of
from upcycled.core.vectors import Ints
from upcycled.data.declared import declare
from upcycled.data.federated import FederatedData
from upcycled.data.grouping import GroupedRows, group
from upcycled.data.readers.idx import SPLITS
from upcycled.data.readers.leaf import User, merged, read_leaf
from upcycled.data.sets.femnist_partition import TRAINING_SHARE, letter_names

_SIDE = 28
_ALPHABET = 26
_LABELS = 62


def load_json(path: Path, letters: int | None, devices: int | None, seed: int) -> FederatedData:
    """Read users; a single part has a tenth of every client's images held out as its test part.

    Labels from 26 on can only be EMNIST's: then the lower-case letters are kept, and users without one left out.
    """
    train, test = read_leaf(path)
    numbers = {user.name: i for i, user in enumerate(train)}
    parts = [_rows(path, "train", train, numbers), *([] if test is None else [_rows(path, "test", test, numbers)])]
    if max(int(part.y.max(initial=0)) for part in parts) >= _ALPHABET:
        parts = [_lower_case(part) for part in parts]
    wanted = _ALPHABET if letters is None else letters
    parts = [_where(part, part.y < wanted) for part in parts]
    users = np.unique(parts[0].client)
    if not users.size:
        raise InputError("has no lower-case letters, but it must have some", field=str(path))
    device = merged(len(users), devices)
    place = np.full(len(train), -1)
    place[users] = device
    parts = [GroupedRows(part.title, part.x, part.y, place[part.client]) for part in parts]
    parts[1:] = [_where(part, part.client >= 0) for part in parts[1:]]
    count = max(2, int(parts[0].y.max()) + 1) if letters is None else letters
    names = [train[i].name for i in users] if devices is None else None
    data = group(parts, client_names=names, declared=declare(count, letter_names(count)))
    # FedProx's files have the same images many times.
    return data if test is not None else replace(data, has_copies=True).split(1 - TRAINING_SHARE, seed)


def _rows(path: Path, title: str, users: list[User], numbers: dict[str, int]) -> GroupedRows:
    strange = next((user.name for user in users if user.name not in numbers), None)
    if strange is not None:
        raise InputError(
            f"has test samples of the user '{strange}', but it must have training samples too", field=str(path)
        )
    filled = [(user.name, *_samples(path, user)) for user in users if user.y]
    if not filled:
        raise InputError(f"has no {title} samples, but it must have some", field=str(path))
    names, x, y = zip(*filled, strict=True)
    owners = np.repeat([numbers[name] for name in names], [len(own) for own in y])
    return GroupedRows(title, np.concatenate(x), np.concatenate(y), owners)


def _samples(path: Path, user: User) -> tuple[NDArray[np.float32], Ints]:
    try:
        images = np.asarray(user.x, dtype=np.float32).reshape(len(user.y), _SIDE, _SIDE)
        labels = np.asarray(user.y, dtype=np.float64).reshape(len(user.y))
        if not np.isfinite(images).all() or not np.isin(labels, np.arange(_LABELS)).all():
            raise ValueError(f"a value is not finite, or a label none of 0 to {_LABELS - 1}")
    except (ValueError, TypeError) as error:
        raise InputError(
            f"has samples of the user '{user.name}' that are not {_SIDE * _SIDE} numbers and a label each "
            f"({reason_of(error)})",
            field=str(path),
        ) from error
    return images, labels.astype(np.int64)


def _lower_case(part: GroupedRows) -> GroupedRows:
    return _where(GroupedRows(part.title, part.x, part.y - SPLITS["byclass"], part.client), part.y >= SPLITS["byclass"])


def _where(part: GroupedRows, mask: NDArray[np.bool_]) -> GroupedRows:
    return GroupedRows(part.title, part.x[mask], part.y[mask], part.client[mask])
