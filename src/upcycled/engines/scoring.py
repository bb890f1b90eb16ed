"""Test accuracy and loss of any torch module whose parameters are views of one flat tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from upcycled.core.engine import Scores
from upcycled.core.objective import Objective
from upcycled.core.vectors import Ints, Outputs, Shards, Vector
from upcycled.engines.determinism import to_torch
from upcycled.engines.flat_module import FlatModule
from upcycled.losses import CrossEntropy

ROWS_AT_ONCE = 1024
"""Few enough for the hidden states of a recurrent net, many enough for fast matrix products."""

Tally = tuple[int | None, float]
"""Right answers, None where they have no meaning, and the sum of the losses."""

NO_SCORES = Scores(float("nan"), float("nan"), 0)


def score_module(flat: FlatModule, model: Vector, test: Shards | None) -> Scores:
    """Score one flat model on all test samples, in evaluation mode."""
    if test is None or test.num_rows == 0:
        return NO_SCORES
    found = (tally(flat, model, test.x[rows], test.y[rows]) for rows in pieces(test.num_rows))
    return scores_of(found, test.num_rows)


def score_personal_modules(
    flat: FlatModule, model: Vector, clients: Ints, personal: Vector, test: Shards | None
) -> Scores:
    """Score each client's own model on its own rows; clients not listed use the global model."""
    if test is None or test.num_rows == 0:
        return NO_SCORES
    found = tally_others(flat, model, clients, test)
    for client, own in zip(clients.tolist(), personal, strict=True):
        x, y = test.client(client)
        found += [tally(flat, own, x[rows], y[rows]) for rows in pieces(len(y))]
    return scores_of(found, test.num_rows)


def tally_others(flat: FlatModule, model: Vector, clients: Ints, test: Shards) -> list[Tally]:
    """Tally the rows of all clients that are not listed, together, with the global model."""
    return [tally(flat, model, test.x[rows], test.y[rows]) for rows in others_of(clients, test)]


def others_of(clients: Ints, test: Shards) -> list[Ints]:
    """Return the rows of all clients that are not listed, in pieces."""
    listed = np.zeros(test.num_clients, dtype=bool)
    listed[clients] = True
    others = np.flatnonzero(np.repeat(~listed, test.sizes))
    return [others[rows] for rows in pieces(len(others))]


@torch.no_grad()
def tally(flat: FlatModule, model: Vector, x: NDArray[Any], y: Ints) -> Tally:
    """Count one flat model's right answers on these rows and sum its losses."""
    outputs = outputs_of(flat, model, x)
    return tallied(flat.objective, outputs, to_torch(y, outputs.device))


@torch.no_grad()
def outputs_of(flat: FlatModule, model: Vector, x: NDArray[Any]) -> torch.Tensor:
    """Return one flat model's outputs for these rows, in evaluation mode."""
    flat.values.copy_(to_torch(model))
    flat.module.eval()
    found: torch.Tensor = flat.module(to_torch(x, flat.values.device))
    return found


def module_outputs(flat: FlatModule, model: Vector, test: Shards | None) -> Outputs:
    """Return one flat model's outputs for all test samples, computed in the pieces that are scored."""
    found = [] if test is None else [(rows, outputs_of(flat, model, test.x[rows])) for rows in pieces(test.num_rows)]
    return in_place(found, test)


def personal_outputs(flat: FlatModule, model: Vector, clients: Ints, personal: Vector, test: Shards | None) -> Outputs:
    """Return the outputs of each client's own model for its own rows; clients not listed use the global model."""
    if test is None:
        return in_place([], test)
    found: list[tuple[Ints | slice, torch.Tensor]] = [
        (rows, outputs_of(flat, model, test.x[rows])) for rows in others_of(clients, test)
    ]
    for client, own in zip(clients.tolist(), personal, strict=True):
        first, x = int(test.offsets[client]), test.client(client)[0]
        for rows in pieces(len(x)):
            here = slice(first + rows.start, first + rows.stop)
            found.append((here, outputs_of(flat, own, x[rows])))
    return in_place(found, test)


def in_place(parts: Iterable[tuple[Ints | slice, torch.Tensor | Outputs]], test: Shards | None) -> Outputs:
    """Put outputs of some rows each where their rows are."""
    found: Outputs = np.zeros((0, 0), dtype=np.float32)
    for rows, part in parts:
        values = part.cpu().numpy() if isinstance(part, torch.Tensor) else part
        if not found.size and test is not None:
            found = np.zeros((test.num_rows, *values.shape[1:]), dtype=np.float32)
        found[rows] = values
    return found


def tallied(
    objective: Objective, outputs: torch.Tensor, targets: torch.Tensor, counts: torch.Tensor | None = None
) -> Tally:
    """Count the right answers among outputs and sum their losses in float64; of rows that ``counts`` names only."""
    right = objective.is_right(outputs, targets)
    if counts is None and objective == CrossEntropy():
        # torch's own sum rounds in another order than a sum of single losses: published losses keep their bits.
        loss = cross_entropy(outputs.double(), targets, reduction="sum")
    else:
        losses = objective.per_sample(outputs.double(), targets)
        loss = (losses if counts is None else losses * counts).sum()
    if right is not None and counts is not None:
        right = right & counts
    return None if right is None else int(right.sum()), float(loss)


def pieces(num_rows: int) -> list[slice]:
    """Cut a number of rows into pieces of at most ROWS_AT_ONCE: the same ones whoever works on them."""
    return [slice(start, min(start + ROWS_AT_ONCE, num_rows)) for start in range(0, num_rows, ROWS_AT_ONCE)]


def scores_of(tallies: Iterable[Tally], num_rows: int) -> Scores:
    """Return accuracy and mean loss over ``num_rows`` samples."""
    found = list(tallies)
    right = [each for each, _ in found if each is not None]
    is_answered = len(right) == len(found)
    return Scores(sum(right) / num_rows if is_answered else None, sum(loss for _, loss in found) / num_rows, num_rows)
