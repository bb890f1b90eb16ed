"""What reuse costs: an upcycled iteration over a data round of the same run for each rule, and precision weights.

    python -m benchmarks.rules            all of it, kept in results/
    python -m benchmarks.rules reuse      precision weights and signal step only; keeps nothing

Rules: on W3. Precision weights (what they take beyond any mean of the releases) and the signal step: on W1 with
ErmOutput, and on W3 with clipped updates; its MLP has no certified solver, so the signal step has FEMNIST's softmax
regression there. Both are shares of the processor's time in a data round.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import upcycled as up
from benchmarks.measure import explain_if_asked, keep
from benchmarks.workloads import Workload, w1, w3
from upcycled.core.aggregator import AggregatorState, Combination, Received
from upcycled.training.loop import iterate
from upcycled.training.plan import make_plan
from upcycled.training.state import start_run

ROUNDS, REPEATS = 10, 3
RULES: dict[str, Any] = {"Constant": up.coefficients.Constant(0.5)}
PROVEN = {
    "algorithm": up.FedProx(mu=0.5),
    "model": "logistic",
    "local": None,
    "privacy": up.privacy.ErmOutput(norm_bound=1.0, epsilon=4.0, delta=1e-5),
}
CLIPPED = {"privacy": up.privacy.UpdateClipping(clip_norm=1.0, epsilon=8.0, delta=1e-5)}


@dataclass(frozen=True)
class Timed:
    """Precision weights that say how long they took."""

    seconds: list[float] = field(default_factory=list)

    needs_noise_std: ClassVar[bool] = True
    is_weighted: ClassVar[bool] = True

    def start(self) -> AggregatorState:
        return up.aggregators.Precision().start()

    def combine(self, own: AggregatorState, received: Received) -> tuple[Combination | None, AggregatorState]:
        began = time.process_time()
        found = up.aggregators.Precision().combine(own, received)
        self.seconds.append(time.process_time() - began)
        return found


def seconds(workload: Workload, **asked: Any) -> tuple[float, float]:
    """Return the median seconds of an upcycled iteration and of a data round of one run."""
    arguments = workload.arguments | {"iterations": 2 * ROUNDS, "eval_every": 2 * ROUNDS} | asked
    history = up.train(workload.data, progress=False, **arguments).history
    found = {kind: [r.seconds or 0.0 for r in history if r.kind == kind] for kind in ("upcycled", "data")}
    return statistics.median(found["upcycled"]), statistics.median(found["data"])


def core_seconds(workload: Workload, **asked: Any) -> tuple[float, float]:
    """Return the processor's time in an upcycled iteration and in a data round: the load of others does not count."""
    arguments = workload.arguments | {"iterations": 2 * ROUNDS, "eval_every": 2 * ROUNDS} | asked
    plan = make_plan(workload.data, up.RunSpec(**arguments))
    steps = iterate(plan, plan.engine.open(plan.task, None), start_run(plan))
    found: dict[str, list[float]] = {"upcycled": [], "data": []}
    for _ in range(2 * ROUNDS - 1):  # the last one is scored
        began = time.process_time()
        _, record = next(steps)
        found[record.kind].append(time.process_time() - began)
    return statistics.median(found["upcycled"]), statistics.median(found["data"])


def reuse_ratios(workload: Workload, trained: Mapping[str, Any], proven: Mapping[str, Any]) -> dict[str, float]:
    """Return what precision weights take, and a signal step beyond a constant one, over a data round."""
    timed = Timed()
    _, data = core_seconds(workload, upcycle=0.5, aggregation=timed, **trained)
    step, certified = core_seconds(workload, upcycle=up.coefficients.Signal(), aggregation="precision", **proven)
    constant, _ = core_seconds(workload, upcycle=0.5, aggregation="precision", **proven)
    weights = statistics.median(timed.seconds)
    return {"precision weights": weights / data, "signal step": (step - constant) / certified}


def reuse_shares(mlp: Workload, syn: Workload) -> dict[str, dict[str, float]]:
    """Return the medians of what weights and step take on W1 and W3."""
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(REPEATS):
        for workload, trained in ((syn, PROVEN), (mlp, CLIPPED)):
            for name, ratio in reuse_ratios(workload, trained, PROVEN).items():
                found.setdefault(workload.name, {}).setdefault(name, []).append(ratio)
    return {name: {part: statistics.median(each) for part, each in parts.items()} for name, parts in found.items()}


def main() -> None:
    mlp, syn = w3(), w1()
    seconds(mlp, upcycle=0.5)
    if sys.argv[1:] == ["reuse"]:
        print(json.dumps(reuse_shares(mlp, syn), indent=2))
        return
    ratios: dict[str, list[float]] = {name: [] for name in RULES}
    for _ in range(REPEATS):
        for name, rule in RULES.items():
            upcycled, data = seconds(mlp, upcycle=rule)
            ratios[name].append(upcycled / data)
    rules = {name: statistics.median(r) for name, r in ratios.items()}
    keep("rules", {"upcycled iteration / data round": rules, "reuse / data round": reuse_shares(mlp, syn)})


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main()
