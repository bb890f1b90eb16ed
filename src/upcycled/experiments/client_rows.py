"""What a run was like for each client: the lines of ``clients.jsonl``.

A tool of simulations. With real noise (``noise="system"``) scores on clients' own data and personal models stay out:
they are computed from data that the stated epsilon does not cover. What is left is public or part of the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from upcycled.core.shards import Shards
from upcycled.core.vectors import Ints, Real
from upcycled.data import FederatedData
from upcycled.engines.determinism import one_thread, to_torch
from upcycled.engines.scoring import pieces
from upcycled.models.prepare import as_input
from upcycled.runtime import Result


def client_rows(data: FederatedData, result: Result, epsilons: Sequence[float | None] | None) -> list[dict[str, Any]]:
    """Return one line per client.

    ``accuracy`` and ``loss`` are those of the final model on the client's own test samples, of its personal model where
    it has one, and None without such samples.

    Args:
        data: what the run was trained and scored on.
        result: the run.
        epsilons: what each client spent; None without privacy.
    """
    rounds, steps = _work(result, data.num_clients)
    columns: dict[str, Sequence[Any]] = {
        "train_samples": data.train.sizes.tolist(),
        "data_rounds": rounds.tolist(),
        "gradient_steps": steps.tolist(),
    }
    if is_simulation(result):
        test = data.test
        accuracy, loss = _scores(result, test) if test is not None else (np.full(data.num_clients, np.nan),) * 2
        columns["test_samples"] = [0] * data.num_clients if test is None else test.sizes.tolist()
        columns |= {"accuracy": accuracy.tolist(), "loss": loss.tolist()}
    if epsilons is not None:
        columns["epsilon"] = epsilons
    rows = []
    for client in range(data.num_clients):
        name = data.name_of(client)
        called = {"client": client} if name == str(client) else {"client": client, "name": name}
        rows.append(called | {key: values[client] for key, values in columns.items()})
    return rows


def is_simulation(result: Result) -> bool:
    """Say whether nobody is to be protected: no privacy, or noise that can be taken off again."""
    return result.privacy is None or result.privacy.is_simulation


def personal_tensors(result: Result) -> dict[str, torch.Tensor]:
    """Return the personal models as flat vectors under their clients' numbers; none of a run with real noise."""
    if result.personal_models is None or not is_simulation(result):
        return {}
    return {str(client): result.personal_models.params(client) for client in result.personal_models}


def _work(result: Result, clients: int) -> tuple[Ints, Ints]:
    """Return the data rounds each client took part in, and the gradients it computed."""
    rounds, gradients = np.zeros(clients, dtype=np.int64), np.zeros(clients, dtype=np.int64)
    for record in result.history:
        rounds[record.clients] += 1
        # A step may take several gradients (pFedMe): as many for each client.
        each = record.gradient_steps // max(int(record.client_steps.sum()), 1)
        gradients[record.clients] += each * record.client_steps
    return rounds, gradients


def _scores(result: Result, test: Shards) -> tuple[Real, Real]:
    """Return every client's accuracy and mean loss on its own test samples; NaN without any."""
    owner = np.repeat(np.arange(test.num_clients), test.sizes)
    own: Mapping[int, nn.Module] = {} if result.personal_models is None else result.personal_models
    right, loss = np.zeros(test.num_rows), np.zeros(test.num_rows)
    with one_thread():
        others = np.flatnonzero(~np.isin(owner, list(own)))
        right[others], loss[others] = _tally(result.model, test, others)
        for client in own:
            rows = np.flatnonzero(owner == client)
            right[rows], loss[rows] = _tally(own[client], test, rows)
    with np.errstate(invalid="ignore"):
        sums = [np.bincount(owner, weights=values, minlength=test.num_clients) for values in (right, loss)]
        return sums[0] / test.sizes, sums[1] / test.sizes


@torch.no_grad()
def _tally(module: nn.Module, test: Shards, rows: Ints) -> tuple[Real, Real]:
    """Return, for each of these rows, whether the answer is right, and the cross-entropy."""
    right, loss = np.zeros(len(rows)), np.zeros(len(rows))
    for piece in pieces(len(rows)):
        labels = to_torch(test.y[rows[piece]])
        logits = module(to_torch(as_input(module, test.x[rows[piece]])))
        right[piece] = (logits.argmax(1) == labels).numpy()
        loss[piece] = cross_entropy(logits.double(), labels, reduction="none").numpy()
    return right, loss
