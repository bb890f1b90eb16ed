"""Which clients share a stack, and which rows each of them reads in each step.

A lane is one client's local work in a stack of clients. Everything about a lane (its width, its batches) is a
function of its own client, never of its company: so a client's result does not depend on who trains beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from upcycled.core.solvers import LocalSGD
from upcycled.core.streams import Words, permutations, words
from upcycled.core.vectors import Ints

FLOATS_ON_CPU = 2**22
"""The most parameters, or features of a batch, in one stack: more lanes share a call, fewer stay in the cache."""
FLOATS_ON_DEVICE = 2**28
"""The same where memory is the only limit; not measured."""
LANES_AT_ONCE = 256

FEW_ROWS = 64
"""Permutations below which the plain loop over one client beats the loop over columns."""


@dataclass(frozen=True)
class Schedule:
    """What every lane of a stack reads, step by step."""

    rows: Ints
    """Rows of the lane's own samples (steps, lanes, width); padding reads the lane's first row."""
    weights: NDArray[np.float32]
    """1/m for the m samples of a minibatch and 0 for padding (steps, lanes, width)."""


def width_of(samples: int, batch_size: int | None) -> int:
    """Return how many rows a lane reads at once: its batch, on a ladder of few sizes; at most a third is padding.

    A client with at least ``batch_size`` samples has exactly that width.

    >>> [width_of(n, 32) for n in (1, 5, 9, 25, 33)], [width_of(n, None) for n in (25, 33, 50)]
    ([1, 6, 12, 32, 32], [32, 48, 64])
    """
    rows = samples if batch_size is None else min(samples, batch_size)
    if rows < 3:
        return rows
    power = 1 << (rows - 1).bit_length()
    step = power * 3 // 4 if rows <= power * 3 // 4 else power
    return step if batch_size is None else min(step, batch_size)


def stacks_of(
    samples: Ints, steps: Ints, batch_size: int | None, size: int, features: int, device: str
) -> Iterator[tuple[int, Ints]]:
    """Yield (width, places in the cohort) of each stack: equal widths together, most steps first.

    Lanes that end together lie together, so that a stack's finished lanes are always its last ones. Clients without
    samples are left out.
    """
    widths = np.array([width_of(n, batch_size) for n in samples.tolist()])
    for width in np.unique(widths[widths > 0]).tolist():
        places = np.flatnonzero(widths == width)
        places = places[np.argsort(-steps[places], kind="stable")]
        floats = FLOATS_ON_CPU if device == "cpu" else FLOATS_ON_DEVICE
        most = max(2, min(LANES_AT_ONCE, floats // max(size, width * features)))
        for first in range(0, len(places), most):
            yield width, places[first : first + most]


def schedule_of(keys: Words, samples: Ints, steps: Ints, local: LocalSGD, width: int) -> Schedule:
    """Lay out the minibatches of a stack's lanes: core's permutations, cut into batches, padded to ``width``."""
    most = int(steps.max()) if local.batch_size is not None else 1
    rows = np.zeros((most, len(keys), width), dtype=np.int64)
    weights = np.zeros(rows.shape, dtype=np.float32)
    for n in np.unique(samples).tolist():
        lanes = np.flatnonzero(samples == n)
        batch = local.batch_for(n)
        per_epoch = -(-n // batch)
        epochs = -(-int(steps[lanes].max()) // per_epoch) if local.batch_size is not None else 1
        order = np.arange(n)[None, None, :] if local.batch_size is None else orders_of(keys[lanes], n, epochs)
        # One row for each minibatch; the places of a short last one that are left over stay zero.
        cut = np.zeros((len(lanes), epochs, per_epoch * batch), dtype=np.int64)
        cut[:, :, :n] = order
        count = np.full(per_epoch, batch)
        count[-1] = n - batch * (per_epoch - 1)
        share = (np.arange(width) < count[:, None]) / count[:, None].astype(np.float32)
        rows[: epochs * per_epoch, lanes, :batch] = cut.reshape(len(lanes), -1, batch).transpose(1, 0, 2)
        weights[: epochs * per_epoch, lanes] = np.tile(share, (epochs, 1))[:, None, :]
    return Schedule(rows, weights)


def orders_of(keys: Words, size: int, epochs: int) -> Ints:
    """Return core's permutations for many clients of one size, shape (clients, epochs, size).

    >>> keys = np.arange(7, dtype=np.uint64)
    >>> np.array_equal(orders_of(keys, 5, 10)[3], permutations(int(keys[3]), 5, 10))
    True
    """
    if len(keys) * epochs < FEW_ROWS:
        return np.stack([permutations(int(key), size, epochs) for key in keys])
    drawn = words(keys, epochs * size).reshape(len(keys) * epochs, size) >> np.uint64(32)
    bounds = np.arange(1, size + 1, dtype=np.uint64)
    targets = np.ascontiguousarray(((drawn * bounds) >> np.uint64(32)).astype(np.int64).T)
    # Fisher-Yates on all permutations at once: place i of every one of them in one go.
    order = np.repeat(np.arange(size)[:, None], len(keys) * epochs, axis=1)
    columns = np.arange(len(keys) * epochs)
    for i in range(size - 1, 0, -1):
        there = order[targets[i], columns]
        order[targets[i], columns] = order[i]
        order[i] = there
    return np.ascontiguousarray(order.T).reshape(len(keys), epochs, size)
