"""FEMNIST in LEAF's JSON: FedProx's users with the labels 0-9 for a-j, or LEAF's writers with EMNIST's 62 labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError
from upcycled.data.declared import declare
from upcycled.data.federated import FederatedData
from upcycled.data.grouping import GroupedRows, group
from upcycled.data.readers.idx import SPLITS
from upcycled.data.readers.leaf import User, merged, read_leaf
from upcycled.data.sets.femnist_partition import TRAINING_SHARE, letter_names

_SIDE = 28
_ALPHABET = 26


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
    filled = [user for user in users if user.y]
    if not filled:
        raise InputError(f"has no {title} samples, but it must have some", field=str(path))
    return GroupedRows(
        title,
        np.concatenate([_images(path, user) for user in filled]),
        np.concatenate([_labels(path, user) for user in filled]),
        np.repeat([numbers[user.name] for user in filled], [len(user.y) for user in filled]),
    )


def _images(path: Path, user: User) -> NDArray[np.float32]:
    try:
        images = np.asarray(user.x, dtype=np.float32).reshape(len(user.y), _SIDE, _SIDE)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"has images of the user '{user.name}' that are not {_SIDE * _SIDE} numbers each, but they must be",
            field=str(path),
        ) from error
    if not np.isfinite(images).all():
        raise InputError(
            f"has images of the user '{user.name}' with values that are not finite numbers", field=str(path)
        )
    return images


def _labels(path: Path, user: User) -> NDArray[Any]:
    try:
        labels = np.asarray(user.y, dtype=np.float64)
        sound = labels.shape == (len(user.y),) and bool(
            np.all((labels >= 0) & (labels < 2**31) & (labels == np.floor(labels)))
        )
    except (ValueError, TypeError):
        sound = False
    if not sound:
        raise InputError(f"has labels of the user '{user.name}' that are not whole numbers >= 0", field=str(path))
    return labels.astype(np.int64)


def _lower_case(part: GroupedRows) -> GroupedRows:
    return _where(GroupedRows(part.title, part.x, part.y - SPLITS["byclass"], part.client), part.y >= SPLITS["byclass"])


def _where(part: GroupedRows, mask: NDArray[np.bool_]) -> GroupedRows:
    return GroupedRows(part.title, part.x[mask], part.y[mask], part.client[mask])
