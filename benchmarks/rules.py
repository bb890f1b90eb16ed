"""What a rule costs: an upcycled iteration of W3 over a data round of the same run, for each rule.

python -m benchmarks.rules
"""

from __future__ import annotations

import statistics
from typing import Any

import upcycled as up
from benchmarks.measure import keep
from benchmarks.workloads import w3

ROUNDS, REPEATS = 10, 3
RULES: dict[str, Any] = {
    "Constant": up.coefficients.Constant(0.5),
    "Trend": up.coefficients.Trend(),
    "Hypergradient": up.coefficients.Hypergradient(),
    "FedExP": up.coefficients.FedExP(),
    "Anderson": up.coefficients.Anderson(),
}


def seconds(rule: Any) -> tuple[float, float]:
    """Return the median seconds of an upcycled iteration and of a data round of one run."""
    workload = w3()
    arguments = workload.arguments | {"iterations": 2 * ROUNDS, "eval_every": 2 * ROUNDS, "upcycle": rule}
    history = up.train(workload.data, progress=False, **arguments).history
    found = {kind: [r.seconds or 0.0 for r in history if r.kind == kind] for kind in ("upcycled", "data")}
    return statistics.median(found["upcycled"]), statistics.median(found["data"])


def main() -> None:
    seconds(RULES["Constant"])
    ratios: dict[str, list[float]] = {name: [] for name in RULES}
    for _ in range(REPEATS):
        for name, rule in RULES.items():
            upcycled, data = seconds(rule)
            ratios[name].append(upcycled / data)
    keep("rules", {"upcycled iteration / data round": {name: statistics.median(r) for name, r in ratios.items()}})


if __name__ == "__main__":
    main()
