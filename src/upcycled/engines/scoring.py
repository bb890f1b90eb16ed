"""Test accuracy and loss of any torch module whose parameters are views of one flat tensor."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from upcycled.core.shards import Shards
from upcycled.core.vectors import Ints, Vector
from upcycled.core.work import Scores

ROWS_AT_ONCE = 4096


def score_module(module: nn.Module, values: torch.Tensor, model: Vector, test: Shards | None) -> Scores:
    """Score one flat model on all test samples, in evaluation mode."""
    if test is None or test.num_rows == 0:
        return Scores(float("nan"), float("nan"), 0)
    right, loss = _tally(module, values, model, test, 0, test.num_rows)
    return Scores(right / test.num_rows, loss / test.num_rows, test.num_rows)


def score_personal_modules(
    module: nn.Module, values: torch.Tensor, model: Vector, clients: Ints, personal: Vector, test: Shards | None
) -> Scores:
    """Score each client's own model on its own rows; clients not listed use the global model."""
    if test is None or test.num_rows == 0:
        return Scores(float("nan"), float("nan"), 0)
    own = dict(zip(clients.tolist(), personal, strict=True))
    right, loss = 0, 0.0
    for client in range(test.num_clients):
        first, last = int(test.offsets[client]), int(test.offsets[client + 1])
        if first < last:
            tally = _tally(module, values, own.get(client, model), test, first, last)
            right, loss = right + tally[0], loss + tally[1]
    return Scores(right / test.num_rows, loss / test.num_rows, test.num_rows)


@torch.no_grad()
def _tally(
    module: nn.Module, values: torch.Tensor, model: Vector, test: Shards, first: int, last: int
) -> tuple[int, float]:
    values.copy_(torch.from_numpy(np.array(model)))
    module.eval()
    right, loss = 0, 0.0
    for start in range(first, last, ROWS_AT_ONCE):
        rows = slice(start, min(start + ROWS_AT_ONCE, last))
        y = torch.from_numpy(np.array(test.y[rows])).to(values.device)
        logits = module(torch.from_numpy(np.array(test.x[rows])).to(values.device))
        right += int((logits.argmax(1) == y).sum())
        loss += float(cross_entropy(logits.double(), y, reduction="sum"))
    return right, loss
