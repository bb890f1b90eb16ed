"""Every write, flush and rename on the durable paths fails in turn: what was there is whole, and one sentence says why.

As SQLite's tests do: a run is carried out once to count the calls, then once more for each of them, failing there.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import shutil
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import upcycled as up
from tests.experiments.small import SMALL, small_file
from upcycled._utils.files import write_together
from upcycled.cli.main import main
from upcycled.core.errors import UpcycledError
from upcycled.privacy import Account, Ledger

DATA = up.data.synthetic("iid", clients=3, dim=2, sizes=8, seed=0)
NAMES = ("fsync", "replace", "rename", "open", "ftruncate", "chmod")


class Faults:
    """Counts calls of the system below a folder, and fails the one that is asked for."""

    def __init__(self, folder: Path, at: int | None, number: int) -> None:
        self.folder, self.at, self.number, self.calls = str(folder), at, number, 0

    def step(self, path: object) -> None:
        if not isinstance(path, int) and not str(os.fspath(path)).startswith(self.folder):
            return
        self.calls += 1
        if self.calls - 1 == self.at:
            raise OSError(self.number, os.strerror(self.number))


@contextmanager
def faults(monkeypatch, folder, at=None, number=errno.ENOSPC):
    """Have the at-th call fail while the block runs: opening to write, writing, flushing, renaming, cutting."""
    found = Faults(folder, at, number)
    with monkeypatch.context() as patch:
        for name in NAMES:
            real = getattr(os, name)

            def failing(path, *args, _real=real, **more):
                found.step(path)
                return _real(path, *args, **more)

            patch.setattr(os, name, failing)
        real_open = io.open

        def opened(file, mode="r", *args, **more):
            stream = real_open(file, mode, *args, **more)
            is_ours = not isinstance(file, int) and str(os.fspath(file)).startswith(found.folder)
            return (
                HalfWritten(stream, partial(found.step, found.folder))
                if is_ours and set(mode) & set("wa+x")
                else stream
            )

        patch.setattr(builtins, "open", opened)
        patch.setattr(io, "open", opened)
        yield found


class HalfWritten:
    """A stream that calls ``step`` before every write; if that raises, half of the content is written."""

    def __init__(self, stream, step):
        self._stream, self._step = stream, step

    def write(self, content):
        try:
            self._step()
        except BaseException:
            self._stream.write(content[: len(content) // 2])
            self._stream.flush()
            raise
        return self._stream.write(content)

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def __enter__(self):
        self._stream.__enter__()
        return self

    def __exit__(self, *error):
        return self._stream.__exit__(*error)


def refusal(work):
    """Return the sentence that ends some work, or None where it went to its end; other errors are none that may be."""
    try:
        work()
    except UpcycledError as error:
        return str(error)
    return None


def count(monkeypatch, folder, work):
    with faults(monkeypatch, folder) as found:
        work()
    assert found.calls > 0
    return found.calls


def test_files_that_are_written_together_are_each_whole_whatever_fails(tmp_path, monkeypatch):
    before = {"a": b"old a", "b": b"old b"}
    after = {"a": b"new, longer a", "b": b"new, longer b"}
    calls = count(monkeypatch, tmp_path, lambda: write_together(tmp_path, before))
    for at in range(calls):
        write_together(tmp_path, before)
        with faults(monkeypatch, tmp_path, at):
            words = refusal(lambda: write_together(tmp_path, after))
        assert words is None or "cannot be written (No space left on device)" in words
        found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert set(found) == {"a", "b"}, "nothing half-written is left"
        assert all(found[name] in (before[name], after[name]) for name in found)


def trained(folder, noise="seeded", noise_std=0.5, **more):
    return up.train(
        DATA,
        algorithm=up.FedAvg(),
        upcycle=0.5,
        iterations=4,
        progress=False,
        privacy=up.privacy.UpdateClipping(1.0, noise_std=noise_std),
        checkpoint=folder,
        checkpoint_every=1,
        noise=noise,
        engine="sequential",
        **more,
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_private_run_whose_disk_fails_once_goes_on_to_the_same_bits_and_charges_nothing_twice(
    tmp_path, monkeypatch, number
):
    whole = trained(tmp_path / "whole")
    folder = tmp_path / "run"
    calls = count(monkeypatch, folder, lambda: trained(folder))
    failed = 0
    for at in range(calls):
        shutil.rmtree(folder)
        with faults(monkeypatch, folder, at, number):
            words = refusal(lambda: trained(folder))
        assert words is None or "\n" not in words
        failed += words is not None
        result = trained(folder)
        np.testing.assert_array_equal(result.params.numpy(), whole.params.numpy())
        ledger = Ledger.read(folder / "ledger.jsonl")
        assert ledger.epsilon(1e-5).tolist() == whole.privacy.epsilon(1e-5).tolist()
    assert failed > calls // 2


def test_a_model_that_could_not_be_saved_leaves_the_one_that_was(tmp_path, monkeypatch):
    first, second = (up.train(DATA, algorithm=up.FedAvg(), iterations=n, progress=False) for n in (1, 3))
    folder = tmp_path / "model"
    known = []
    for one in (second, first):
        one.save(folder)
        known.append(up.load(folder).predict_proba(DATA.train.x[:1]))
    calls = count(monkeypatch, folder, lambda: first.save(folder))
    for at in range(calls):
        shutil.rmtree(folder)
        first.save(folder)
        with faults(monkeypatch, folder, at):
            words = refusal(lambda: second.save(folder))
        assert words is None or "cannot be written" in words
        found = up.load(folder).predict_proba(DATA.train.x[:1])
        assert any(np.array_equal(found, own) for own in known), f"call {at} of {calls}"


@pytest.mark.slow
def test_an_account_whose_disk_fails_has_charged_all_that_left_or_more(tmp_path, monkeypatch):
    place = tmp_path / "account"

    def study(run):
        shutil.rmtree(run, ignore_errors=True)
        return trained(run, noise="system", noise_std=20.0, account=place)

    Account.open(place, epsilon=4.0, delta=1e-5, kind="gaussian")
    kept = {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}
    calls = count(monkeypatch, place, lambda: study(tmp_path / "run"))
    for at in range(calls):
        for path in place.iterdir():
            if path.is_file():
                path.unlink()
        for name, content in kept.items():
            (place / name).write_bytes(content)
        with faults(monkeypatch, place, at):
            words = refusal(lambda: study(tmp_path / "run"))
        assert words is None or "\n" not in words
        ledger = tmp_path / "run" / "ledger.jsonl"
        left = Ledger.read(ledger).epsilon(1e-5).max() if ledger.exists() else 0.0
        account = Account.read(place)
        assert max((account.epsilon(client) for client in account.clients), default=0.0) >= left - 1e-9


HELD = {"config.toml", "metrics.jsonl", "clients.jsonl", "model.json", "model.safetensors", "summary.json"}


def results_of(folder):
    """Return what a results folder's files say, whole as they must be, without what follows from clocks and chance."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or "checkpoint/" in name or path.name.startswith("."):
            continue
        if path.suffix == ".json":
            found[name] = _timeless(json.loads(path.read_text()))
        elif path.suffix == ".jsonl" and "ledger" not in path.name:
            found[name] = [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.suffix in (".toml", ".safetensors"):
            found[name] = path.read_bytes()
    return found


def _timeless(document):
    return {key: value for key, value in document.items() if "seconds" not in key and key != "privacy"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_seeds_results_are_whole_or_not_there_whatever_write_fails_and_the_command_then_finishes_them(
    tmp_path, monkeypatch, capsys, number
):
    """Every call of the system below the results folder fails once, of two seeds with a ledger and checkpoints."""
    monkeypatch.chdir(tmp_path)
    private = '[privacy]\nmechanism = "update_clipping"\nclip_norm = 1.0\nnoise_std = 0.5\n'
    small_file(tmp_path, ('name = "small"', 'name = "small"\nengine = "sequential"'), text=f"{SMALL}{private}")
    command = ["run", "small.toml", "--quiet", "checkpoint_every=1"]
    folder = tmp_path / "results"
    calls = count(monkeypatch, folder, lambda: main(command))
    whole = results_of(folder)
    assert {Path(name).name for name in whole} >= HELD
    failed = 0
    for at in range(calls):
        shutil.rmtree(folder)
        with faults(monkeypatch, folder, at, number):
            code = main(command)
        err = capsys.readouterr().err
        assert code in (0, 1), f"call {at} of {calls}: {err}"
        assert "Traceback" not in err
        failed += code
        if code:
            assert err.splitlines()[-1].startswith("error: "), f"call {at} of {calls}: {err}"
        for name, content in results_of(folder).items():
            assert content == whole[name], f"{name} after call {at} of {calls}"
        # What is said to be finished is.
        for summary in folder.rglob("summary.json"):
            assert {path.name for path in summary.parent.iterdir()} >= HELD
        assert main(command) == 0, capsys.readouterr().err
        assert results_of(folder) == whole, f"after call {at} of {calls}"
        assert not list(folder.rglob("*.tmp")), f"after call {at} of {calls}"
    assert failed > calls // 3
