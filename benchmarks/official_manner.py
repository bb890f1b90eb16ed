"""A plain torch loop in the manner of the paper's published code: the yardstick (b).

DataLoader per client and round, a deepcopy of the model per client, an optimizer object, state_dict averaging, a test
pass per client. Written from its description, for measuring only.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.workloads import Workload
from upcycled.core.sampling import Participation
from upcycled.losses import CrossEntropy
from upcycled.models.prepare import prepare_model


def run(workload: Workload, rounds: int, evaluate: bool = True, seed: int = 0) -> float:
    """Train and return the last test accuracy."""
    data, arguments = workload.data, workload.arguments
    local, privacy = arguments["local"], arguments.get("privacy")
    kind, options = arguments.get("model", "logistic"), arguments.get("model_options")
    model = prepare_model(kind, data.facts(), CrossEntropy(), seed, options)
    who = Participation(arguments.get("participation", 1.0), stragglers=arguments.get("stragglers", 0.0))
    train = [_set(*data.train.client(i)) for i in range(data.num_clients)]
    assert data.test is not None
    test = [_set(*data.test.client(i)) for i in range(data.num_clients)]
    accuracy = float("nan")
    for m in range(1, rounds + 1):
        cohort = who.draw(seed, m, data.num_clients, local.epochs)
        states, sizes = [], []
        for client, epochs in zip(cohort.clients.tolist(), cohort.epochs.tolist(), strict=True):
            mine = copy.deepcopy(model).train()
            optimizer = torch.optim.SGD(mine.parameters(), lr=local.lr, momentum=local.momentum)
            loader = DataLoader(train[client], batch_size=local.batch_size, shuffle=True)
            for _ in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(mine(x), y).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            state = mine.state_dict()
            if privacy is not None:
                norm = torch.sqrt(sum((p**2).sum() for p in state.values()))
                scale = max(1.0, float(norm) / privacy.clip_norm)
                state = {k: p / scale + privacy.noise_std * torch.randn_like(p) for k, p in state.items()}
            states.append(copy.deepcopy(state))
            sizes.append(len(train[client]))
        shares = np.array(sizes) / sum(sizes)
        model.load_state_dict({k: sum(float(p) * s[k] for p, s in zip(shares, states, strict=True)) for k in states[0]})
        if evaluate:
            accuracy = _test(model, test)
    return accuracy


def _set(x: np.ndarray, y: np.ndarray) -> TensorDataset:
    return TensorDataset(torch.from_numpy(np.array(x)), torch.from_numpy(np.array(y)))


@torch.no_grad()
def _test(model: nn.Module, test: list[TensorDataset]) -> float:
    model.eval()
    right = total = 0
    for part in test:
        if len(part) == 0:
            continue
        for x, y in DataLoader(part, batch_size=32):
            right += int((model(x).argmax(1) == y).sum())
            total += len(y)
    return right / total
