"""Where a run of a test's federation waits: what happens to its sites then is between two iterations for certain."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

FOLDER = "UPCYCLED_TEST_GATES"


def hear(record):
    """Note who took part in a data round."""
    if record.kind == "data":
        with cohorts(Path(os.environ[FOLDER])).open("a") as file:
            file.write(json.dumps([record.iteration, record.clients.tolist()]) + "\n")


def cohorts(folder: Path) -> Path:
    return folder / "cohorts.jsonl"


def hold(record):
    """A callback: wait after an iteration whose gate is shut, and say that it is reached."""
    hear(record)
    gate = Gate(Path(os.environ[FOLDER]), record.iteration)
    if gate.shut.exists():
        gate.reached.touch()
        while gate.shut.exists():
            time.sleep(0.02)


def die_while_sending(record):
    """A callback, once: the run is killed within its next question, of which Flower's server has only the head."""
    hear(record)
    if not doom(Path(os.environ[FOLDER])).exists():
        return
    from flwr.superlink.grid import http_grid

    def die(*given, **named):
        doom(Path(os.environ[FOLDER])).unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    http_grid.push_objects = die


def doom(folder: Path) -> Path:
    """What is there until a run has died while it sent."""
    return folder / "dies"


@dataclass(frozen=True)
class Gate:
    """Holds a run after one of its iterations, until it is opened."""

    folder: Path
    iteration: int

    @property
    def shut(self) -> Path:
        return self.folder / f"{self.iteration}.shut"

    @property
    def reached(self) -> Path:
        return self.folder / f"{self.iteration}.reached"

    def open(self) -> None:
        self.reached.unlink(missing_ok=True)
        self.shut.unlink(missing_ok=True)


def shut(folder: Path, iteration: int) -> Gate:
    """Shut the gate after an iteration."""
    folder.mkdir(exist_ok=True)
    gate = Gate(folder, iteration)
    gate.shut.touch()
    return gate
