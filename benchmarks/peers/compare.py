"""W1: our fused engine against the peers that pip installs, each in an environment of its own.

python -m benchmarks.peers.compare [flower pfl-research]

Ours is whole runs of ``up.train`` (set-up, 80 rounds, noise, scores of every round), warm. A peer is measured inside
its simulation, without imports and start: the median of its rounds after the first, times 80. Ours is repeated before
and after every peer, so that other work on the machine meets both; "least" sets the peer's fastest round against our
fastest run, which such work disturbs less.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import upcycled as up
from benchmarks.measure import keep
from benchmarks.peers import w1 as settings
from benchmarks.workloads import w1

ROOT = Path(__file__).parents[2]
VENVS = Path(__file__).parent / ".venvs"
REPEATS = 5
INSTALL_SECONDS, RUN_SECONDS = 1800, 900


@dataclass(frozen=True)
class Peer:
    name: str
    requirements: tuple[str, ...]
    module: str
    # Every list is a way to run it; the fastest counts.
    ways: tuple[tuple[str, ...], ...] = ((),)


PEERS = (
    Peer("flower", ("flwr[simulation]==1.41.0", "ray==2.55.1"), "benchmarks.peers.flower"),
    Peer("pfl-research", ("pfl[pytorch]==0.6.*",), "benchmarks.peers.pfl_research", (("1",), ("2",))),
)


class Failed(Exception):
    """A peer that could not be installed or run, and why."""


def call(command: list[str], seconds: float) -> str:
    """Run a command in a session of its own; return what it printed, or say how it failed."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"UPCYCLED_DATA": str(settings.FOLDER)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Failed(f"no end after {seconds:.0f} s") from None
    if process.returncode:
        lines = [line.strip() for line in (err or out).splitlines() if line.strip() and "WARNING" not in line]
        raise Failed(f"exit code {process.returncode}: {' | '.join(lines[-3:])}")
    return out


def environment(peer: Peer) -> Path:
    """Return the peer's Python, in a virtual environment made now unless it is there already."""
    folder = VENVS / peer.name
    python, ready = folder / "bin" / "python", folder / ".ready"
    torch = next(line for line in (ROOT / "requirements.lock").read_text().splitlines() if line.startswith("torch=="))
    wanted = [torch, *peer.requirements]
    if not ready.exists() or ready.read_text().split() != wanted:
        print(f"{peer.name}: installing into {folder.relative_to(ROOT)}", flush=True)
        call([sys.executable, "-m", "venv", "--clear", str(folder)], INSTALL_SECONDS)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # torch is asked for by its exact version first: a looser request would bring a CUDA build.
        call([*install, torch], INSTALL_SECONDS)
        call([*install, *wanted], INSTALL_SECONDS)
        ready.write_text("\n".join(wanted) + "\n")
    return python


def measure(peer: Peer, python: Path) -> dict[str, Any]:
    """Return what the peer's fastest way reported, with the seconds of all of them."""
    found = []
    for way in peer.ways:
        print(f"{peer.name}: running {' '.join((peer.module, *way))}", flush=True)
        out = call([str(python), "-m", peer.module, *way], RUN_SECONDS)
        found.append(json.loads(out.strip().splitlines()[-1]))
    best = min(found, key=lambda each: each["seconds_w1"])
    least = min(each["seconds_w1_least"] for each in found)
    by_workers = {str(each["workers"]): each["seconds_w1"] for each in found}
    return dict(best) | {"seconds_w1_least": least, "seconds_by_workers": by_workers}


def ours(seconds: list[float]) -> up.Result:
    """Add ``REPEATS`` timed runs to ``seconds``."""
    workload = w1()
    for _ in range(REPEATS):
        began = time.perf_counter()
        result = up.train(workload.data, engine="fused", progress=False, **workload.arguments)
        seconds.append(time.perf_counter() - began)
    return result


def check_settings() -> None:
    """Stop if the peers' W1 is not ours."""
    workload = w1()
    local, privacy = workload.arguments["local"], workload.arguments["privacy"]
    one = (workload.rounds, workload.data.num_clients, local.epochs, local.batch_size, local.lr, local.momentum)
    other = (settings.ROUNDS, settings.CLIENTS, settings.EPOCHS, settings.BATCH, settings.LR, settings.MOMENTUM)
    noises = (privacy.clip_norm, privacy.noise_std), (settings.CLIP, settings.NOISE)
    if one != other or noises[0] != noises[1]:
        raise SystemExit(f"the peers' W1 {other, noises[1]} is not ours {one, noises[0]}")


def main(wanted: list[str]) -> None:
    check_settings()
    chosen = [peer for peer in PEERS if not wanted or peer.name in wanted]
    ready: dict[str, Path | Failed] = {}
    for peer in chosen:
        try:
            ready[peer.name] = environment(peer)
        except (Failed, OSError) as error:
            ready[peer.name] = Failed(f"not installed: {error}")

    seconds: list[float] = []
    ours([])  # warm-up: compiled kernels, imports
    result = ours(seconds)
    peers: dict[str, dict[str, Any]] = {}
    for peer in chosen:
        python = ready[peer.name]
        try:
            if isinstance(python, Failed):
                raise python
            peers[peer.name] = measure(peer, python)
        except (Failed, OSError, ValueError, LookupError) as error:
            peers[peer.name] = {"peer": peer.name, "failed": str(error)}
            print(f"{peer.name}: {error}", flush=True)
        ours(seconds)

    done = {name: each for name, each in peers.items() if "failed" not in each}
    fused, least = statistics.median(seconds), min(seconds)
    same = result.history.column("accuracy")[settings.WARM_UP : settings.WARM_UP + settings.MEASURED]
    found = {
        "seconds": {"fused": fused} | {name: each["seconds_w1"] for name, each in done.items()},
        "ratios": {f"{name} / fused": each["seconds_w1"] / fused for name, each in done.items()},
        "least": {"fused": least} | {name: each["seconds_w1_least"] for name, each in done.items()},
        "least ratios": {f"{name} / fused": each["seconds_w1_least"] / least for name, each in done.items()},
        "accuracy": {"fused": statistics.fmean(same)} | {name: each["accuracy"] for name, each in done.items()},
        "peers": peers,
    }
    keep("peers", found)


if __name__ == "__main__":
    main(sys.argv[1:])
