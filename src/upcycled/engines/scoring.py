"""Test accuracy and loss of any torch module whose parameters are views of one flat tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from upcycled.core.engine import Scores
from upcycled.core.shards import Shards
from upcycled.core.vectors import Ints, Vector
from upcycled.engines.determinism import to_torch

ROWS_AT_ONCE = 1024
"""Few enough for the hidden states of a recurrent net, many enough for fast matrix products."""

Tally = tuple[int, float]
"""Right answers, and the sum of the cross-entropies."""

NO_SCORES = Scores(float("nan"), float("nan"), 0)


def score_module(module: nn.Module, values: torch.Tensor, model: Vector, test: Shards | None) -> Scores:
    """Score one flat model on all test samples, in evaluation mode."""
    if test is None or test.num_rows == 0:
        return NO_SCORES
    found = (tally(module, values, model, test.x[rows], test.y[rows]) for rows in pieces(test.num_rows))
    return scores_of(found, test.num_rows)


def score_personal_modules(
    module: nn.Module, values: torch.Tensor, model: Vector, clients: Ints, personal: Vector, test: Shards | None
) -> Scores:
    """Score each client's own model on its own rows; clients not listed use the global model."""
    if test is None or test.num_rows == 0:
        return NO_SCORES
    found = tally_others(module, values, model, clients, test)
    for client, own in zip(clients.tolist(), personal, strict=True):
        x, y = test.client(client)
        found += [tally(module, values, own, x[rows], y[rows]) for rows in pieces(len(y))]
    return scores_of(found, test.num_rows)


def tally_others(module: nn.Module, values: torch.Tensor, model: Vector, clients: Ints, test: Shards) -> list[Tally]:
    """Tally the rows of all clients that are not listed, together, with the global model."""
    listed = np.zeros(test.num_clients, dtype=bool)
    listed[clients] = True
    others = np.flatnonzero(np.repeat(~listed, test.sizes))
    chosen = [others[rows] for rows in pieces(len(others))]
    return [tally(module, values, model, test.x[rows], test.y[rows]) for rows in chosen]


@torch.no_grad()
def tally(module: nn.Module, values: torch.Tensor, model: Vector, x: NDArray[Any], y: Ints) -> Tally:
    """Count one flat model's right answers on these rows and sum its losses."""
    values.copy_(to_torch(model))
    module.eval()
    labels = to_torch(y, values.device)
    logits = module(to_torch(x, values.device))
    loss = cross_entropy(logits.double(), labels, reduction="sum")
    return int((logits.argmax(1) == labels).sum()), float(loss)


def pieces(num_rows: int) -> list[slice]:
    """Cut a number of rows into pieces of at most ROWS_AT_ONCE: the same ones whoever works on them."""
    return [slice(start, min(start + ROWS_AT_ONCE, num_rows)) for start in range(0, num_rows, ROWS_AT_ONCE)]


def scores_of(tallies: Iterable[Tally], num_rows: int) -> Scores:
    """Return accuracy and mean loss over ``num_rows`` samples."""
    right, loss = 0, 0.0
    for more_right, more_loss in tallies:
        right, loss = right + more_right, loss + more_loss
    return Scores(right / num_rows, loss / num_rows, num_rows)
