"""What a run was like for each client: the lines of ``clients.jsonl``.

Scores on clients' own data are computed from records that no epsilon covers. In a restricted run they are the holder's
own; what is left is public or part of the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from upcycled.data import FederatedData
from upcycled.experiments.evaluation import FinalModel
from upcycled.runtime import History, Result
from upcycled.runtime.result import HoldersOwn

Epsilons = Sequence[float | None] | None


def client_rows(
    data: FederatedData, result: Result, final: FinalModel | None, epsilons: Epsilons
) -> list[dict[str, Any]]:
    """Return one line per client, as everybody may see it.

    ``accuracy``, ``loss`` and the run's metrics are those of the final model on the client's own test samples, of its
    personal model where it has one, and None without such samples; a restricted run has none of them.

    Args:
        data: what the run was trained and scored on.
        result: the run.
        final: its last model at work on test data.
        epsilons: what each client spent; None without privacy.
    """
    work = _work(result.history, data.num_clients)
    scores = {} if result.private is not None else _score_columns(data, final)
    return _lines(data, work | scores, epsilons)


def own_client_rows(
    data: FederatedData, own: HoldersOwn, final: FinalModel | None, epsilons: Epsilons
) -> list[dict[str, Any]]:
    """Return one line per client of a restricted run with everything, for the holder alone."""
    work = _work(own.history, data.num_clients)
    return _lines(data, work | _score_columns(data, final), epsilons)


def _lines(data: FederatedData, columns: Mapping[str, Sequence[Any]], epsilons: Epsilons) -> list[dict[str, Any]]:
    every = {"train_samples": data.train.sizes.tolist(), **columns}
    if epsilons is not None:
        every["epsilon"] = epsilons
    rows = []
    for client in range(data.num_clients):
        name = data.name_of(client)
        called = {"client": client} if name == str(client) else {"client": client, "name": name}
        rows.append(called | {key: values[client] for key, values in every.items()})
    return rows


def _work(history: History, clients: int) -> dict[str, Sequence[Any]]:
    """Return the data rounds each client took part in, and the gradients it computed; nothing where that is secret."""
    rounds, gradients = np.zeros(clients, dtype=np.int64), np.zeros(clients, dtype=np.int64)
    for record in history:
        if record.clients is None or record.client_steps is None or record.gradient_steps is None:
            return {}
        rounds[record.clients] += 1
        # A step may take several gradients (pFedMe): as many for each client.
        each = record.gradient_steps // max(int(record.client_steps.sum()), 1)
        gradients[record.clients] += each * record.client_steps
    return {"data_rounds": rounds.tolist(), "gradient_steps": gradients.tolist()}


def _score_columns(data: FederatedData, final: FinalModel | None) -> dict[str, Sequence[Any]]:
    """Return every client's scores on its own test samples; NaN without any."""
    if final is None:
        nothing = [float("nan")] * data.num_clients
        return {"test_samples": [0] * data.num_clients, "accuracy": nothing, "loss": nothing}
    sizes = final.test.sizes
    owner = np.repeat(np.arange(final.test.num_clients), sizes)
    sums = [np.bincount(owner, weights=values, minlength=sizes.size) for values in final.scores_of_rows()]
    with np.errstate(invalid="ignore"):
        accuracy, loss = ((each / sizes).tolist() for each in sums)
    return {"test_samples": sizes.tolist(), "accuracy": accuracy, "loss": loss, **final.metrics_of_clients()}
