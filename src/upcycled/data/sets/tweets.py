"""Sent140's files, each read to the same thing: tweets with a label, a user, and whether they are held out."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError
from upcycled.core.vectors import Ints
from upcycled.data import splits
from upcycled.data.grouping import client_column
from upcycled.data.readers.leaf import User, read_leaf
from upcycled.data.readers.npz import array_names, read_arrays, unreadable
from upcycled.data.readers.tables import clients_of
from upcycled.support.extras import needs

# How FedProx made its set: users with 30 tweets or more, four fifths of a user's tweets for training.
LEAST_TWEETS, TEST_SHARE = 30, 0.2
_POLARITIES = {"0": 0, "4": 1}
_COLUMNS = 6


@dataclass(frozen=True)
class Tweets:
    """Tweets in the order of the file; a file of token ids gives ``ids`` and no ``texts``.

    Users are numbered from 0 without gaps.
    """

    label: Ints
    user: Ints
    is_test: NDArray[np.bool_]
    texts: list[str]
    ids: Ints | None = None


def read_tokens(path: Path) -> Tweets:
    """Read an .npz with x (token ids), y, pseudo_user and split (0 train, 1 test, 2 unused)."""
    names = ("x", "y", "pseudo_user", "split")
    missing = [name for name in names if name not in array_names(path)]
    if missing:
        raise InputError(f"has no array {missing[0]}, but it must have {', '.join(names)}", field=str(path))
    x, y, user, split = read_arrays(path, names).values()
    if x.ndim != 2 or any(part.shape != (len(x),) for part in (y, user, split)) or x.dtype.kind not in "iu":
        raise InputError(
            "has arrays that do not fit together, but x must be (tweets, length) and the others as long",
            field=str(path),
        )
    used = np.flatnonzero((split == 0) | (split == 1))
    if not used.size:
        raise InputError("has no tweets with split 0 or 1, but it must have some", field=str(path))
    _, numbered = np.unique(
        client_column(f"pseudo_user of {path} (of tweets with split 0 or 1)", user[used]), return_inverse=True
    )
    return Tweets(
        label=_labels(path, "y", y[used], used),
        user=numbered,
        is_test=split[used] == 1,
        texts=[],
        ids=x[used].astype(np.int64),
    )


def read_parquet(path: Path) -> Tweets:
    """Read a table with the columns text, label, pseudo_user and split (train, test, unused)."""
    needs(str(path), "pandas", "pyarrow")
    import pandas

    names = ["text", "label", "pseudo_user", "split"]
    try:
        frame = pandas.read_parquet(path, engine="pyarrow", columns=names)
    except Exception as error:  # pyarrow raises many kinds of errors on damaged files and missing columns
        raise unreadable(path, f".parquet with the columns {', '.join(names)}", error) from error
    frame = frame.reset_index(drop=True)
    frame = frame[frame["split"].isin(["train", "test"])]
    if frame.empty:
        raise InputError("has no tweets with split 'train' or 'test', but it must have some", field=str(path))
    without = np.flatnonzero(frame["text"].isna().to_numpy())
    if without.size:
        raise InputError(
            f"has no text at row {frame.index[without[0]]} (counted from 0), but it must have one", field=str(path)
        )
    _, numbered = np.unique(clients_of(str(path), frame, "pseudo_user"), return_inverse=True)
    return Tweets(
        label=_labels(path, "label", frame["label"].to_numpy(dtype=object), frame.index.to_numpy()),
        user=numbered,
        is_test=frame["split"].to_numpy() == "test",
        texts=[str(text) for text in frame["text"]],
    )


def read_csv(path: Path, users: int, seed: int) -> Tweets:
    """Read the original file: polarity, id, date, query, user, text, without a header, in Latin-1.

    Users with fewer than 30 tweets are left out, and of the others ``users`` are drawn; the rest of the file is unused.
    """
    tweets = Counter(user for _, user, _ in _csv_rows(path))
    able = sorted(user for user, count in tweets.items() if count >= LEAST_TWEETS)
    if len(able) < users:
        raise InputError(
            f"has {len(able)} users with {LEAST_TWEETS} tweets or more, but it must have {users}: ask for "
            "fewer devices",
            field=str(path),
        )
    order = np.random.default_rng(seed).permutation(len(able))[:users]
    number = {able[place]: i for i, place in enumerate(order)}
    rows = [(label, number[user], text) for label, user, text in _csv_rows(path) if user in number]
    rows.sort(key=lambda row: row[1])
    user = np.array([row[1] for row in rows])
    return Tweets(np.array([row[0] for row in rows]), user, _held_out(user, seed), [row[2] for row in rows])


def read_json(path: Path, seed: int) -> Tweets:
    """Read LEAF's or FedProx's JSON: x is [id, date, query, user, text] or the text, y is "0" or "4", or 0 or 1."""
    train, test = read_leaf(path)
    number = {user.name: i for i, user in enumerate(train)}
    strange = next((user.name for user in test or () if user.name not in number), None)
    if strange is not None:
        raise InputError(
            f"has test tweets of the user '{strange}', but it must have training tweets too", field=str(path)
        )
    rows = [(number[user.name], part, *row) for part, users in enumerate((train, test or [])) for user in users
            for row in _json_rows(path, user)]  # fmt: skip
    if not any(user.y for user in train):
        raise InputError("has no training tweets, but it must have some", field=str(path))
    owner = np.array([row[0] for row in rows], dtype=np.int64)
    is_test = np.array([row[1] for row in rows], dtype=np.bool_) if test is not None else _held_out(owner, seed)
    return Tweets(np.array([row[2] for row in rows], dtype=np.int64), owner, is_test, [row[3] for row in rows])


def _labels(path: Path, name: str, values: NDArray[Any], rows: Ints) -> Ints:
    """Return labels that are 0 or 1; ``rows`` says where in the file they stand."""
    for value, row in zip(values.tolist(), rows, strict=True):
        if not isinstance(value, int | float) or value not in (0, 1):
            raise InputError(
                f"has {name} {value!r} at row {row} (counted from 0), but it must be 0 or 1", field=str(path)
            )
    return values.astype(np.int64)


def _held_out(user: Ints, seed: int) -> NDArray[np.bool_]:
    """Mark a fifth of every user's tweets; the rows are sorted by user."""
    offsets = np.concatenate([[0], np.cumsum(np.bincount(user))]).astype(np.int64)
    return splits.held_out(offsets, TEST_SHARE, seed, splits.TEST)


def _csv_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (label, user, text)."""
    line = 0
    try:
        with path.open(encoding="latin-1", newline="") as stream:
            for line, row in enumerate(csv.reader(stream), start=1):
                if len(row) != _COLUMNS or row[0] not in _POLARITIES:
                    raise InputError(
                        f"has {row[:1]} and {len(row)} columns in row {line}, but every row must be polarity (0 or "
                        "4), id, date, query, user, text",
                        field=str(path),
                    )
                yield _POLARITIES[row[0]], row[4], row[5]
    except (OSError, csv.Error) as error:
        raise InputError(f"cannot be read as Sent140's CSV (row {line + 1}: {error})", field=str(path)) from error


def _json_rows(path: Path, user: User) -> Iterator[tuple[int, str]]:
    for x, y in zip(user.x, user.y, strict=True):
        text: Any = x[4] if isinstance(x, list) and len(x) > 4 else x
        label = {"0": 0, "1": 1, "4": 1}.get(str(y))
        if not isinstance(text, str) or label is None or isinstance(y, bool):
            raise InputError(
                f"has a tweet of the user '{user.name}' that is not a text or [id, date, query, user, text] "
                "with the label 0, 1 or 4",
                field=str(path),
            )
        yield label, text
