"""FEMNIST: handwritten letters on devices that know only some of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from upcycled.core.errors import InputError, unknown
from upcycled.core.vectors import Ints
from upcycled.data.checks import whole
from upcycled.data.federated import FederatedData
from upcycled.data.loading import load
from upcycled.data.paths import find, missing
from upcycled.data.readers.idx import read_emnist
from upcycled.data.readers.leaf import is_leaf
from upcycled.data.readers.npz import array_names, read_set
from upcycled.data.sets.femnist_json import load_json
from upcycled.data.sets.femnist_partition import (
    LETTERS,
    PUBLISHED,
    PUBLISHED_DEVICES,
    PUBLISHED_LETTERS,
    Images,
    deal,
    drawn_sizes,
    letter_names,
)

READY = "femnist10_50dev_wrap.npz"
POOL = "emnist_lower26_pool.npz"
EMNIST = ("emnist-byclass-train-images-idx3-ubyte", "emnist-byclass-train-images-idx3-ubyte.gz")
LETTERS_SPLIT = tuple(name.replace("byclass", "letters") for name in EMNIST)
PARTITIONS = ("published", "drawn")


def femnist(
    source: str | os.PathLike[str] | None = None,
    *,
    letters: int | None = None,
    devices: int | None = None,
    partition: str | None = None,
    seed: int = 0,
    public: bool = False,
) -> FederatedData:
    """Load FEMNIST as the paper has it: lower-case letters a to j, 50 devices, 6 letters on each; or up to 26 letters.

    Pixels are float32 from 0 to 1, samples are 28 x 28 (the models flatten them). ``docs/data.md`` says which of the
    numbers are published and which are rebuilt.

    Args:
        source: what to read. None looks for ``femnist10_50dev_wrap.npz``, then for a pool to deal out:
            ``emnist_lower26_pool.npz`` or EMNIST's byclass files, in UPCYCLED_DATA and in the cache folder.
            Otherwise an .npz with or without devices, EMNIST's training images (idx, plain or gzipped; the other three
            files beside it) or their folder, or LEAF's JSON: a file, or a folder with files or with ``train`` and
            ``test``.
        letters: how many, from a on. From a pool 10 unless given; from other files all they have.
        devices: from a pool 50 unless given; from JSON so many by merging users, or one for every user.
        partition: for a pool: "published" gives the devices the official sizes (10 letters, 50 devices), "drawn" draws
            them anew. Left out: "published" where it fits.
        seed: which images a device gets, and its size where that is drawn. Without a source, seed 0 of the published
            devices is the ready file, where there is one.
        public: the images are published; say so for a run with real noise, which protects nobody here.

    Returns:
        The data.

    Raises:
        InputError: in one sentence; where nothing is found it says how to get it.

    >>> import tempfile
    >>> import upcycled as up
    >>> images, labels = np.zeros((40, 28, 28)), np.arange(40) % 10
    >>> devices = up.data.partition.iid(labels, clients=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     up.data.save(FederatedData.from_pool(images, labels, devices), f"{folder}/letters.npz")
    ...     data = up.data.femnist(f"{folder}/letters.npz")
    >>> data.num_clients, data.label_names[:3], data.has_copies
    (4, ('a', 'b', 'c'), True)
    """
    letters = None if letters is None else int(LETTERS.check("letters", letters))
    devices = None if devices is None else whole("devices", devices, at_least=1)
    seed = whole("seed", seed, at_least=0)
    if partition is not None and partition not in PARTITIONS:
        raise unknown("partition", partition, PARTITIONS)
    path = _found(letters, devices, partition, seed) if source is None else Path(source)
    if not path.exists():
        raise InputError(field="source", value=str(path), must="a file or a folder that exists")
    is_dealt = is_leaf(path) or (path.suffix.lower() == ".npz" and "train_client" in array_names(path))
    if is_dealt and partition is not None and source is not None:
        raise InputError(field="partition", value=partition, must=f"left out: {path} has its clients already")
    if is_leaf(path):
        data = load_json(path, letters, devices, seed)
    elif is_dealt:
        data = _ready(path, letters, devices)
    else:
        count = PUBLISHED_LETTERS if letters is None else letters
        data = deal(_pool(path, count), count, _sizes(count, devices, partition, seed), seed)
    # Images are used again when a class is exhausted; holding one out must hold out all of it. Whose they are follows
    # from their labels.
    return replace(data, has_copies=True, inferred=data.inferred | {"sizes"}, public=public)


def _found(letters: int | None, devices: int | None, partition: str | None, seed: int) -> Path:
    """Return the file to use where none is named."""
    names: tuple[str, ...] = (POOL, *EMNIST)
    if letters in (None, PUBLISHED_LETTERS) and devices in (None, PUBLISHED_DEVICES) and partition != "drawn":
        # The ready file is one dealing of the images; another seed asks for another.
        names = (READY, *names) if seed == 0 else names
    path = find(*names)
    if path is None:
        raise missing("FEMNIST", names, "femnist")
    return path


def _ready(path: Path, letters: int | None, devices: int | None) -> FederatedData:
    data = load(path)
    for field, asked, has in (("letters", letters, data.num_classes), ("devices", devices, data.num_clients)):
        if asked is not None and asked != has:
            raise InputError(field=field, value=asked, but=f"{path} has {has}, so it must be that or be left out")
    names = letter_names(data.num_classes)
    return replace(data, label_names=data.label_names or (names if len(names) == data.num_classes else None))


def _pool(path: Path, letters: int) -> Images:
    if path.is_dir():
        inside = next((path / name for name in (*EMNIST, *LETTERS_SPLIT) if (path / name).is_file()), None)
        if inside is None:
            raise InputError(
                field="source", value=str(path), but=f"a folder must hold {EMNIST[0]} (perhaps .gz) or LEAF's .json"
            )
        path = inside
    if path.suffix.lower() != ".npz":
        return read_emnist(path, letters)
    archive = read_set(path, None, ("x", "y"))
    found = {f"{part}_{key}": archive.column(part, key) for part in ("train", "test") for key in ("x", "y")}
    for part in ("train", "test"):
        x, y = found[f"{part}_x"], found[f"{part}_y"]
        if x.ndim != 3 or y.shape != x.shape[:1] or y.dtype.kind not in "iu":
            raise InputError(
                f"has {part}_x of shape {x.shape} and {part}_y of shape {y.shape}, but they must be (images, "
                "height, width) and a whole number for each image",
                field=str(path),
            )
    return Images(**found).of(letters)


def _sizes(letters: int, devices: int | None, partition: str | None, seed: int) -> Ints:
    count = PUBLISHED_DEVICES if devices is None else devices
    fits = (letters, count) == (PUBLISHED_LETTERS, PUBLISHED_DEVICES)
    if partition == "published" and not fits:
        raise InputError(
            f"is 'published', but it must be 'drawn' for {letters} letters and {count} devices: sizes are "
            f"published for {PUBLISHED_LETTERS} and {PUBLISHED_DEVICES} only",
            field="partition",
        )
    return drawn_sizes(count, seed) if partition == "drawn" or not fits else np.array(PUBLISHED)
