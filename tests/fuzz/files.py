"""Data files gone wrong: a good one of each format, with bits, lengths, members and texts changed."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import random
import struct
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np

import upcycled as up
from upcycled.data.schema.schema import as_schema
from upcycled.data.sets.femnist import read_idx
from upcycled.data.sets.leaf import read_leaf
from upcycled.data.sets.sent140 import read_tokens
from upcycled.data.sets.word_vectors import read_vectors
from upcycled.privacy.ledger.ledger import Ledger

CSV = "client,age,weight,label\nann,31,60.5,0\nann,47,71,1\nbob,25,80,1\nbob,33,1e3,0\n"
SCHEMA = """\
[columns.site]
kind = "client"
[columns.age]
kind = "number"
bounds = [0, 100]
[columns.colour]
kind = "category"
values = ["red", "green"]
[columns.ill]
kind = "label"
classes = ["no", "yes"]
"""
TABLE = "site,age,colour,ill\na,31,red,no\na,90,green,yes\nb,12,red,yes\n"
SPECIALS = [
    b"",
    b"\0",
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"nan",
    b"-1",
    b"1e999",
    b'"',
    b"\n",
    b",",
    b"{",
    b"[" * 2000,
    b"9" * 40,
]


def _npz(**arrays: object) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


@cache
def _made() -> dict[str, bytes]:
    """Return good files that the package wrote itself."""
    with tempfile.TemporaryDirectory() as folder:
        data = up.data.synthetic(0.5, 0.5, clients=3, dim=2, sizes=8)
        up.train(
            data,
            algorithm=up.FedAvg(),
            iterations=3,
            progress=False,
            privacy=up.privacy.UpdateClipping(1.0, noise_std=0.1),
            checkpoint=f"{folder}/kept",
        ).save(f"{folder}/model")
        up.data.save(data, f"{folder}/set.npz")
        found = {
            "npz": Path(folder, "set.npz").read_bytes(),
            "ledger": Path(folder, "kept/ledger.jsonl").read_bytes(),
            "card": Path(folder, "model/model.json").read_bytes(),
            "weights": Path(folder, "model/model.safetensors").read_bytes(),
        }
        if importlib.util.find_spec("pyarrow") and importlib.util.find_spec("pandas"):
            import pandas

            pandas.read_csv(io.StringIO(CSV)).to_parquet(f"{folder}/a.parquet")
            found["parquet"] = Path(folder, "a.parquet").read_bytes()
    return found


def good_files() -> dict[str, bytes]:
    """Return the content of a good file of each kind."""
    idx = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 2, 2) + bytes(range(8))
    leaf = {"users": ["a", "b"], "num_samples": [1, 2]}
    leaf["user_data"] = {"a": {"x": [[1, 2]], "y": [0]}, "b": {"x": [[1, 2], [3, 4]], "y": [0, 1]}}
    tokens = {"x": np.ones((4, 3), np.int64), "y": np.array([0, 1, 0, 1]), "pseudo_user": np.array([0, 0, 1, 1])}
    return _made() | {
        "csv": CSV.encode(),
        "schema": SCHEMA.encode(),
        "table": TABLE.encode(),
        "idx": idx,
        "idx.gz": gzip.compress(idx),
        "leaf": json.dumps(leaf).encode(),
        "tokens": _npz(**tokens, split=np.array([0, 0, 1, 0])),
        "vectors": b"the 0.1 0.2\nof 0.3 0.4\n",
    }


SUFFIXES = {"npz": ".npz", "csv": ".csv", "table": ".csv", "parquet": ".parquet", "leaf": ".json", "schema": ".toml"}


def _load_model(path: Path, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind, file in (("card", "model.json"), ("weights", "model.safetensors")):
            content = path.read_bytes() if file == name else _made()[kind]
            Path(folder, file).write_bytes(content)
        up.load(folder).predict([[0.5, 1.0]])


READERS: dict[str, Callable[[Path], object]] = {
    "npz": up.data.load,
    "csv": up.data.load,
    "parquet": up.data.load,
    "table": lambda path: up.data.load(path, schema=_schema()),
    "schema": lambda path: as_schema(path),
    "idx": read_idx,
    "idx.gz": read_idx,
    "leaf": read_leaf,
    "tokens": read_tokens,
    "vectors": lambda path: read_vectors(path, 2, {"the", "of"}),
    "ledger": lambda path: Ledger.read(path).epsilon(1e-5),
    "card": partial(_load_model, name="model.json"),
    "weights": partial(_load_model, name="model.safetensors"),
}


@cache
def _schema() -> up.data.Schema:
    import tomllib

    return up.data.Schema.from_dict(tomllib.loads(SCHEMA))


def kinds() -> list[str]:
    return [kind for kind in READERS if kind in good_files()]


def content_of(kind: str, place: int, seed: int) -> bytes:
    """Return the content of the place-th file of a seed."""
    draw = random.Random(f"file {seed} {kind} {place}")
    content = good_files()[kind]
    if content[:2] == b"PK" and draw.random() < 0.7:
        return _with_member_changed(content, draw)
    if content[:2] == b"\x1f\x8b" and draw.random() < 0.7:
        return gzip.compress(_changed(gzip.decompress(content), draw))
    return _changed(content, draw)


def _changed(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 3, 8])):
        at, length = draw.randrange(len(changed) + 1), draw.choice([1, 1, 2, 4, 8, 64])
        way = draw.random()
        if way < 0.35 and at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        elif way < 0.45:
            del changed[at:]
        elif way < 0.6:
            del changed[at : at + length]
        elif way < 0.7:
            changed[at:at] = changed[at : at + length]
        elif way < 0.8:
            changed[at : at + length] = draw.randbytes(length)
        else:
            changed[at : at + draw.choice([0, 1, 4])] = draw.choice(SPECIALS)
    return bytes(changed)


ARRAYS = [
    np.array(["a", "b"]),
    np.array([b"a"]),
    np.array(["2020-01-01"], "M8[D]"),
    np.zeros(3, dtype=[("a", "i4")]),
    np.zeros(2, dtype=complex),
    np.array(2.5),
    np.array(-1),
    np.array(2**62),
    np.zeros(0),
    np.full((4, 2), np.nan),
    np.zeros((2, 0, 3)),
    np.array("x"),
    np.arange(30) % 2,
    np.array([["a"]], dtype=object),
]


def _with_member_changed(content: bytes, draw: random.Random) -> bytes:
    """Change a member of an archive, so that its sums are right and its content is not."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as after:
        names = before.namelist()
        chosen = draw.choice(names)
        for name in names:
            member = before.read(name)
            if name == chosen and draw.random() < 0.1:
                continue
            if name == chosen and draw.random() < 0.4:
                array = io.BytesIO()
                np.save(array, draw.choice(ARRAYS))
                member = array.getvalue()
            elif name == chosen:
                member = _changed(member, draw)
            after.writestr(draw.choice(names) if draw.random() < 0.02 else name, member)
    return stream.getvalue()
