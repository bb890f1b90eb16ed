"""IDX, the format of MNIST and EMNIST: a header with type and shape, then the numbers; plain or gzipped.

EMNIST stores its images transposed. Its split ``byclass`` has 62 labels: 0-9 digits, 10-35 upper case, 36-61 lower
case. Its split ``letters`` has the labels 1-26 with upper and lower case merged, so its letters are not lower case.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError, reason_of
from upcycled.data.sets.femnist_partition import Images
from upcycled.support.compressed import check_unpacked

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
