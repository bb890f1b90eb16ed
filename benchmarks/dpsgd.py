"""DP-SGD: a step against Opacus' and against a step of plain SGD; calibration of 50 clients.

    python -m benchmarks.dpsgd [linear mlp cnn lstm]

Some models by name are only looked at: the numbers that are kept are of all of them.
Batch 32 by Poisson draws from clients of 640 samples, momentum, noise multiplier 1. Ours are whole data rounds on all
cores, divided by their steps: of eight clients in the fused engine (linear, MLP), of four in the sequential one (CNN,
LSTM). A peer has torch's threads on all cores. Both take turns, and the least time of each is compared: other work on
the machine disturbs it less than a median. Opacus lives in an environment of its own, made on first use as for
``benchmarks.peers.compare``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import upcycled as up
from benchmarks.measure import explain_if_asked, keep
from benchmarks.peers.compare import Failed, Peer, call, environment
from benchmarks.peers.opacus_step import BATCH, WORDS, model_of
from upcycled.core.mechanism import Ask
from upcycled.core.sampling import everybody
from upcycled.core.solvers import Problem
from upcycled.privacy.noise.sources import SeededNoise, SystemNoise
from upcycled.training.plan import make_plan
from upcycled.training.spec import RunSpec

OPACUS = Peer("opacus", ("opacus==1.6.0",), "benchmarks.peers.opacus_step")
CLIENTS, FEW, SAMPLES, TURNS = 8, 4, 20 * BATCH, 5
FUSED = ("linear", "mlp")
PEER_STEPS = {"linear": "200", "mlp": "200", "cnn": "60", "lstm": "20"}


def round_of(name: str, privacy: Any) -> Callable[[Any], object]:
    """Return a data round as a function of its noise: of the fused engine, or of the sequential one."""
    module, shape, classes = model_of(name)
    engine, clients = ("fused", CLIENTS) if name in FUSED else ("sequential", FEW)
    rng = np.random.default_rng(0)
    xs: list[Any] = [rng.normal(size=(SAMPLES, *shape)).astype(np.float32) for _ in range(clients)]
    if name == "lstm":
        xs = [rng.integers(0, WORDS, x.shape) for x in xs]
    data = up.FederatedData.from_arrays(xs, [rng.integers(0, classes, SAMPLES) for _ in xs], num_classes=classes)
    local = up.LocalSGD(lr=0.01, momentum=0.5, batch_size=BATCH)
    spec = RunSpec(algorithm=up.FedAvg(), model=module, privacy=privacy, iterations=1, local=local, engine=engine)
    plan = make_plan(data, spec)
    opened = plan.engine.open(plan.task, None)
    return lambda noise: opened.train(Ask(1, 1, 0, everybody(clients), plan.initial, Problem()), noise)


def steps(name: str, python: Path | None) -> dict[str, float]:
    """Return the least milliseconds of a step, ours and Opacus'."""
    noisy, quiet, plain = (round_of(name, p) for p in (up.privacy.DPSGD(1.0, 1.0), up.privacy.DPSGD(1.0, 0.0), None))
    jobs: dict[str, Callable[[], object]] = {
        "seeded noise": lambda: noisy(SeededNoise(0, 1)),
        "real noise": lambda: noisy(SystemNoise()),
        "clipped, no noise": lambda: quiet(SeededNoise(0, 1)),
        "plain SGD": lambda: plain(None),
    }
    found = dict.fromkeys([*jobs, *([] if python is None else ["opacus"])], np.inf)
    clients, again = (CLIENTS, 6) if name in FUSED else (FEW, 1)
    for _ in range(TURNS):
        for which, job in jobs.items():
            for _ in range(again):
                began = time.perf_counter()
                job()
                taken = time.perf_counter() - began
                found[which] = min(found[which], 1e3 * taken / (clients * SAMPLES // BATCH))
        if python is not None:
            out = call([str(python), "-W", "ignore", "-m", OPACUS.module, name, PEER_STEPS[name]], 600)
            found["opacus"] = min(found["opacus"], json.loads(out.strip().splitlines()[-1])["least ms"])
    return found


def calibration() -> float:
    """Return the seconds that 50 clients of different sizes take, at epsilon 2 over 80 rounds of 10 epochs."""
    sizes = np.linspace(45, 800, 50).astype(np.int64)
    xs = [np.zeros((n, 20), dtype=np.float32) for n in sizes]
    data = up.FederatedData.from_arrays(xs, [np.arange(n) % 2 for n in sizes], num_classes=2)
    privacy = up.privacy.DPSGD(1.0, epsilon=2.0, delta=1e-5)
    spec = RunSpec(
        algorithm=up.FedAvg(), privacy=privacy, iterations=80, local=up.LocalSGD(epochs=10, batch_size=BATCH)
    )
    times = []
    for _ in range(5):
        began = time.perf_counter()
        make_plan(data, spec)
        times.append(time.perf_counter() - began)
    return min(times)


def main(names: list[str]) -> None:
    try:
        python: Path | None = environment(OPACUS)
    except (Failed, OSError) as error:
        print(f"opacus: not installed: {error}", flush=True)
        python = None
    found = {name: steps(name, python) for name in names or PEER_STEPS}
    peers = {
        f"{name}, {which}": ms["opacus"] / ms[which]
        for name, ms in found.items()
        for which in ("seeded noise", "real noise")
        if "opacus" in ms
    }
    clipping = {name: ms["clipped, no noise"] / ms["plain SGD"] for name, ms in found.items()}
    measured = {"ms a step": found, "opacus / ours": peers, "clipped without noise / plain SGD": clipping}
    if names:
        print(json.dumps(measured, indent=2))
    else:
        keep("dpsgd", measured | {"seconds for 50 clients": calibration()})


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main(sys.argv[1:])
