"""FEMNIST: handwritten letters on devices that know only some of them.

The paper's FEMNIST devices, dealt from a pool of letter images.

FedProx's ``my_sample.py`` makes 200 users: user u has the classes u, u+1 and u+2 (modulo the number of letters), as
many of each, lognormal(4, 1) + 5 in all, nine tenths for training. The paper merges them four by four into 50 devices.
Here the images of the two parts come from disjoint pools, and an image is used again only when its class is exhausted:
FedProx's own code starts every user at the first image of a class, so that most test images are training images too.

IDX, the format of MNIST and EMNIST: a header with type and shape, then the numbers; plain or gzipped.

EMNIST stores its images transposed. Its split ``byclass`` has 62 labels: 0-9 digits, 10-35 upper case, 36-61 lower
case. Its split ``letters`` has the labels 1-26 with upper and lower case merged, so its letters are not lower case.

FEMNIST in LEAF's JSON: FedProx's users with the labels 0-9 for a-j, or LEAF's writers with EMNIST's 62 labels.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import string
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from upcycled._utils.files import check_unpacked
from upcycled.core.errors import InputError, Limits, reason_of, unknown
from upcycled.core.vectors import Ints
from upcycled.data.arrays import Names, flat_part, whole
from upcycled.data.federated import FederatedData, checked
from upcycled.data.grouping import GroupedRows, group
from upcycled.data.loading import load
from upcycled.data.options import DataOptions
from upcycled.data.readers.npz import array_names, pixels, read_set
from upcycled.data.sets.leaf import User, is_leaf, merged, read_leaf
from upcycled.data.sets.paths import find, missing

USERS_PER_DEVICE, CLASSES_PER_USER, TRAINING_SHARE = 4, 3, 0.9
LETTERS = Limits(at_least=CLASSES_PER_USER, at_most=len(string.ascii_lowercase), integer=True)
PUBLISHED_LETTERS, PUBLISHED_DEVICES = 10, 50

# Images per class of the 200 users. The device totals are the official ones (osu-srml/Upcycled-FL, user_groups.json);
# how a device divides into its four users is drawn, given those totals, since no source says.
PUBLISHED = (
    *(20, 9, 8, 41, 18, 50, 47, 30, 21, 27, 53, 7, 57, 16, 14, 32, 31, 6, 15, 5, 7, 23, 7, 58, 11, 23, 6, 34, 12, 12),
    *(6, 23, 7, 27, 24, 12, 6, 55, 7, 31, 21, 8, 6, 13, 10, 19, 14, 24, 10, 3, 23, 9, 185, 14, 14, 2, 5, 9, 2, 14),
    *(14, 29, 44, 636, 4, 25, 65, 124, 50, 23, 68, 35, 22, 12, 20, 134, 55, 44, 23, 32, 22, 46, 8, 49, 8, 24, 66, 73),
    *(26, 26, 25, 57, 6, 21, 4, 86, 28, 83, 9, 27, 16, 18, 23, 109, 19, 14, 28, 18, 19, 17, 14, 31, 14, 20, 7, 7, 90),
    *(7, 15, 28, 53, 22, 173, 46, 38, 7, 30, 20, 4, 18, 16, 6, 17, 54, 14, 16, 56, 27, 3, 20, 20, 34, 13, 4, 4, 8),
    *(35, 7, 10, 14, 9, 8, 48, 57, 16, 6, 18, 10, 63, 15, 17, 46, 20, 91, 122, 16, 30, 15, 5, 5, 4, 36, 19, 50, 10),
    *(6, 15, 9, 25, 50, 9, 55, 33, 10, 15, 12, 30, 16, 64, 18, 11, 16, 48, 35, 5, 8, 5, 12, 63, 50),
)


@dataclass(frozen=True)
class Images:
    """Letter images without owners; label i is the i-th letter. The two parts share no image."""

    train_x: NDArray[Any]
    train_y: Ints
    test_x: NDArray[Any]
    test_y: Ints

    def of(self, letters: int) -> Images:
        """Return the images of the first letters only."""
        train, test = self.train_y < letters, self.test_y < letters
        return Images(self.train_x[train], self.train_y[train], self.test_x[test], self.test_y[test])


def letter_names(letters: int) -> tuple[str, ...]:
    """Return the names of the classes.

    >>> letter_names(3)
    ('a', 'b', 'c')
    """
    return tuple(string.ascii_lowercase[:letters])


def drawn_sizes(devices: int, seed: int) -> Ints:
    """Draw images per class for four users per device, as my_sample.py does.

    >>> drawn_sizes(2, seed=0).size, int(drawn_sizes(50, seed=0).min()) >= 2
    (8, True)
    """
    rng = np.random.default_rng([seed, 0])
    samples = rng.lognormal(4.0, 1.0, USERS_PER_DEVICE * devices) + 5.0
    return np.maximum((samples / CLASSES_PER_USER).astype(np.int64), 2)


def deal(images: Images, letters: int, per_class: Ints, seed: int) -> FederatedData:
    """Deal a pool out: user u gets ``per_class[u]`` images of each of its classes; four users are one device."""
    wanted: list[list[Ints]] = [[], []]
    rng = np.random.default_rng([seed, 1])
    for user, count in enumerate(per_class):
        classes = (user + np.arange(CLASSES_PER_USER)) % letters
        labels = rng.permutation(np.repeat(classes, count))
        kept = int(TRAINING_SHARE * labels.size)
        wanted[0].append(labels[:kept])
        wanted[1].append(labels[kept:])
    sides = (("train", images.train_x, images.train_y), ("test", images.test_x, images.test_y))
    parts, options = [], DataOptions(label_names=letter_names(letters))
    for (title, x, y), users in zip(sides, wanted, strict=True):
        labels = np.concatenate(users)
        sizes = np.array([own.size for own in users]).reshape(-1, USERS_PER_DEVICE).sum(axis=1)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        rows = _rows(title, labels, y, letters, rng)
        parts.append(flat_part(title, pixels(x[rows]), y[rows], offsets, options))
    return checked(parts, Names(), options)


def _rows(title: str, wanted: Ints, pool: Ints, letters: int, rng: np.random.Generator) -> Ints:
    """Return a row of the pool for every wanted label; a class is gone through in random order, again and again."""
    rows = np.empty(wanted.size, dtype=np.int64)
    for label in range(letters):
        places, order = np.flatnonzero(wanted == label), rng.permutation(np.flatnonzero(pool == label))
        if places.size and not order.size:
            raise InputError(
                f"the pool has no {title} image of the letter '{letter_names(letters)[label]}', "
                f"but it must have one of each of {letters} letters"
            )
        rows[places] = np.resize(order, places.size)
    return rows


SPLITS = {"byclass": 36, "letters": 1}
"""The label of the first letter in each split."""
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CHUNK = 1 << 20
_MOST_DIMENSIONS = 32
"""Images in colour have four; NumPy takes some more than this, and a byte says up to 255."""
Stream: TypeAlias = gzip.GzipFile | io.BufferedReader


def read_idx(path: Path, rows: NDArray[np.bool_] | None = None) -> NDArray[Any]:
    """Return the array of a file, or only the marked rows of it: EMNIST has half a gigabyte of images.

    Raises:
        InputError: in one sentence, for a file that is damaged or something else.
    """
    with _opened(path) as stream:
        dtype, shape = _header(path, stream)
        if rows is not None and len(rows) != shape[0]:
            raise InputError(
                f"has {shape[0]} rows, but it must have as many as its labels, {len(rows)}", field=str(path)
            )
        width = dtype.itemsize * math.prod(shape[1:])
        if isinstance(stream, gzip.GzipFile):
            check_unpacked(path, shape[0] * width)
        elif shape[0] * width > path.stat().st_size:
            raise _damaged(path, f"its header asks for {shape[0] * width} bytes, and it has {path.stat().st_size}")
        step = max(1, _CHUNK // max(1, width))
        kept: list[NDArray[Any]] = []
        for start in range(0, shape[0], step):
            count = min(step, shape[0] - start)
            block = stream.read(count * width)
            if len(block) != count * width:
                raise _damaged(path, f"it ends after {start + len(block) // max(1, width)} of {shape[0]} rows")
            array = np.frombuffer(block, dtype).reshape(count, *shape[1:])
            kept.append(array if rows is None else array[rows[start : start + count]])
        if stream.read(1):
            raise _damaged(path, f"it goes on after its {shape[0]} rows")
    return np.concatenate(kept) if kept else np.zeros(shape, dtype)


def read_emnist(images: Path, letters: int) -> Images:
    """Return the first letters of the split that a ``...-train-images-idx3-ubyte`` file belongs to, upright.

    The split's other three files must lie beside it.
    """
    split = next((name for name in SPLITS if f"-{name}-" in images.name), None)
    if split is None or "train-images" not in images.name:
        raise InputError(
            "is not the training images of a split with letters, but it must be "
            "emnist-byclass-train-images-idx3-ubyte or emnist-letters-train-images-idx3-ubyte, perhaps "
            "with .gz",
            field=str(images),
        )
    parts: list[NDArray[Any]] = []
    for part in ("train", "test"):
        name = images.name.replace("-train-", f"-{part}-")
        labels_file = _beside(images, name.replace("images-idx3", "labels-idx1"))
        labels = read_idx(labels_file)
        if labels.ndim != 1:
            raise _damaged(labels_file, f"its shape is {labels.shape}, not one label per image")
        letter = labels.astype(np.int64) - SPLITS[split]
        wanted = (letter >= 0) & (letter < letters)
        found = read_idx(_beside(images, name), wanted)
        if found.shape[1:] != (28, 28):
            raise _damaged(images, f"its images have shape {found.shape[1:]}, not (28, 28)")
        parts += [found.transpose(0, 2, 1), letter[wanted]]
    return Images(*parts)


def _beside(images: Path, name: str) -> Path:
    """Return a file of the same folder, gzipped or not."""
    plain = images.with_name(name.removesuffix(".gz"))
    for place in (plain, plain.with_name(f"{plain.name}.gz")):
        if place.is_file():
            return place
    raise InputError(f"does not exist (nor with .gz), but it must lie beside {images.name}", field=str(plain))


@contextmanager
def _opened(path: Path) -> Iterator[Stream]:
    try:
        with path.open("rb") as probe:
            zipped = probe.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else path.open("rb") as stream:
            yield stream
    except (EOFError, zlib.error, OSError) as error:
        raise _damaged(path, reason_of(error)) from error


def _header(path: Path, stream: Stream) -> tuple[np.dtype[Any], tuple[int, ...]]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not 1 <= magic[3] <= _MOST_DIMENSIONS:
        raise _damaged(path, "its first four bytes are not 0, 0, a type and a number of dimensions")
    sizes = stream.read(4 * magic[3])
    if len(sizes) != 4 * magic[3]:
        raise _damaged(path, "it ends within its header")
    return np.dtype(_TYPES[magic[2]]), struct.unpack(f">{magic[3]}I", sizes)


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(f"cannot be read as IDX, but it must be a whole IDX file ({reason})", field=str(path))


_SIDE = 28
_ALPHABET = 26
_LABELS = 62


def load_json(path: Path, letters: int | None, devices: int | None, seed: int) -> FederatedData:
    """Read users; a single part has a tenth of every client's images held out as its test part.

    Labels from 26 on can only be EMNIST's: then the lower-case letters are kept, and users without one left out.
    """
    train, test = read_leaf(path)
    numbers = {user.name: i for i, user in enumerate(train)}
    parts = [
        _rows_of_json(path, "train", train, numbers),
        *([] if test is None else [_rows_of_json(path, "test", test, numbers)]),
    ]
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
    names = tuple(train[i].name for i in users) if devices is None else None
    data = group(parts, DataOptions(label_names=letter_names(count), client_names=names))
    # FedProx's files have the same images many times.
    return data if test is not None else replace(data, has_copies=True).split(1 - TRAINING_SHARE, seed)


def _rows_of_json(path: Path, title: str, users: list[User], numbers: dict[str, int]) -> GroupedRows:
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
