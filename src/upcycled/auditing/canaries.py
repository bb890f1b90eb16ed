"""Neighbouring data sets that are hard to keep apart secret: canaries, records made to move a release far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upcycled.core.objective import TargetKind
from upcycled.core.shards import Shards
from upcycled.core.vectors import Real, Vector

SCALES = (1.0, 1e2, 1e4)
"""Lengths of canaries, in units of the client's longest record; mechanisms that project make them equal."""

FAR = 1e4
"""Targets that are numbers lie so far on either side, in units of the client's largest."""

_MOST_FEATURES = 2_000
"""Beyond this a direction is drawn, not computed from the client's records."""


@dataclass(frozen=True)
class Pair:
    """Two records: the worlds differ in which of them a client holds."""

    x: tuple[Vector, Vector]
    y: tuple[Any, Any]
    """Classes, or labels or numbers as the data have them."""


def pairs(
    train: Shards, client: int, targets: TargetKind, num_classes: int, start: Vector, is_linear: bool
) -> Iterator[Pair]:
    """Yield pairs of records with opposite targets, for a client that is sent the model ``start``.

    A linear model's own weights are kept out of a direction: it is then undecided about the canary however long that
    is, and either label moves it as far.
    """
    x, y = train.client(client)
    opposite: tuple[Any, Any] = (0, 1)
    if targets == "classes":
        yield Pair((x[0], x[0]), (int(y[0]), (int(y[0]) + 1) % num_classes))
    else:
        far = 1.0 if targets == "labels" else FAR * max(1.0, float(np.nan_to_num(np.abs(y)).max()))
        opposite = (0.0 if targets == "labels" else -far, far)
        yield Pair((x[0], x[0]), opposite)
    if not np.issubdtype(x.dtype, np.floating):
        return  # words of a vocabulary cannot be scaled
    records = x.reshape(len(x), -1).astype(np.float64)
    records = np.where(np.isfinite(records), records, 0.0)
    width = records.shape[1]
    longest = max(float(np.linalg.norm(records, axis=1).max()), 1.0)
    weights = start[: start.size // width * width].reshape(-1, width) if is_linear else np.zeros((1, width))
    for direction in _directions(records, weights.astype(np.float64), client):
        for scale in SCALES:
            canary = (scale * longest * direction).reshape(x.shape[1:]).astype(x.dtype)
            yield Pair((canary, canary), opposite)


def with_records(train: Shards, chosen: Mapping[int, Pair], coins: Sequence[int], whole: bool = False) -> Shards:
    """Return the data with each client's first record (all with ``whole``) replaced by the one its coin says."""
    x, y = np.array(train.x), np.array(train.y)
    for (client, pair), coin in zip(chosen.items(), coins, strict=True):
        first = int(train.offsets[client])
        rows = slice(first, int(train.offsets[client + 1]) if whole else first + 1)
        x[rows], y[rows] = pair.x[coin], pair.y[coin]
    return replace(train, x=x, y=y)


def _directions(records: Real, weights: Real, seed: int) -> Iterator[Real]:
    """Yield a direction that nobody could guess, and the one that the other records use least and weights not at all.

    What the other records hardly use they do not hold back.
    """
    width = records.shape[1]
    drawn = np.random.default_rng(seed).normal(size=width)
    yield np.divide(drawn, np.linalg.norm(drawn))
    if width > _MOST_FEATURES or width <= len(weights):
        return
    # Full QR: the first columns span the weights, the others what they leave free.
    free = np.linalg.qr(weights.T, mode="complete")[0][:, len(weights) :]
    used = records[1:] @ free
    yield free @ np.linalg.eigh(used.T @ used)[1][:, 0]
