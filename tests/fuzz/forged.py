"""Folders of the package's own files, forged: each is still of its format, and a value in it is not what was written.

Hashes in names, chains of lines and lengths are made right again, so that a reader must look at the values themselves.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import hashlib
import io
import json
import random
import shutil
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

import upcycled as up
from tests.fuzz.files import SPECIALS
from tests.privacy.runs import chained
from upcycled.cli.exit import UNFORESEEN
from upcycled.cli.main import main

VALUES = [
    *(None, True, -1, 0, 1, 2, 10**30, 0.5, -0.5, float("inf"), float("nan"), "", "x", "\ud800", "a\nb", [], {}),
    *([None], [[]], {"": 0}, {"x": []}, "0" * 64, [1, 2], "data", "1e999"),
]


def _data() -> up.FederatedData:
    return up.data.synthetic(0.5, 0.5, clients=3, dim=2, sizes=8, seed=0).with_validation(0.3)


class _Stop:
    def record(self, record: Any, run: Any) -> Any:
        return up.STOP if record.iteration == 3 else None


def _spec(**changes: Any) -> up.RunSpec:
    chosen: dict[str, Any] = {
        "algorithm": up.FedDyn(alpha=0.5),
        "upcycle": up.coefficients.Signal(),
        "aggregation": "precision",
        "iterations": 6,
        "privacy": up.privacy.ErmOutput(1.0, noise_std=0.1),
        "metrics": ["auroc"],
        "keep_best": "loss",
        "progress": False,
        "engine": "sequential",
    }
    return up.RunSpec(**(chosen | changes))


EXPERIMENT = """\
name = "small"
iterations = 2
[data]
source = "synthetic"
alpha = "iid"
clients = 2
dim = 2
sizes = 20
[algorithm]
name = "fedavg"
[privacy]
mechanism = "update_clipping"
clip_norm = 1.0
noise_std = 5.0
noise = "system"
"""


@cache
def good(kind: str) -> Path:
    """Return a folder with good files of a kind."""
    folder = Path(mkdtemp(prefix="forged-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if kind in ("checkpoint", "tensors"):
        up.train(_data(), _spec(checkpoint=folder / "kept", callbacks=[_Stop()]))
        newest = max(path.name for path in (folder / "kept").glob("iteration-*"))
        for path in (folder / "kept").glob("iteration-*"):
            if path.name != newest:
                path.unlink()
    elif kind in ("account", "account data"):
        account = up.privacy.Account.open(folder / "account", kind="gaussian", epsilon=4.0, delta=1e-5)
        data = up.FederatedData.from_arrays(
            [np.eye(2, dtype=np.float32).repeat(4, 0)] * 2, [np.arange(8) % 2] * 2, num_classes=2
        )
        privacy = up.privacy.UpdateClipping(1.0, noise_std=9.0)
        for seed in range(2):
            up.train(
                data,
                algorithm=up.FedAvg(),
                iterations=2,
                privacy=privacy,
                noise="system",
                account=account.folder,
                ledger=folder / f"ledger-{seed}.jsonl",
                seed=seed,
                progress=False,
            )
    elif kind in ("model", "personal"):
        up.train(_data(), algorithm=up.PFedMe(), iterations=2, progress=False).save(folder / "model")
    elif kind == "ledger":
        up.train(_data(), _spec(ledger=folder / "ledger.jsonl", keep_best=None, metrics=None))
    else:
        (folder / "small.toml").write_text(EXPERIMENT)
        (folder / "public.toml").write_text(
            EXPERIMENT.replace('"small"', '"public"').replace("sizes = 20", "sizes = 20\npublic = true")
        )
        for name in ("small", "public"):
            with _quietly(folder):
                assert main(["run", str(folder / f"{name}.toml"), f"results={folder / 'results'}", "--quiet"]) == 0
    return folder


@contextlib.contextmanager
def _quietly(folder: Path) -> Any:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), contextlib.chdir(folder):
        yield


RESULTS = ["summary.json", "metrics.jsonl", "clients.jsonl", "evaluation.json", "config.toml", "model.json"]
OWN = ["scores.jsonl", "notes.jsonl", "data.json", "evaluation.json", "clients.jsonl"]


def forge(kind: str, place: int, seed: int, folder: Path) -> None:
    """Write the place-th forged folder of a seed."""
    draw = random.Random(f"forged {seed} {kind} {place}")
    shutil.copytree(good(kind), folder, dirs_exist_ok=True)
    if kind in ("checkpoint", "tensors"):
        (path,) = (folder / "kept").glob("iteration-*")
        content = _forged_tensors(path.read_bytes(), draw, "upcycled", kind == "checkpoint")
        path.unlink()
        called = f"iteration-000003-{hashlib.sha256(content).hexdigest()[:32]}.safetensors"
        (folder / "kept" / called).write_bytes(content)
    elif kind == "account":
        _change(folder / "account" / "account.jsonl", draw, is_chained=True)
    elif kind == "account data":
        _change(folder / "account" / "data.jsonl", draw)
    elif kind == "ledger":
        _change(folder / "ledger.jsonl", draw, is_chained=True)
    elif kind == "model":
        _change(folder / "model" / "model.json", draw)
    elif kind == "personal":
        path = folder / "model" / "personal.safetensors"
        path.write_bytes(_forged_tensors(path.read_bytes(), draw, "upcycled", draw.random() < 0.7))
    elif kind == "results":
        seeds = folder / "results" / draw.choice(["small", "public"]) / "seed-0"
        paths = [seeds / name for name in RESULTS] + [seeds / "private" / name for name in OWN]
        _change(draw.choice([path for path in paths if path.exists()]), draw)


def _change(path: Path, draw: random.Random, is_chained: bool = False) -> None:
    content = path.read_bytes()
    if draw.random() < 0.2 or path.suffix == ".toml":
        path.write_bytes(_damaged(content, draw))
    elif path.suffix == ".jsonl":
        lines = [json.loads(line) for line in content.splitlines()]
        if draw.random() < 0.15 or not lines:
            lines.insert(draw.randrange(len(lines) + 1), copy.deepcopy(draw.choice([*VALUES, *lines])))
        else:
            at = draw.randrange(len(lines))
            lines[at] = _forged(lines[at], draw)
        if is_chained and all(isinstance(line, dict) for line in lines):
            path.write_text(chained(lines), encoding="utf-8", errors="surrogatepass")
        else:
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        path.write_text(json.dumps(_forged(json.loads(content), draw)))


def _damaged(content: bytes, draw: random.Random) -> bytes:
    """Return bytes that are cut, not UTF-8, empty, nested too deep, or with another text in them."""
    at = draw.randrange(len(content) + 1)
    inserted = draw.choice([*SPECIALS, b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"\xed\xa0\x80"])
    return draw.choice([content[:at], content[:at] + inserted + content[at:], inserted, content + content])


def _forged(document: Any, draw: random.Random) -> Any:
    """Return a document with a value changed, left out or added, somewhere in it."""
    if not isinstance(document, dict | list) or not document or draw.random() < 0.1:
        return draw.choice(VALUES)
    found = copy.copy(document)
    key = draw.choice(list(found)) if isinstance(found, dict) else draw.randrange(len(found))
    way = draw.random()
    if way < 0.12:
        del found[key]
    elif way < 0.2 and isinstance(found, dict):
        found[draw.choice(["x", "", "format", "kind", "array"])] = draw.choice(VALUES)
    elif way < 0.25 and isinstance(found, list):
        found.append(draw.choice(VALUES))
    else:
        found[key] = _forged(found[key], draw)
    return found


def _forged_tensors(content: bytes, draw: random.Random, name: str, is_header: bool) -> bytes:
    """Return a safetensors file with another header of its own, or with another tensor."""
    from safetensors.numpy import load, save

    length = int.from_bytes(content[:8], "little")
    outer = json.loads(content[8 : 8 + length])
    held = outer["__metadata__"]
    if is_header and draw.random() < 0.1:
        outer["__metadata__"] = draw.choice([{}, {name: "x"}, {name: ""}, {name: "[]"}, {name: "null"}, {"x": "{}"}])
    elif is_header:
        held[name] = json.dumps(_forged(json.loads(held[name]), draw))
    if is_header:
        text = json.dumps(outer).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + length :]
    tensors = {key: array.copy() for key, array in load(content).items()}
    key = draw.choice(sorted(tensors))
    array = tensors.pop(key)
    others = [
        *(array[:-1] if array.ndim else array.reshape(1), array.reshape(-1, 1), array.astype(np.float64)),
        *(array.astype(np.int64), np.zeros_like(array), array[None], np.full(array.shape, -1, np.int64)),
        *(np.full(array.shape, np.nan, np.float32), np.full(array.shape, 2**40, np.int64), None),
    ]
    other = draw.choice(others)
    return save(tensors | ({} if other is None else {key: np.ascontiguousarray(other)}), {name: held[name]})


def _read_account(folder: Path) -> None:
    account = up.privacy.Account(folder / "account")
    for client in account.clients:
        account.epsilon(client), account.share(client), account.rounds(client)
    str(account), account.head, account.times_changed
    _command(folder, "privacy", "account", "show", "account", "--clients")


def _read_personal(folder: Path) -> None:
    model = up.load(folder / "model")
    for client in (0, "client 1", "nobody"):
        with contextlib.suppress(up.InputError):
            model.personal(client).predict([[0.5, 1.0]])


def _command(folder: Path, *words: str) -> int:
    """Run a command and return its exit code; an error that it has no sentence for is raised here."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors), contextlib.chdir(folder):
        code = main([*words])
    if code == UNFORESEEN:
        raise AssertionError(f"{words[:2]}: {errors.getvalue()[-200:]}")
    return code


def _read_results(folder: Path) -> list[int]:
    np.savez(folder / "new.npz", x=np.array([[0.5, 1.0]], np.float32))
    again = f"results={folder / 'results'}"
    commands = (
        "report results",
        "compare results/public results/public",
        "privacy own results --scores",
        "privacy ledger results/small/seed-0",
        "privacy evidence results/small -o evidence",
        "privacy evidence results/public/seed-0 -o other",
        "predict results/public new.npz",
        f"run small.toml {again} --quiet",
        f"run public.toml {again} --quiet",
    )
    return [_command(folder, *words.split()) for words in commands]


READERS: dict[str, Callable[[Path], object]] = {
    "checkpoint": lambda folder: up.train(_data(), _spec(checkpoint=folder / "kept")),
    "tensors": lambda folder: up.train(_data(), _spec(checkpoint=folder / "kept")),
    "account": _read_account,
    "account data": _read_account,
    "ledger": lambda folder: [str(up.privacy.Ledger.read(folder / "ledger.jsonl").statement(1e-5)), None],
    "model": lambda folder: up.load(folder / "model").predict([[0.5, 1.0]]),
    "personal": _read_personal,
    "results": _read_results,
}
