"""Sent140: tweets, and whether they are glad or sad.

Sent140's files, each read to the same thing: tweets with a label, a user, and whether they are held out.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled._utils.extras import needs
from upcycled.core.errors import InputError
from upcycled.core.vectors import Ints
from upcycled.data import splits
from upcycled.data.arrays import whole
from upcycled.data.federated import FederatedData
from upcycled.data.grouping import GroupedRows, client_column, group
from upcycled.data.options import DataOptions
from upcycled.data.readers.npz import array_names, read_arrays, unreadable
from upcycled.data.readers.raw_tables import inferred_column
from upcycled.data.readers.tables import clients_of
from upcycled.data.sets.leaf import User, is_leaf, merged, read_leaf
from upcycled.data.sets.paths import find, missing
from upcycled.data.sets.word_vectors import (
    DIMENSIONS,
    LENGTH,
    READY,
    encode,
    find_vectors,
    find_words,
    read_vectors,
    read_words,
    table,
    tokens,
    vocabulary,
)

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
    users = clients_of(str(path), "pseudo_user", inferred_column(frame["pseudo_user"]), frame.index.to_numpy())
    _, numbered = np.unique(users, return_inverse=True)
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


TOKENS = "sent140_52dev_tokens.npz"
PARQUET = "sent140_50k_52dev.parquet"
ORIGINAL = "training.1600000.processed.noemoticon.csv"
DEVICES, USERS, USERS_PER_DEVICE = 52, 772, 15
_LEAST_USES = 2


def sent140(
    source: str | os.PathLike[str] | None = None,
    *,
    dimension: int | None = 50,
    vectors: str | os.PathLike[str] | None = None,
    devices: int | None = DEVICES,
    length: int = LENGTH,
    seed: int = 0,
    public: bool = False,
) -> FederatedData:
    """Load Sent140 as the paper has it: 52 devices of 15 users each, tweets of 25 tokens, two classes.

    The result carries the word vectors, so ``up.train(data, model="lstm")`` is the paper's model: a fixed embedding, an
    LSTM 128 wide in each direction, a linear layer. ``docs/data.md`` says what is published and what is rebuilt.

    Args:
        source: what to read. None looks for ``sent140_52dev_tokens.npz``, ``sent140_50k_52dev.parquet`` and the
            original ``training.1600000.processed.noemoticon.csv``, in UPCYCLED_DATA and in the cache folder. Otherwise
            one of those files, or LEAF's JSON: a file, or a folder with files or with ``train`` and ``test``.
        dimension: of the GloVe vectors: 50, 100 or 300 (the paper's); None for no vectors, so that the model learns its
            embedding.
        vectors: the file of the vectors; looked for beside the source and where data lies if left out.
        devices: merge users into so many devices, one after the other; None makes every user a device.
        length: tokens per tweet; longer ones are cut, shorter ones filled up at the end.
        seed: which users of the original file are taken, and which tweets are held out where the source does not say.
        public: the tweets are published; say so for a run with real noise, which protects nobody here.

    Returns:
        The data.

    Raises:
        InputError: in one sentence; where nothing is found it says how to get it.

    >>> import json, tempfile
    >>> tweets = {"x": [["", "", "", "", text] for text in ("so glad", "so sad")], "y": [1, 0]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "tweets.json"
    ...     _ = file.write_text(json.dumps({"users": ["ann"], "num_samples": [2], "user_data": {"ann": tweets}}))
    ...     sent140(file, dimension=None, devices=None)
    FederatedData(...)
    """
    seed, length = whole("seed", seed, at_least=0), whole("length", length, at_least=1)
    devices = None if devices is None else whole("devices", devices, at_least=1)
    if dimension is not None and dimension not in DIMENSIONS:
        raise InputError(field="dimension", value=dimension, must="50, 100 or 300, or None for no vectors")
    if dimension is None and vectors is not None:
        raise InputError(field="vectors", value=str(vectors), must="left out when dimension is None")
    path = _found() if source is None else Path(source)
    if not path.exists():
        raise InputError(field="source", value=str(path), must="a file or a folder that exists")
    file = None
    if dimension is not None:
        file = find_vectors(dimension, path.parent) if vectors is None else Path(vectors)
        if not file.is_file():
            raise InputError(field="vectors", value=str(file), must="a file that exists")
    tweets = _read(path, devices, seed)
    ids, table = _encoded(tweets, path, file, dimension, length)
    device = merged(int(tweets.user.max()) + 1, devices)[tweets.user]
    parts = [
        GroupedRows(title, ids[rows], tweets.label[rows], device[rows])
        for title, rows in (("train", ~tweets.is_test), ("test", tweets.is_test))
    ]
    # Two people who write the same few words write two tweets.
    data = group(parts, DataOptions(label_names=("negative", "positive")))
    # Words, users and what is held out follow from the tweets.
    data = replace(data, has_copies=False, inferred=data.inferred | {"sizes"}, public=public)
    return data if table is None else data.with_vectors(table)


def _found() -> Path:
    """Return the file to use where none is named."""
    names = (TOKENS, PARQUET, ORIGINAL)
    path = find(*names)
    if path is None:
        raise missing("Sent140", names, "sent140")
    return path


def _read(path: Path, devices: int | None, seed: int) -> Tweets:
    if path.is_dir() and (path / ORIGINAL).is_file():
        path = path / ORIGINAL
    if is_leaf(path):
        return read_json(path, seed)
    kind = path.suffix.lower()
    if kind == ".npz":
        return read_tokens(path)
    if kind == ".parquet":
        return read_parquet(path)
    if kind == ".csv":
        users = USERS if devices in (None, DEVICES) else USERS_PER_DEVICE * int(devices or 0)
        return read_csv(path, users, seed)
    raise InputError(field="source", value=str(path), must=".npz, .parquet, .csv, .json or a folder of .json files")


def _encoded(
    tweets: Tweets, path: Path, file: Path | None, dimension: int | None, length: int
) -> tuple[Ints, NDArray[np.float32] | None]:
    """Return token ids, and the vectors that belong to them."""
    if tweets.ids is not None and length > tweets.ids.shape[1]:
        most = tweets.ids.shape[1]
        raise InputError(
            field="length", value=length, but=f"{path} has {most} tokens per tweet, so it must be at most {most}"
        )
    if file is None or dimension is None:
        ids = encode(tweets.texts, _repeated_words(tweets), length) if tweets.ids is None else tweets.ids[:, :length]
        return ids, None
    if tweets.ids is not None:
        words = read_words(_words_file(path))
        return tweets.ids[:, :length], table(words, read_vectors(file, dimension, set(words)), dimension)
    if file.suffix.lower() == ".npz":
        # The file's own order of words, so that the ids are those of the ready token file.
        words = read_words(file)
        found = read_vectors(file, dimension, set(words))
    else:
        found = read_vectors(file, dimension, {token for text in tweets.texts for token in tokens(text)})
        words = vocabulary(tweets.texts, lambda word, _: word in found)
    return encode(tweets.texts, words, length), table(words, found, dimension)


def _repeated_words(tweets: Tweets) -> tuple[str, ...]:
    """Return the words that training tweets use at least twice: what an embedding can be learned for."""
    training = [text for text, held in zip(tweets.texts, tweets.is_test, strict=True) if not held]
    return vocabulary(training, lambda _, uses: uses >= _LEAST_USES)


def _words_file(path: Path) -> Path:
    """Return the file that says which words the token ids of another one stand for."""
    file = find_words(path.parent)
    if file is None:
        raise InputError(
            f"holds token ids, but {READY} with the words they stand for must lie beside it",
            field=str(path),
        )
    return file
