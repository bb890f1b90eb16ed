"""Sent140: tweets, and whether they are glad or sad."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError
from upcycled.core.vectors import Ints
from upcycled.data.checks import whole
from upcycled.data.declared import declare
from upcycled.data.federated import FederatedData
from upcycled.data.grouping import GroupedRows, group
from upcycled.data.paths import find, missing
from upcycled.data.readers.leaf import is_leaf, merged
from upcycled.data.sets import glove
from upcycled.data.sets.tokens import LENGTH, encode, tokens, vocabulary
from upcycled.data.sets.tweets import Tweets, read_csv, read_json, read_parquet, read_tokens

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
    if dimension is not None and dimension not in glove.DIMENSIONS:
        raise InputError(field="dimension", value=dimension, must="50, 100 or 300, or None for no vectors")
    if dimension is None and vectors is not None:
        raise InputError(field="vectors", value=str(vectors), must="left out when dimension is None")
    path = _found() if source is None else Path(source)
    if not path.exists():
        raise InputError(field="source", value=str(path), must="a file or a folder that exists")
    file = None
    if dimension is not None:
        file = glove.find_vectors(dimension, path.parent) if vectors is None else Path(vectors)
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
    data = group(parts, declared=declare(label_names=("negative", "positive")))
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
        words = glove.read_words(_words_file(path))
        return tweets.ids[:, :length], glove.table(words, glove.read_vectors(file, dimension, set(words)), dimension)
    if file.suffix.lower() == ".npz":
        # The file's own order of words, so that the ids are those of the ready token file.
        words = glove.read_words(file)
        found = glove.read_vectors(file, dimension, set(words))
    else:
        found = glove.read_vectors(file, dimension, {token for text in tweets.texts for token in tokens(text)})
        words = vocabulary(tweets.texts, lambda word, _: word in found)
    return encode(tweets.texts, words, length), glove.table(words, found, dimension)


def _repeated_words(tweets: Tweets) -> tuple[str, ...]:
    """Return the words that training tweets use at least twice: what an embedding can be learned for."""
    training = [text for text, held in zip(tweets.texts, tweets.is_test, strict=True) if not held]
    return vocabulary(training, lambda _, uses: uses >= _LEAST_USES)


def _words_file(path: Path) -> Path:
    """Return the file that says which words the token ids of another one stand for."""
    file = glove.find_words(path.parent)
    if file is None:
        raise InputError(
            f"holds token ids, but {glove.READY} with the words they stand for must lie beside it", field=str(path)
        )
    return file
