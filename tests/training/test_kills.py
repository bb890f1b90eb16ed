"""Runs killed by SIGKILL at random moments, and inside their writes: what is resumed ends in the same bits."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from tests.training.kill_cases import PLAIN, PRIVATE
from tests.wording import has_all
from upcycled._utils.lock import locked
from upcycled.training.checkpoint.files import read_newest
from upcycled.training.checkpoint.snapshot import from_bytes

ROOT = Path(__file__).parents[2]
CALLS = ("fsync", "replace", "unlink", "checkpoint write", "ledger write")
SECONDS = 0.3
"""About what a case takes on an idle machine; on a busy one more kills hit."""


class Server:
    """The process that forks, runs and kills."""

    def __init__(self, folder):
        self._folder = folder
        self._references = {}
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        command = [sys.executable, "-m", "tests.training.kill_server"]
        self._errors = (folder / "errors").open("w+")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors, "text": True}
        self._process = subprocess.Popen(command, cwd=ROOT, env=os.environ | one, **pipes)

    def ask(self, case, **request):
        """Return how the run ended, and its result or its error's sentence."""
        out = self._folder / "out"
        out.unlink(missing_ok=True)
        self._errors.truncate(0)
        self._process.stdin.write(json.dumps({"case": case, "out": str(out)} | request) + "\n")
        self._process.stdin.flush()
        status = json.loads(self._process.stdout.readline())["status"]
        return status, out.read_text() if out.exists() else ""

    def told(self):
        """Return the lines on standard error of the last run."""
        return (self._folder / "errors").read_text().strip("\0\n").splitlines()

    def reference(self, case):
        """Return what the run gives that nobody keeps and nobody kills."""
        if case not in self._references:
            status, self._references[case] = self.ask(case)
            assert status == "done"
        return self._references[case]

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("kills"))
    yield running
    running.close()


def charged(folder):
    """Return the whole lines of a ledger's charges."""
    path = folder / "ledger.jsonl"
    content = path.read_bytes() if path.exists() else b""
    lines = [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()[1:]]
    return [
        {name: line[name] for name in line if name not in ("chain", "first")}
        for line in lines
        if line["kind"] == "data"
    ]


def released(folder):
    """Return a hash of every release that reached the server, in every life of the run."""
    path = folder.with_suffix(".released")
    return path.read_text().split() if path.exists() else []


def check_ledger(folder):
    """No ledger holds less than was released: here the same release is the same bits."""
    assert len(charged(folder)) >= len(set(released(folder)))
    newest = read_newest(folder, tell=pytest.fail)
    if newest is not None:
        assert len(charged(folder)) >= from_bytes(newest[1]).state.data_rounds


def draw_kill(rng):
    if rng.random() < 0.5:
        return {"after": rng.uniform(0, SECONDS)}
    return {"call": rng.choice(CALLS), "count": rng.randint(1, 12)}


def suffer(server, folder, case, kills, draw=draw_kill, seed=0, every=(1, 3, "0.01s")):
    """Kill a run until it was hit so often, let it end, and compare; a run that ended too soon is run again."""
    rng, hits = random.Random(f"{case} {seed}"), 0
    for life in count():
        kept = folder / f"life-{life}"
        often = rng.choice(every)
        while True:
            kill = draw(rng) if hits < kills else None
            status, found = server.ask(case, folder=str(kept), every=often, kill=kill)
            if status != "killed":
                break
            hits += 1
            if case in PRIVATE:
                check_ledger(kept)
        assert (status, found) == ("done", server.reference(case))
        assert not [path for path in kept.iterdir() if path.name.endswith(".tmp")]
        if hits >= kills:
            return


QUICK = ("scaffold-fused-vanilla", "erm")
SOME = ("scaffold-fused-vanilla", "pfedme-vectorised-upcycled", "fedyogi-sequential-vanilla", "erm", "objective")


@pytest.mark.parametrize(
    "case", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in (*SOME, "clipping")]
)
def test_a_killed_run_ends_in_the_same_bits(server, tmp_path, case):
    suffer(server, tmp_path, case, kills=1)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*PLAIN, *PRIVATE])
def test_fifty_kills_over_algorithms_engines_and_private_runs(server, tmp_path, case):
    assert 2 * len([*PLAIN, *PRIVATE]) >= 50
    suffer(server, tmp_path, case, kills=2, seed=1)


@pytest.mark.parametrize(
    "call", [pytest.param(call, marks=pytest.mark.slow if i else ()) for i, call in enumerate(CALLS)]
)
def test_a_kill_inside_a_write_leaves_what_was_there_before(server, tmp_path, call):
    places = iter([1, 2, 5, 8])
    suffer(server, tmp_path, "erm", 4, draw=lambda rng: {"call": call, "count": next(places)}, every=[1])


@pytest.mark.slow
def test_a_client_that_ran_out_of_budget_stays_out_after_a_kill(server, tmp_path):
    ledger = json.loads(server.reference("erm-budget"))["ledger"]
    assert {"left out", "data"} <= {line["kind"] for line in ledger}
    # Each life gets one round further, and dies when the next is charged but not kept: five rounds are replayed.
    suffer(server, tmp_path, "erm-budget", 5, draw=lambda rng: {"call": "replace", "count": 2}, every=[1])


def test_with_real_noise_a_repeated_round_is_a_new_release_and_a_new_charge(server, tmp_path):
    folder, hits = tmp_path / "kept", 0
    # Within the ledger's first line, when the run's keys are there; before the first checkpoint, within one, after its
    # rename, and within a charge.
    kills = [("ledger write", 1)]
    kills += [("replace", 1), ("checkpoint write", 4), ("unlink", 5), ("ledger write", 7), ("fsync", 20)]
    for call, place in kills:
        status, _ = server.ask("system", folder=str(folder), kill={"call": call, "count": place})
        hits += status == "killed"
        assert len(charged(folder)) >= len(released(folder))
    assert hits == len(kills)
    status, found = server.ask("system", folder=str(folder))
    assert status == "done"
    result = json.loads(found)
    assert len(set(released(folder))) == len(released(folder)), "noise was used again"
    lines = [line for line in result["ledger"] if line["kind"] == "data"]
    assert lines == charged(folder)
    rounds = [line["round"] for line in lines]
    assert set(rounds) == set(range(1, 31))
    assert len(rounds) > 30
    assert result["rounds"] == [len(rounds)] * 4
    # Two kills came between a release and its checkpoint; the last between a charge and its release.
    assert len(rounds) > len(released(folder)) >= 30 + 2
    assert result["epsilon"] > json.loads(server.reference("system"))["epsilon"]
    runs = [line for line in (folder / "ledger.jsonl").read_text().splitlines() if '"kind":"run"' in line]
    assert len(runs) == 1


def test_a_truncated_or_flipped_newest_checkpoint_is_passed_over(server, tmp_path):
    reference = server.reference("scaffold-fused-vanilla")
    folder = tmp_path / "kept"
    server.ask("scaffold-fused-vanilla", folder=str(folder), kill={"call": "replace", "count": 20})
    rng = np.random.default_rng(0)
    for trial in range(4):
        copy = tmp_path / f"copy-{trial}"
        shutil.copytree(folder, copy)
        newest = max(copy.glob("iteration-*"))
        content = bytearray(newest.read_bytes())
        place = int(rng.integers(len(content)))
        content[place] ^= 1 << int(rng.integers(8))
        newest.write_bytes(bytes(content) if trial % 2 else bytes(content[:place]))
        assert server.ask("scaffold-fused-vanilla", folder=str(copy)) == ("done", reference)
        assert server.told() == [
            f"checkpoint {newest} is damaged (its content is not what its name says) and is passed over"
        ]


def test_a_full_disk_stops_the_run_in_one_sentence_and_leaves_the_last_checkpoint_whole(server, tmp_path):
    folder = tmp_path / "kept"
    server.ask("fedavg-fused-upcycled", folder=str(folder), kill={"call": "replace", "count": 20})
    whole = max(folder.glob("iteration-*"))
    limit = whole.stat().st_size + 400  # a checkpoint grows with its history: some more fit, then none
    status, sentence = server.ask("fedavg-fused-upcycled", folder=str(folder), limit=limit)
    assert status == "failed"
    assert sentence.startswith(f"WriteError: {folder}/iteration-")
    assert "(File too large)" in sentence
    after = sorted(folder.iterdir())
    assert len([path for path in after if path.name.startswith("iteration-")]) == 2
    assert not [path for path in after if path.name.endswith(".tmp")]
    newest = read_newest(folder, tell=pytest.fail)
    assert from_bytes(newest[1]).state.iteration > int(whole.name[10:16])
    found = server.ask("fedavg-fused-upcycled", folder=str(folder))
    assert found == ("done", server.reference("fedavg-fused-upcycled"))


def test_a_second_process_is_told_who_is_there_and_stops(server, tmp_path):
    folder = tmp_path / "kept"
    with locked(folder):
        status, sentence = server.ask("fedavg-fused-upcycled", folder=str(folder))
    assert status == "failed"
    assert has_all(sentence, f"InUseError: {folder}", f"process {os.getpid()}", "20")
    assert "done, stop" in sentence
    assert [path.name for path in folder.iterdir()] == [".lock"]
    assert server.ask("fedavg-fused-upcycled", folder=str(folder))[0] == "done"
