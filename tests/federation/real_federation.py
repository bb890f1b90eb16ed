"""A real federation for tests: Flower's server and a process for each site, on loopback, ended whatever happens."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import tomli_w
import torch
from safetensors.numpy import load_file

from tests.federation.gates import FOLDER
from upcycled._utils.files import make_private, write_whole
from upcycled.config.experiment import parse
from upcycled.federation.folder import make_folder, open_folder
from upcycled.federation.local import began_at, down, started, trial_policy, up
from upcycled.federation.site.site import replies_of
from upcycled.run_folder import FEDERATION
from upcycled.training.plan import make_plan
from upcycled.training.round import answer, ask, joined, take
from upcycled.training.state import start_run

SITES = 4
WAIT = 300.0
"""Seconds that anything may take at most, on a machine that has much else to do."""
RAW = {
    "name": "real",
    "iterations": 6,
    "seeds": [3],
    "engine": "sequential",
    "data": {"source": "synthetic", "alpha": 0.5, "beta": 0.5, "clients": SITES, "sizes": [40, 50, 60, 45]}
    | {"test_fraction": 0.0},
    "algorithm": {"name": "fedavg"},
    "upcycle": {"kind": "constant", "coefficient": 0.5},
    "local": {"lr": 0.05, "epochs": 2, "batch_size": 8},
}


def experiment_of(folder, name, **changes):
    raw = RAW | {"name": name, "results": str(folder.path / "results")} | changes
    return parse({key: value for key, value in raw.items() if value is not None})


def free_port():
    """A port that nobody listens at: below those that the system gives to connections, another for each process."""
    for k in range(100):
        port = 20000 + (os.getpid() + 5000 * k) % 12000
        with socket.socket() as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                door.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


@contextmanager
def federation(path: Path, rounds: dict | None = None, limits: dict | None = None, account: dict | None = None):
    """Yield the folder of a federation that is up."""
    folder = make_folder(parse(RAW), path, [f"site-{i}" for i in range(SITES)], "127.0.0.1", free_port(), "127.0.0.1")
    file = path / "federation.toml"
    text = file.read_text().split("[rounds]")
    kept = [line for line in text[1].splitlines() if line.split(" =")[0] not in (rounds or {})]
    last = [f"{name} = {value}" for name, value in (rounds or {}).items()]
    file.write_text(text[0] + "[rounds]" + "\n".join([*kept, *last]) + "\n")
    folder = open_folder(path)
    for number, site in enumerate(folder.file.sites):
        home = folder.private / "trial" / site
        make_private(home)
        policy = trial_policy(folder.experiment(), folder, site, number)
        policy["privacy"] |= limits or {}
        policy["account"] |= account or {}
        write_whole(home / "policy.toml", tomli_w.dumps(policy).encode(), private=True)
    before = time.monotonic()
    try:
        up(folder, lambda words: None)
        folder.private.joinpath("up-seconds").write_text(f"{time.monotonic() - before:.1f}")
        yield folder
    finally:
        end_commands()
        pids = {one.pid: one.began for one in started(folder)} | workers(folder)
        down(folder)
        until(lambda: not any(began_at(pid) == began for pid, began in pids.items()), 10, "an orphan is left")
        with socket.socket() as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind(("127.0.0.1", folder.file.port))


def workers(folder):
    """All workers that sites ever named, and when each began; those that are gone began never."""
    found = {}
    for log in folder.private.glob("trial/*/join.log"):
        for pid in re.findall(r"worker is process (\d+)", log.read_text()):
            found[int(pid)] = began_at(int(pid)) or "gone"
    return found


def worker_of(folder, site):
    """The number of a site's worker by now."""
    words = (folder.private / "trial" / site / "join.log").read_text()
    return int(re.findall(r"worker is process (\d+)", words)[-1])


def process_of(folder, name):
    return next(one for one in reversed(started(folder)) if one.name == name)


def until(is_so, seconds, words):
    """Wait for a condition, and fail in words when it does not come."""
    end = time.monotonic() + seconds
    while not (found := is_so()):
        if time.monotonic() > end:
            raise AssertionError(words() if callable(words) else words)
        time.sleep(0.05)
    return found


def replayed(folder, experiment, cohorts):
    """What a run must have become, if these clients answered in its data rounds: by the simulator's own functions.

    At which attempt a round was taken is in the server's log.
    """
    taken = {event["round"]: event["attempt"] for event in events_of(folder, experiment) if not event["site"]}
    (seed,) = experiment.seeds
    plan = make_plan(experiment.build_data(), experiment.spec(seed).replace(progress=False))
    engine, run = plan.engine.open(plan.task, 1), start_run(plan)
    rounds = iter(cohorts)
    while run.state.iteration < plan.iterations:
        if plan.strategy.kind(run.state) != "data":
            run = replace(run, state=plan.strategy.upcycle(run.state, plan.data_rounds))
            continue
        run = replace(run, state=replace(run.state, attempt=taken[run.state.data_rounds + 1]))
        asked, who = ask(plan, run), next(rounds)
        noise = run.noise_for(plan, asked.round, asked.attempt)
        some = joined(asked, [answer(plan, engine, asked.of(client), noise) for client in who])
        run, _ = take(plan, run, asked, some, noise)
    return torch.from_numpy(run.state.server.model)


def params_of(folder, experiment):
    """The final model of a results folder, as one flat vector."""
    (seed,) = experiment.seeds
    found = load_file(folder.path / "results" / experiment.name / f"seed-{seed}" / "model.safetensors")
    plan = make_plan(experiment.build_data(), experiment.spec(seed).replace(progress=False))
    return torch.from_numpy(np.concatenate([found[name].reshape(-1) for name in plan.layout.names]))


def history_of(folder, experiment):
    place = folder.path / "results" / experiment.name / f"seed-{experiment.seeds[0]}" / "metrics.jsonl"
    return [json.loads(line) for line in place.read_text().splitlines()]


def events_of(folder, experiment):
    seed = folder.path / "results" / experiment.name / f"seed-{experiment.seeds[0]}"
    found = [path for path in (seed / "events.jsonl", seed / "private" / "events.jsonl") if path.exists()]
    return [json.loads(line) for path in found for line in path.read_text().splitlines()]


def checkpointed(folder, experiment):
    """The iteration of the newest checkpoint; 0 before the first."""
    seed = folder.path / "results" / experiment.name / f"seed-{experiment.seeds[0]}"
    files = [*seed.glob("checkpoint/*.safetensors"), *seed.glob("private/checkpoint/*.safetensors")]
    numbers = [int(re.findall(r"\d+", path.name)[0]) for path in files]
    return max(numbers, default=0)


COMMANDS = []


class Command:
    """`upcycled federation run`, or another command, in a process of its own, ended with its federation."""

    def __init__(self, folder, *words):
        # What a command runs is looked up among the tests too: a run may wait at their gates.
        paths = [str(Path(__file__).parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        environment |= {FOLDER: str(folder.private / "gates")}
        self.log = folder.private / "command.log"
        command = [sys.executable, "-m", "upcycled", "federation", *words]
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        COMMANDS.append(self)

    def kill(self):
        """Kill it at once, whatever it does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def end(self, seconds=WAIT):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end: {self.log.read_text()[-2000:]}") from None
        assert code == 0, self.log.read_text()[-2000:]


def end_commands():
    while COMMANDS:
        COMMANDS.pop().kill()


def reply_of(folder, experiment, site, number):
    """Where a site keeps its reply to a data round of a run: when it is there, everybody has been asked."""
    seed = folder.path / "results" / experiment.name / f"seed-{experiment.seeds[0]}"
    (about,) = [path for path in (seed / FEDERATION, seed / "private" / FEDERATION) if path.exists()]
    home = folder.private / "trial" / site
    run = json.loads(about.read_text())["run"]
    is_real = experiment.spec(experiment.seeds[0]).has_real_noise
    place = home / f"account-{site}" if is_real else home / "site" / site
    return sorted(replies_of(place, run, site).folder.glob(f"round-{number:06d}-*.reply"))


def run_command(folder, experiment):
    """Write the experiment into the folder and start the command that runs it."""
    write_whole(folder.path / "experiment.toml", experiment.resolved_toml().encode())
    return Command(folder, "run", str(folder.path), "--quiet")
