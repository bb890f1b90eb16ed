"""Small files in the formats of the real sets, written by hand and not by the code under test."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array):
    """The bytes of an IDX file, after its description on Yann LeCun's page."""
    kind = array.dtype.str[1:]
    header = bytes([0, 0, CODES[kind], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(f">{kind}").tobytes()


def write_emnist(folder, split, images, labels, test_images, test_labels, zipped=True):
    """Four files; the images are given upright and stored transposed, as EMNIST has them."""
    for part, x, y in (("train", images, labels), ("test", test_images, test_labels)):
        for kind, array in (("images-idx3", np.swapaxes(x, 1, 2)), ("labels-idx1", y)):
            name = f"emnist-{split}-{part}-{kind}-ubyte"
            content = idx_bytes(np.ascontiguousarray(array).astype(np.uint8))
            (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(content) if zipped else content)
    return folder / (f"emnist-{split}-train-images-idx3-ubyte" + ".gz" * zipped)


def write_leaf(path, users):
    """``users`` maps a name to its (x, y)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content))
    return path


def letter_pool(per_letter, letters=26, test_per_letter=3, seed=0):
    """Images whose first pixels say which image they are: part, letter and number."""
    rng = np.random.default_rng(seed)
    found = {}
    for part, count in (("train", per_letter), ("test", test_per_letter)):
        y = rng.permutation(np.repeat(np.arange(letters), count)).astype(np.int8)
        x = np.zeros((len(y), 28, 28), dtype=np.uint8)
        x[:, 0, 0] = part == "test"
        x[:, 0, 1] = y
        x[:, 0, 2], x[:, 0, 3] = np.arange(len(y)) // 256, np.arange(len(y)) % 256
        found |= {f"{part}_x": x, f"{part}_y": y}
    return found


def write_pool(path: Path, **options):
    np.savez(path, **letter_pool(**options))
    return path


def one_sentence(error):
    """The message of an error, known to be one line."""
    text = str(error)
    assert "\n" not in text
    assert "Traceback" not in text
    return text
