"""What a run was like for each client: the lines of ``clients.jsonl``.

Scores on clients' own data are computed from records that no epsilon covers. In a restricted run they are the holder's
own; what is left is public or part of the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from upcycled.core.objective import Objective
from upcycled.core.shards import Shards
from upcycled.core.vectors import Ints, Real
from upcycled.data import FederatedData
from upcycled.engines.determinism import one_thread, to_torch
from upcycled.engines.scoring import pieces
from upcycled.losses.table import as_objective, is_balanced, with_counts
from upcycled.models.prepare import as_input
from upcycled.runtime import History, Result
from upcycled.runtime.result import HoldersOwn, PersonalModels

Epsilons = Sequence[float | None] | None


def client_rows(data: FederatedData, result: Result, epsilons: Epsilons) -> list[dict[str, Any]]:
    """Return one line per client, as everybody may see it.

    ``accuracy`` and ``loss`` are those of the final model on the client's own test samples, of its personal model where
    it has one, and None without such samples; a restricted run has neither.

    Args:
        data: what the run was trained and scored on.
        result: the run.
        epsilons: what each client spent; None without privacy.
    """
    work = _work(result.history, data.num_clients)
    scores = {} if result.private is not None else _score_columns(data, result, result.personal_models)
    return _lines(data, work | scores, epsilons)


def own_client_rows(data: FederatedData, result: Result, own: HoldersOwn, epsilons: Epsilons) -> list[dict[str, Any]]:
    """Return one line per client of a restricted run with everything, for the holder alone."""
    work = _work(own.history, data.num_clients)
    return _lines(data, work | _score_columns(data, result, own.personal_models), epsilons)


def personal_tensors(models: PersonalModels) -> dict[str, torch.Tensor]:
    """Return personal models as flat vectors under their clients' numbers."""
    return {str(client): models.params(client) for client in models}


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


def _score_columns(data: FederatedData, result: Result, personal: PersonalModels | None) -> dict[str, Sequence[Any]]:
    test, nothing = data.test, np.full(data.num_clients, np.nan)
    accuracy, loss = (
        (nothing, nothing) if test is None else _scores(result.model, _objective(data, result), personal, test)
    )
    sizes = [0] * data.num_clients if test is None else test.sizes.tolist()
    return {"test_samples": sizes, "accuracy": accuracy.tolist(), "loss": loss.tolist()}


def _objective(data: FederatedData, result: Result) -> Objective:
    """Return the run's loss, its weights found as the run found them."""
    objective = as_objective(result.settings["loss"], data.targets)
    is_counted = is_balanced(objective) and data.targets == "classes"
    counts = np.bincount(data.train.y, minlength=data.num_classes).tolist() if is_counted else None
    return with_counts(objective, counts)


def _scores(model: nn.Module, objective: Objective, personal: PersonalModels | None, test: Shards) -> tuple[Real, Real]:
    """Return every client's accuracy and mean loss on its own test samples; NaN without any."""
    owner = np.repeat(np.arange(test.num_clients), test.sizes)
    own: Mapping[int, nn.Module] = personal or {}
    right, loss = np.zeros(test.num_rows), np.zeros(test.num_rows)
    with one_thread():
        others = np.flatnonzero(~np.isin(owner, list(own)))
        right[others], loss[others] = _tally(model, objective, test, others)
        for client in own:
            rows = np.flatnonzero(owner == client)
            right[rows], loss[rows] = _tally(own[client], objective, test, rows)
    with np.errstate(invalid="ignore"):
        sums = [np.bincount(owner, weights=values, minlength=test.num_clients) for values in (right, loss)]
        return sums[0] / test.sizes, sums[1] / test.sizes


@torch.no_grad()
def _tally(module: nn.Module, objective: Objective, test: Shards, rows: Ints) -> tuple[Real, Real]:
    """Return, for each of these rows, whether the answer is right (NaN where that has no meaning), and its loss."""
    right, loss = np.zeros(len(rows)), np.zeros(len(rows))
    for piece in pieces(len(rows)):
        targets = to_torch(test.y[rows[piece]])
        outputs = module(to_torch(as_input(module, test.x[rows[piece]])))
        answers = objective.is_right(outputs, targets)
        right[piece] = np.nan if answers is None else answers.numpy()
        loss[piece] = objective.per_sample(outputs.double(), targets).numpy()
    return right, loss
