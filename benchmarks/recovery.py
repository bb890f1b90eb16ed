"""What a federation loses when something of it dies: seconds from the kill until the run goes on, and until all answer.

python -m benchmarks.recovery [node worker serverapp sending superlink slow]

Flower's server and four sites on this machine, as `upcycled federation up` has them; three of four are enough, and the
others are waited for during a grace of 8 s. What an operator would do (`run` or `up` again) is done at once, by the
same commands. Which data round was taken, and from how many sites, is read where a run writes it down.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.federation import SITES, WORKLOAD, federation_here
from benchmarks.measure import explain_if_asked, keep
from upcycled.config.experiment import parse
from upcycled.federation.folder import FederationFolder
from upcycled.federation.local import began_at, started, up

ROUNDS = {"enough": 0.75, "grace": 8.0}
WAIT = 150.0
DIES = "tests.federation.gates:die_while_sending"
"""Named, not imported: it kills its own process between the two halves of a question."""


@dataclass
class Watched:
    """A run in a process of its own, and what it has written down."""

    folder: FederationFolder
    name: str
    callbacks: tuple[str, ...] = ()

    def begin(self) -> None:
        """Start the command, the first time or again."""
        raw = {**WORKLOAD, "name": self.name, "iterations": 2000, "callbacks": list(self.callbacks)}
        (self.folder.path / "experiment.toml").write_text(tomli_w.dumps(raw))
        environment = os.environ | {"UPCYCLED_TEST_GATES": str(self.folder.private)}
        words = ["federation", "run", str(self.folder.path), "--quiet"]
        with (self.folder.private / f"{self.name}.log").open("ab") as log:
            command = [sys.executable, "-m", "upcycled", *words]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def taken(self) -> list[int]:
        """Return how many sites answered in each data round so far."""
        path = self.folder.path / "results" / self.name / "seed-0" / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        reasons = [json.loads(line)["reason"] for line in lines if not json.loads(line)["site"]]
        return [int(reason.split()[1]) for reason in reasons]

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait for something, and start the command again if it gave up on the way."""
        until = time.monotonic() + WAIT
        while not is_so():
            if self.process.poll() is not None:
                self.begin()
            if time.monotonic() > until:
                raise RuntimeError(f"{self.name}: {what} did not come within {WAIT:g} s")
            time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def watched(folder: FederationFolder, name: str, *callbacks: str) -> Iterator[Watched]:
    """Yield a run that is under way, and end it."""
    run = Watched(folder, name, callbacks)
    run.begin()
    try:
        yield run
    finally:
        run.kill()


def recovered(run: Watched, strike: Callable[[], None], mend: Callable[[], None] = lambda: None) -> dict[str, float]:
    """Strike, mend, and return how long it took until a data round was taken, and until one was from all sites."""
    run.wait(lambda: len(run.taken()) >= 2 and run.taken()[-1] == SITES, "the first data rounds")
    before, began = len(run.taken()), time.monotonic()
    strike()
    mend()
    # The round that was under way when it was struck may be whole already: the one after it counts.
    run.wait(lambda: len(run.taken()) > before + 1, "the next data rounds")
    goes_on = time.monotonic() - began
    run.wait(lambda: SITES in run.taken()[before + 1 :], "a data round of all sites")
    return {"seconds until the run goes on": goes_on, "seconds until all answer": time.monotonic() - began}


def worker_of(folder: FederationFolder, site: str) -> int:
    words = (folder.private / "trial" / site / "join.log").read_text()
    return int(re.findall(r"worker is process (\d+)", words)[-1])


def pid_of(folder: FederationFolder, name: str) -> int:
    return next(one.pid for one in reversed(started(folder)) if one.name == name)


def slay(*pids: int) -> None:
    """Kill processes, and return when they are gone."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    while any(began_at(pid) for pid in pids):
        time.sleep(0.01)


def up_again(folder: FederationFolder) -> None:
    up(folder, lambda words: None)


def node(folder: FederationFolder) -> dict[str, float]:
    """Both processes of a site die, and `up` brings it back."""
    with watched(folder, "node") as run:
        pids = pid_of(folder, "site-1"), worker_of(folder, "site-1")
        return recovered(run, lambda: slay(*pids), lambda: up_again(folder))


def worker(folder: FederationFolder) -> dict[str, float]:
    """The process with a site's data dies; the site starts another."""
    with watched(folder, "worker") as run:
        return recovered(run, lambda: slay(worker_of(folder, "site-2")))


def serverapp(folder: FederationFolder) -> dict[str, float]:
    """The command that runs the experiment dies, and is given again."""
    with watched(folder, "serverapp") as run:
        return recovered(run, run.kill, run.begin)


def sending(folder: FederationFolder) -> dict[str, float]:
    """It dies while it sends: every site has the head of a question and waits for the rest."""
    with watched(folder, "sending", DIES) as run:

        def strike() -> None:
            (folder.private / "dies").touch()
            run.process.wait()

        return recovered(run, strike, run.begin)


def superlink(folder: FederationFolder) -> dict[str, float]:
    """Flower's server dies, and `up` brings it back."""
    with watched(folder, "superlink") as run:
        return recovered(run, lambda: slay(pid_of(folder, "server")), lambda: up_again(folder))


def slow(folder: FederationFolder) -> dict[str, float]:
    """A site stands still; when the run has gone on without it, it goes on too, and answers late."""
    pid = worker_of(folder, "site-3")
    try:
        with watched(folder, "slow") as run:

            def mend() -> None:
                run.wait(lambda: run.taken()[-1] < SITES, "a data round without it")
                os.kill(pid, signal.SIGCONT)

            return recovered(run, lambda: os.kill(pid, signal.SIGSTOP), mend)
    finally:
        os.kill(pid, signal.SIGCONT)


KINDS: dict[str, Callable[[FederationFolder], dict[str, float]]] = {
    one.__name__: one for one in (node, worker, serverapp, sending, superlink, slow)
}


def main(names: list[str]) -> None:
    found: dict[str, Any] = {"sites": SITES, "rounds": ROUNDS}
    with (
        tempfile.TemporaryDirectory() as temporary,
        federation_here(Path(temporary) / "federation", parse({**WORKLOAD, "iterations": 2}), ROUNDS) as folder,
    ):
        for name in names or KINDS:
            found[name] = KINDS[name](folder)
            words = ", ".join(f"{seconds:.1f} {what}" for what, seconds in found[name].items())
            print(f"{name}: {words}", flush=True)
    keep("recovery", found)


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main(sys.argv[1:])
