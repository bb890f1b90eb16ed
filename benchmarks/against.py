"""W1, W2 and W3 against another commit: interleaved runs of two processes, and the ratio with its interval.

python -m benchmarks.against COMMIT [--repeats 11] [--engine fused] [w1 w2 w3]

Each side has a process of its own that stays warm; they take turns, in an order that changes every time. The ratio is
this tree's seconds over the commit's, of each pair: the median of them, and its interval by order statistics.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy import stats

ROOT = Path(__file__).parents[1]
SERVER = """
import json, sys, time
import upcycled as up
from benchmarks.workloads import w1, w2, w3
made = {}
for line in sys.stdin:
    name, engine, rounds = json.loads(line)
    if name not in made:
        made[name] = {"w1": w1, "w2": w2, "w3": w3}[name]()
    arguments = made[name].arguments | ({"iterations": rounds, "eval_every": rounds} if rounds else {})
    began = time.perf_counter()
    up.train(made[name].data, engine=engine, progress=False, **arguments)
    print(json.dumps(time.perf_counter() - began), flush=True)
"""
ROUNDS = {("w1", "sequential"): 4, ("w2", "sequential"): 8, ("w3", "sequential"): 2}
"""The reference engine is slow: it runs a part."""


class Side:
    """One tree's process."""

    def __init__(self, tree: Path) -> None:
        paths = os.pathsep.join([str(tree / "src"), str(tree)])
        data = os.environ.get("UPCYCLED_DATA", str(ROOT.parent / "shared" / "data"))
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env=os.environ | {"PYTHONPATH": paths, "UPCYCLED_DATA": data},
        )

    def seconds(self, name: str, engine: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, engine, ROUNDS.get((name, engine), 0)]) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def median_interval(values: list[float], level: float = 0.95) -> tuple[float, float, float]:
    """Return the median and the interval of it that order statistics give, at the least at this level."""
    ordered, n = np.sort(values), len(values)
    k = int(stats.binom.ppf((1 - level) / 2, n, 0.5))
    return float(np.median(ordered)), float(ordered[max(0, k - 1)]), float(ordered[min(n - 1, n - k)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--engine", default="fused")
    parser.add_argument("workloads", nargs="*", default=["w1", "w2", "w3"])
    args = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "other"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", tree, args.commit], cwd=ROOT, check=True)
        sides = [Side(ROOT), Side(tree)]
        try:
            for name in args.workloads:
                for side in sides:  # data, compiled kernels, threads
                    side.seconds(name, args.engine)
                ratios, mine = [], []
                for turn in range(args.repeats):
                    order = [0, 1] if turn % 2 else [1, 0]
                    found = {which: sides[which].seconds(name, args.engine) for which in order}
                    ratios.append(found[0] / found[1])
                    mine.append(found[0])
                middle, low, high = median_interval(ratios)
                print(
                    f"{name} {args.engine}: {middle:.3f} ({low:.3f} to {high:.3f}) of {args.commit}, "
                    f"{np.median(mine):.4g} s, {args.repeats} pairs",
                    flush=True,
                )
        finally:
            for side in sides:
                side.close()
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
