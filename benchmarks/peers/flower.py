"""W1 on Flower's simulation: its message API, its FedAvg, one Ray worker per core, the test set scored by the server.

python -m benchmarks.peers.flower   (in an environment with flwr[simulation])
"""

from __future__ import annotations

import os
import tempfile
import time

# Read when flwr and ray are imported: no reports to their makers, no look for updates. Without the fourth, Ray turns
# the loopback address below into the machine's own and listens on every interface; without the last, its workers run
# at low priority, which would be a handicap on a machine with other work.
os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": "0",
}

import flwr
import ray
import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers import w1
from benchmarks.peers.flower_client import app as client_app
from benchmarks.peers.flower_client import new_model

stamps: list[float] = []
accuracies: list[float] = []
server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    x, y = (torch.from_numpy(part) for part in w1.load()[1])
    model = new_model()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            accuracy = float((model(x).argmax(1) == y).float().mean())
        if server_round:
            stamps.append(time.perf_counter())
            accuracies.append(accuracy)
        return MetricRecord({"accuracy": accuracy})

    nodes = {"min_train_nodes": w1.CLIENTS, "min_available_nodes": w1.CLIENTS}
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, **nodes)
    arrays = ArrayRecord(model.state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=w1.WARM_UP + w1.MEASURED, evaluate_fn=evaluate)


def simulate() -> None:
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        os.environ["FLWR_HOME"] = folder
        cores = len(os.sched_getaffinity(0))
        init = {
            "num_cpus": cores,
            "_node_ip_address": "127.0.0.1",
            "include_dashboard": False,
            "_temp_dir": folder,
            "object_store_memory": 200_000_000,
        }
        backend = {"init_args": init, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        run_simulation(server_app, client_app, num_supernodes=w1.CLIENTS, backend_config=backend)
        if len(accuracies) != w1.WARM_UP + w1.MEASURED:
            raise SystemExit(f"flower: {len(accuracies)} rounds instead of {w1.WARM_UP + w1.MEASURED}")
        versions = {"flwr": flwr.__version__, "ray": ray.__version__, "torch": torch.__version__}
        w1.report("flower", stamps, accuracies, workers=cores, versions=versions)


if __name__ == "__main__":
    simulate()
