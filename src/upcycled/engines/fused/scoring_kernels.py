"""Accuracy and cross-entropy of one model on many rows, or of many clients' own models on their own rows.

The rows are cut into parts that depend on the data alone, and each part has its own sums, so the scores do not
depend on the number of threads.
"""

from __future__ import annotations

import numpy as np

from upcycled._utils.compilation import compiled, inlined, kernel
from upcycled.engines.fused.network import exponentials, forward, gather, pad
from upcycled.engines.fused.simd import store, take
from upcycled.engines.fused.workspace import (
    BINARY,
    CLASSES,
    CROSS_ENTROPY,
    DOUBLE_SOFTMAX,
    LABELS,
    LANES,
    LOSS,
    OUTPUTS,
    OUTS,
    POINT,
    SQUARED,
    START,
    THRESHOLD,
    TILE,
    TOPS,
    TOTALS,
    Floats,
    Ints,
    Order,
)


@inlined
def _other(work: Floats, table: Ints, places: Ints, count: int) -> tuple[int, float]:
    """Return the hits and the summed loss of a tile, for losses other than cross-entropy; numbers have no hits."""
    last, kind = table.shape[0] - 1, places[LOSS]
    outs, outputs, labels = table[last, OUTS], table[last, OUTPUTS], places[LABELS]
    threshold = np.float64(work[places[THRESHOLD]])
    hits, loss = 0, 0.0
    for k in range(outputs):
        for s in range(count):
            z, target = np.float64(work[outs + k * TILE + s]), np.float64(work[labels + k * TILE + s])
            if kind == BINARY:
                hits += (z > 0) == (target > 0)
                loss += max(z, 0.0) - z * target + np.log1p(np.exp(-abs(z)))
            elif kind == SQUARED:
                loss += (z - target) ** 2
            else:
                away = abs(z - target)
                near = min(away, threshold)
                loss += near * (away - 0.5 * near)
    return hits, loss / outputs


@inlined
def _probabilities(work: Floats, table: Ints, places: Ints, count: int) -> tuple[int, float]:
    """Return them for the cross-entropy of probabilities taken for logits; the first of equal logits wins."""
    last = table.shape[0] - 1
    logits, classes = table[last, OUTS], table[last, OUTPUTS]
    hits, loss = 0, 0.0
    for s in range(count):
        label, best, total, outer = np.int64(work[places[LABELS] + s]), 0, 0.0, 0.0
        for k in range(1, classes):
            if work[logits + k * TILE + s] > work[logits + best * TILE + s]:
                best = k
        hits += best == label
        top = np.float64(work[logits + best * TILE + s])
        for k in range(classes):
            total += np.exp(np.float64(work[logits + k * TILE + s]) - top)
        for k in range(classes):
            outer += np.exp(np.exp(np.float64(work[logits + k * TILE + s]) - top) / total)
        loss += np.log(outer) - np.exp(np.float64(work[logits + label * TILE + s]) - top) / total
    return hits, loss


@inlined
def _classes(work: Floats, table: Ints, places: Ints, count: int) -> tuple[int, float]:
    """Return them for cross-entropy; the first of equal logits wins."""
    last = table.shape[0] - 1
    logits, classes = table[last, OUTS], table[last, OUTPUTS]
    hits, loss = 0, 0.0
    for s in range(count):
        label, best = np.int64(work[places[LABELS] + s]), 0
        for k in range(1, classes):
            if work[logits + k * TILE + s] > work[logits + best * TILE + s]:
                best = k
        hits += best == label
        loss -= np.float64(work[logits + label * TILE + s])
    for s in range(0, count, LANES):
        top, total = exponentials(work, table, s)
        store(work, places[TOPS] + s, top)
        store(work, places[TOTALS] + s, total)
    for s in range(count):
        loss += np.float64(work[places[TOPS] + s]) + np.log(np.float64(work[places[TOTALS] + s]))
    return hits, loss


@inlined
def _tile(work: Floats, table: Ints, places: Ints, count: int) -> tuple[int, float]:
    """Return the hits and the summed loss of a tile whose outputs are there."""
    hits, loss = 0, 0.0
    if places[LOSS] == CROSS_ENTROPY:
        hits, loss = _classes(work, table, places, count)
    elif places[LOSS] == DOUBLE_SOFTMAX:
        hits, loss = _probabilities(work, table, places, count)
    else:
        hits, loss = _other(work, table, places, count)
    return hits, loss


@compiled
def _rows(
    work: Floats, table: Ints, places: Ints, theta: int, x: Floats, y: Ints, first: int, last: int, order: Order
) -> tuple[int, float]:
    """Return the hits and the summed loss over rows first .. last - 1; -1 hits if a label is not a class."""
    classes = places[CLASSES]
    hits, loss = 0, 0.0
    for at in range(first, last, TILE):
        count = min(TILE, last - at)
        for s in range(count if classes > 0 else 0):
            if y[at + s] < 0 or y[at + s] >= classes:
                return -1, 0.0
        gather(work, table, places, x, y, at, order, 0, count)
        forward(work, table, theta, count)
        more, lost = _tile(work, table, places, count)
        hits += more
        loss += lost
    return hits, loss


@kernel
def score_rows(
    queue: Ints,
    bounds: Ints,
    x: Floats,
    y: Ints,
    model: Floats,
    table: Ints,
    places: Ints,
    work: Floats,
    order: Order,
    hits: Ints,
    losses: Floats,
) -> None:
    """Score one model: part p is rows bounds[p] .. bounds[p + 1] - 1."""
    pad(work, table, model, places[START])
    for s in range(TILE):
        order[s] = s
    while True:
        part = take(queue)
        if part >= hits.size:
            break
        hits[part], losses[part] = _rows(
            work, table, places, places[START], x, y, bounds[part], bounds[part + 1], order
        )


@kernel
def score_clients(
    queue: Ints,
    bounds: Ints,
    x: Floats,
    y: Ints,
    offsets: Ints,
    slots: Ints,
    personal: Floats,
    model: Floats,
    table: Ints,
    places: Ints,
    work: Floats,
    order: Order,
    hits: Ints,
    losses: Floats,
) -> None:
    """Score each client's model personal[slots[client]], or the common one at slot -1, on the client's own rows.

    Part p is clients bounds[p] .. bounds[p + 1] - 1.
    """
    pad(work, table, model, places[START])
    for s in range(TILE):
        order[s] = s
    while True:
        part = take(queue)
        if part >= hits.size:
            break
        for client in range(bounds[part], bounds[part + 1]):
            theta = places[START]
            if slots[client] >= 0 and offsets[client + 1] > offsets[client]:
                theta = places[POINT]
                pad(work, table, personal[slots[client]], theta)
            more, lost = _rows(work, table, places, theta, x, y, offsets[client], offsets[client + 1], order)
            if more < 0:
                hits[part] = -1
                break
            hits[part] += more
            losses[part] += lost
