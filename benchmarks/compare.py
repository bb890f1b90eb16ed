"""``upcycled compare`` as a user runs it: 4 algorithms x vanilla and upcycled x 4 seeds on the official Syn(0.5, 0.5).

160 iterations (80 data rounds), 30 % of the clients, 90 % stragglers; a fresh process and an empty folder each time, so
start-up, files and the page are included.

python -m benchmarks.compare
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import tomli_w

from benchmarks.measure import explain_if_asked, keep
from benchmarks.workloads import FOLDER
from upcycled.experiments.demo import BASE, COEFFICIENT

ALGORITHMS = "fedavg,fedprox,scaffold,feddyn"
REPEATS = 3


def main() -> None:
    experiment = {
        **BASE,
        "name": "official",
        "iterations": 160,
        "seeds": [0, 1, 2, 3],
        "data": {"source": "npz", "path": str(FOLDER / "upcycled_synthetic.npz"), "name": "syn_0p5_0p5"},
        "algorithm": {"name": "fedprox", "mu": 0.5},
        "upcycle": {"kind": "constant", "coefficient": COEFFICIENT},
    }
    words = ["compare", "official.toml", "--algorithms", ALGORITHMS, "--no-longer-step", "--json", "--quiet"]
    walls, busy, document, page = [], [], {}, 0
    for _ in range(REPEATS):
        with TemporaryDirectory() as folder:
            (Path(folder) / "official.toml").write_text(tomli_w.dumps(experiment))
            began, before = time.perf_counter(), _cpu_of_children()
            done = subprocess.run(
                [sys.executable, "-m", "upcycled", *words], cwd=folder, capture_output=True, text=True, check=True
            )
            walls.append(time.perf_counter() - began)
            busy.append(_cpu_of_children() - before)
            document = json.loads(done.stdout)
            page = (Path(folder) / document["report"]).stat().st_size
    found = {
        "runs": 2 * len(document["rows"]) * len(document["seeds"]),
        "seconds": statistics.median(walls),
        "CPU seconds": statistics.median(busy),
        "page bytes": page,
        "rows": [
            {key: row[key] for key in ("algorithm", "gain", "interval", "p_value", "verdict", "holm_verdict")}
            | {kind: row[kind]["accuracy"] for kind in ("vanilla", "upcycled")}
            for row in document["rows"]
        ],
    }
    keep("compare", found)


def _cpu_of_children() -> float:
    """Return what finished subprocesses have computed: on a busy machine the better number."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main()
