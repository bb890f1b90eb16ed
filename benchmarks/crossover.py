"""Where stacking clients stops to pay: prints the constants of ``upcycled.engines.vectorised.dispatch``.

    python benchmarks/crossover.py

A step of one client in a worker costs o1 + s1 e, a step of a stack of L clients o2 + L s2 e, where e is what a client's
step has to compute (``dispatch.effort_of``). Two workers halve the first. So stacking pays when
o2/L + s2 e < (o1 + s1 e)/2, which is e < MOST_EFFORT (1 - FEWEST_CLIENTS / L) with

    FEWEST_CLIENTS = 2 o2 / o1,    MOST_EFFORT = (o1 / 2) / (s2 - s1 / 2).

o, s and the weight of a parameter in e are fitted to measured CPU seconds, which other programs hardly disturb.
"""

from __future__ import annotations

import copy
import itertools
import time

import numpy as np
import torch
from torch import nn

from benchmarks.measure import explain_if_asked
from upcycled.core.engine import Engine, Task, Work
from upcycled.core.layout import flatten, layout_of
from upcycled.core.sampler import Cohort
from upcycled.core.shards import Shards
from upcycled.core.solvers import LocalSGD, Problem
from upcycled.engines.vectorised import dispatch, open_vectorised
from upcycled.losses import CrossEntropy

WORKERS = 2
FEATURES = 64
HIDDEN = (4, 32, 128, 256, 1024)
BATCHES = (8, 32, 128)
COHORTS = (2, 6, 15, 40, 100)
STEPS = 12
REPEATS = 3


def make_task(hidden: int, batch: int, cohort: int) -> Task:
    module = nn.Sequential(nn.Linear(FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, 10))
    rng = np.random.default_rng(0)
    each = 4 * batch
    x = rng.normal(size=(cohort * each, FEATURES)).astype(np.float32)
    train = Shards(x, rng.integers(0, 10, len(x)), np.arange(cohort + 1) * each)
    solver = LocalSGD(lr=0.01, momentum=0.5, epochs=STEPS // 4, batch_size=batch)
    return Task(
        module, layout_of(module), 10, train, None, solver, seed=0, objective=CrossEntropy(), cohort_size=cohort
    )


def seconds_per_step(engine: Engine, work: Work) -> float:
    began = time.process_time()
    trained = engine.train(work)
    return (time.process_time() - began) / int(trained.num_steps[0])


def measure(task: Task) -> tuple[float, float]:
    """Return CPU seconds per step of one client after the other (of all), and of the stack."""
    clients = np.arange(task.cohort_size)
    work = Work(1, 0, Cohort(clients, np.full(clients.size, task.solver.local.epochs)), flatten(task.module), Problem())
    engines = [
        open_vectorised(Task(**{**vars(task), "module": copy.deepcopy(task.module)}), 1, way)
        for way in ("workers", "stacked")
    ]
    found = [[seconds_per_step(engine, work) for engine in engines] for _ in range(REPEATS + 1)]
    one_by_one, stacked = np.median(found[1:], axis=0)
    return float(one_by_one), float(stacked)


def main() -> None:
    torch.manual_seed(0)
    rows = []
    print("hidden  batch  cohort     Mflop  one by one ms  stacked ms  gain over two workers")
    for hidden, batch, cohort in itertools.product(HIDDEN, BATCHES, COHORTS):
        task = make_task(hidden, batch, cohort)
        flops, (one, stacked) = dispatch.flops_per_step(task), measure(task)
        rows.append((cohort, flops, task.layout.size, one / cohort, stacked))
        gain = one / WORKERS / stacked
        print(
            f"{hidden:6} {batch:6} {cohort:7} {flops / 1e6:9.2f} {one * 1e3:14.2f} {stacked * 1e3:11.2f} {gain:22.2f}"
        )
    report(np.array(rows))


def report(rows: np.ndarray) -> None:
    cohort, flops, size, one, stacked = rows.T
    # Relative errors count: small steps are where the ways differ.
    o1, f1, p1 = fit(np.stack([np.ones_like(flops), flops, size], 1), one)
    o2, f2, p2 = fit(np.stack([np.ones_like(flops), cohort * flops, cohort * size], 1), stacked)
    weight = (p2 - p1 / WORKERS) / (f2 - f1 / WORKERS)
    fewest, most = WORKERS * o2 / o1, (o1 / WORKERS) / (f2 - f1 / WORKERS)
    print(f"\none client's step: {o1 * 1e6:7.0f} us + {1e-9 / f1:6.1f} Gflop/s + {p1 * 1e9:.2f} ns a parameter")
    print(
        f"a stack's step:     {o2 * 1e6:7.0f} us + {1e-9 / f2:6.1f} Gflop/s + {p2 * 1e9:.2f} ns a parameter, a client"
    )
    print(f"\nFLOPS_PER_PARAMETER = {weight:.0f}\nFEWEST_CLIENTS = {fewest:.0f}\nMOST_EFFORT = {most:.2g}")
    efforts = (flops + dispatch.FLOPS_PER_PARAMETER * size).tolist()
    says = np.array([dispatch.is_small(effort, int(count)) for effort, count in zip(efforts, cohort, strict=True)])
    workers = one * cohort / WORKERS
    lost = np.where(says, stacked, workers) / np.minimum(stacked, workers) - 1
    right = np.mean(says == (stacked < workers))
    print(f"\nthe constants in use take the faster way in {right:.0%} of the cases and lose {lost.max():.0%} at worst")


def fit(terms: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return non-negative coefficients that fit best in relative terms."""
    from scipy.optimize import nnls

    found: np.ndarray = nnls(terms / seconds[:, None], np.ones_like(seconds))[0]
    return found


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main()
