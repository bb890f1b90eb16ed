"""``python -m tests.golden.equivalence TREE``: compare this source tree with another one, value by value, in hex.

Runs every mechanism, both kinds of noise, several algorithms, and an account in both trees (a process each), and
compares models, ledger lines, epsilons and charges of the account. Only public names that both trees have are used.
Real noise differs between runs, so of runs with system noise only charges and epsilons are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = r"""
import dataclasses, json, sys, tempfile, warnings
from pathlib import Path
import numpy as np
import upcycled as up
warnings.simplefilter("ignore")
P = up.privacy
DATA = up.data.synthetic(0.5, 0.5, clients=6, dim=5, seed=3, sizes=[40, 31, 57, 22, 64, 35])
DATA_TOLD = dataclasses.replace(DATA, inferred=frozenset())
SGD = up.LocalSGD(lr=0.05, epochs=2, batch_size=8)
FULL = up.LocalSGD(lr=0.05, epochs=1, batch_size=None)
MECHANISMS = {
    "none": (None, up.FedAvg(), SGD),
    "model_clipping": (P.ModelClipping(clip_norm=1.0, noise_std=4.0), up.FedAvg(), SGD),
    "update_clipping": (P.UpdateClipping(clip_norm=1.0, epsilon=2.0, delta=1e-3), up.FedAvgM(), SGD),
    "erm_signal": (P.ErmOutput(norm_bound=1.0, epsilon=2.0, delta=1e-3), up.FedProx(mu=0.5), None),
    "erm_output": (P.ErmOutput(norm_bound=1.0, epsilon=2.0, delta=1e-3), up.FedProx(mu=0.5), None),
    "bolt_on": (P.BoltOnSGD(norm_bound=1.0, epsilon=2.0, delta=1e-3), up.FedAvg(), FULL),
    "objective": (P.ObjectivePerturbation(norm_bound=1.0, epsilon=6.0), up.FedProx(mu=0.5), None),
    "dpsgd": (P.DPSGD(clip_norm=1.0, noise_multiplier=1.0), up.FedAvg(), SGD),
    "central": (P.CentralDPFedAvg(clip_norm=1.0, noise_multiplier=5.0), up.FedAvg(), SGD),
}
ALGORITHMS = [up.FedAvg(), up.FedAvgM(), up.FedProx(mu=0.1), up.Scaffold(), up.FedDyn(alpha=0.1), up.PFedMe(lam=1.0),
              up.FedYogi(), up.FedAdam(), up.FedNova()]

def hexed(values):
    return [float(v).hex() for v in np.ravel(np.asarray(values, dtype=np.float64))]

found = {}
for name, (privacy, algorithm, local) in MECHANISMS.items():
    for noise in ("seeded", "system"):
        if privacy is None and noise == "system":
            continue
        for part in (1.0, 0.5):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "ledger.jsonl"
                data = DATA if noise == "seeded" else DATA_TOLD
                reuse = up.coefficients.Signal() if name == "erm_signal" else 0.6
                more = {} if local is None else {"local": local}
                try:
                    run = up.train(data, algorithm=algorithm, upcycle=reuse, iterations=9, participation=part, seed=5,
                                   privacy=privacy, noise=noise, ledger=path if privacy else None, progress=False,
                                   **more)
                except up.UpcycledError as error:
                    found[f"{name}/{noise}/{part}"] = type(error).__name__
                    continue
                case = {}
                if noise == "seeded":
                    case["model"] = hexed(run.params)
                if privacy is not None:
                    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
                    case["ledger"] = [{k: v for k, v in line.items() if k != "chain"} for line in lines]
                    for delta in (1e-3, 1e-5):
                        case[f"epsilon {delta}"] = hexed(run.privacy.epsilon(delta))
                found[f"{name}/{noise}/{part}"] = case
for algorithm in ALGORITHMS:
    for engine in ("sequential", "fused", "vectorised"):
        for upcycle in (None, 0.7, "auto", up.coefficients.LambdaHalf(0.5)):
            key = f"{type(algorithm).__name__}/{engine}/{type(upcycle).__name__}"
            try:
                run = up.train(DATA, algorithm=algorithm, upcycle=upcycle, iterations=7, local=SGD, engine=engine,
                               seed=2, participation=0.6, progress=False)
                found[key] = {"model": hexed(run.params), "loss": hexed(run.history.column("loss"))}
            except (up.UpcycledError, TypeError) as error:
                found[key] = type(error).__name__
with tempfile.TemporaryDirectory() as folder:
    place = Path(folder) / "account"
    P.Account.open(place, epsilon=8.0, delta=1e-3)
    for seed in (0, 1):
        up.train(DATA_TOLD, algorithm=up.FedProx(mu=0.5), iterations=5, account=place, seed=seed, progress=False,
                 noise="system", privacy=P.ErmOutput(norm_bound=1.0, epsilon=1.0, delta=1e-4))
    account = P.Account.read(place)
    lines = [json.loads(line) for line in (place / "account.jsonl").read_text().splitlines()[1:]]
    other = ("chain", "run", "study", "question", "id", "began")
    numbers = [{name: value for name, value in line.items() if name not in other} for line in lines]
    found["account"] = {"lines": numbers, "epsilon": hexed([account.epsilon(client) for client in account.clients])}
json.dump(found, sys.stdout)
"""


def facts_of(tree: Path) -> dict[str, object]:
    """Return what the runs give with a tree's source."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{tree}: {done.stderr[-2000:]}")
    found: dict[str, object] = json.loads(done.stdout)
    return found


def main() -> int:
    here, there = facts_of(ROOT), facts_of(Path(sys.argv[1]).resolve())
    differing = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    for name in differing:
        print(f"{name} differs: {str(there.get(name))[:160]} -> {str(here.get(name))[:160]}")
    refused = sum(isinstance(value, str) for value in here.values())
    print(f"{len(here)} cases ({refused} refused alike), {len(differing)} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
