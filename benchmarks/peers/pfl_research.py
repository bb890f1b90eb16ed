"""W1 on pfl-research: its FederatedAveraging and SimulatedBackend, in-memory tensors, the test set scored centrally.

python -m benchmarks.peers.pfl_research [workers]   (in an environment with pfl[pytorch])

With several workers a round's clients are shared among processes, as with torchrun, which would listen on every
interface: here the meeting point is on the loopback only.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
import subprocess
import sys
import time
from typing import Any

import torch
from torch import nn

from benchmarks.peers import w1


class Softmax(nn.Linear):
    """Softmax regression with the two methods that pfl asks of a module."""

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        from pfl.metrics import Weighted

        return {"accuracy": Weighted(int((self(x).argmax(1) == y).sum()), len(y))}


def simulate() -> None:
    """Train as one worker, which is all of them unless the environment says otherwise."""
    import numpy as np
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops.selector import get_framework_module
    from pfl.metrics import Metrics, StringMetricName
    from pfl.model.pytorch import PyTorchModel
    from pfl.postprocessor.base import Postprocessor

    class OutputPerturbation(Postprocessor):
        """Clip the whole model, then add noise: pfl's own mechanisms clip the change, which is another mechanism."""

        def __init__(self, model: PyTorchModel):
            self.model = model

        def postprocess_one_user(self, *, stats: Any, user_context: Any) -> tuple[Any, Metrics]:
            # The model is back at the round's start here, and the statistics are the client's change of it.
            generator = torch.Generator().manual_seed(int(user_context.seed))
            start = self.model.variable_map
            trained = {name: start[name].detach() + change for name, change in stats.items()}
            scale = w1.CLIP / max(w1.CLIP, float(nn.utils.get_total_norm(list(trained.values()))))
            for name, vector in trained.items():
                noise = torch.randn(vector.shape, generator=generator)
                stats[name] = vector.mul_(scale).add_(noise, alpha=w1.NOISE).sub_(start[name].detach())
            return stats, Metrics()

    class Clock(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            stamps.append(time.perf_counter())
            if central_iteration:  # pfl does not score after the first round
                accuracies.append(aggregate_metrics[StringMetricName("Central val | accuracy")].overall_value)
            else:
                accuracies.append(float("nan"))
            return False, Metrics()

    stamps: list[float] = []
    accuracies: list[float] = []
    np.random.seed(0)  # noqa: NPY002 (pfl draws from the global stream)
    torch.manual_seed(0)
    torch.set_num_threads(1)

    parts, test = w1.load()
    users = {str(i): PyTorchTensorDataset(_tensors(part), user_id=str(i)) for i, part in enumerate(parts)}
    names = list(users)
    sizes = {name: len(user) for name, user in users.items()}
    clients = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", names), user_id_to_weight=sizes)

    module = Softmax(w1.FEATURES, w1.CLASSES)
    model = PyTorchModel(
        module,
        local_optimizer_create=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=w1.MOMENTUM),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    rounds = w1.WARM_UP + w1.MEASURED
    # Clients are not scored before and after their training (but for the warm-up): the central callback does it.
    algorithm = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds + 1,
        train_cohort_size=w1.CLIENTS,
        val_cohort_size=None,
    )
    backend = SimulatedBackend(
        training_data=clients, val_data=clients, postprocessors=[OutputPerturbation(model), WeightByDatapoints()]
    )
    FederatedAveraging().run(
        algorithm,
        backend,
        model,
        NNTrainHyperParams(local_batch_size=w1.BATCH, local_num_epochs=w1.EPOCHS, local_learning_rate=w1.LR),
        NNEvalHyperParams(local_batch_size=None),
        [CentralEvaluationCallback(PyTorchTensorDataset(_tensors(test))), Clock()],
        send_metrics_to_platform=False,
    )
    distributed = get_framework_module().distributed
    if distributed.global_rank == 0:
        versions = {"pfl": importlib.metadata.version("pfl"), "torch": torch.__version__}
        w1.report("pfl-research", stamps, accuracies, workers=distributed.world_size, versions=versions)


def _tensors(part: w1.Part) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(array) for array in part)


def launch(workers: int) -> None:
    """Start the workers, give them a meeting point on the loopback, and wait for them."""
    meeting = socket.create_server(("127.0.0.1", 0))
    port = meeting.getsockname()[1]
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, master_listen_fd=meeting.detach())
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "TORCHELASTIC_RUN_ID": "w1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, "-m", "benchmarks.peers.pfl_research"]
    started = [
        subprocess.Popen(command, env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(workers)
    ]
    codes = [process.wait() for process in started]
    del store
    if any(codes):
        raise SystemExit(f"pfl_research: the workers ended with {codes}")


if __name__ == "__main__":
    if len(sys.argv) > 1 and int(sys.argv[1]) > 1:
        launch(int(sys.argv[1]))
    else:
        simulate()
