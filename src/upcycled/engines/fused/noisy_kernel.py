"""DP-SGD's kernel: clipped and noisy gradients without any sample's gradient being stored.

A sample's gradient by a layer's weights is the outer product of its delta and its input (the 1 beside it for the bias),
and its norm the product of the two norms. So ||g||^2 is a sum over layers of ||delta||^2 ||input||^2, in float64 from
the float32 factors; deltas are then scaled down and one product a layer sums over the batch, in float64.

**What a record can change.** A sample's inputs and deltas are computed in one column or row of its own by instructions
that are the same at every place, so its part has the same bits whatever stands beside it (a test looks at them). A
sample whose norm is not finite is zero in inputs and deltas. A float64 sum of m terms of norm C at most is off by
m 2^-53 m C, with the record and without it: so all are scaled to a norm that much shorter than C, with n for m, and the
sum moves by C at most. Rounding the sum to the grid moves it by g sqrt(D) more, which the mechanism charges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from upcycled.engines.fused.blocks import square_sum, wide_outers
from upcycled.engines.fused.compiled_streams import client_key, mix, unit, write_normals
from upcycled.engines.fused.moreau import inner_step, outer_step
from upcycled.engines.fused.network import deltas, forward, gather, pad, unpad
from upcycled.engines.fused.simd import nearest
from upcycled.engines.fused.train_kernels import begin_lane, clear, copy_vector, next_lane, sgd_step
from upcycled.engines.fused.workspace import (
    ACTS,
    ANCHOR,
    BIAS,
    FLAT_BIAS,
    FLAT_WEIGHT,
    INPUTS,
    LINEAR,
    MOVE,
    OUTPUTS,
    OUTS,
    PITCH,
    POINT,
    ROW,
    SIZE,
    START,
    TILE,
    WEIGHTS,
    Floats,
    Ints,
    Order,
    Reals,
)
from upcycled.support.kernel_cache import inlined, kernel

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)

DEPTH = 2 * TILE
"""Samples that one product sums over: most batches need no second one."""
# Columns of the table of factors; further places in the float64 array.
SCALED, INPUT_ROWS = 0, 1
"""Where a layer's scaled deltas start (float64, one row of DEPTH a unit), and its inputs (float32, one row a sample)."""
NORMS, FACTORS = 0, TILE
"""Sums of squares, then factors, of a tile's samples; and one layer's part of them. The sums of products come after."""
SUMS = 2 * TILE


@dataclass(frozen=True)
class NoisyRoom:
    """What a thread needs beside its work array, for one stack of layers."""

    factors: Ints
    wide: int
    rows: int
    numbers: int
    """Numbers of noise in a step: even, since they come in pairs."""

    def new(self) -> tuple[Reals, Floats, Reals]:
        """Return sums and scaled deltas, inputs, and noise."""
        return np.zeros(self.wide), np.zeros(self.rows, dtype=np.float32), np.zeros(self.numbers)


def noisy_room(table: Ints, places: Ints, size: int) -> NoisyRoom:
    """Lay out the factors of a stack's products; ``size`` is the number of parameters."""
    factors = np.zeros((len(table), 2), dtype=np.int64)
    wide, rows = SUMS + int(places[SIZE]), 0
    for k, layer in enumerate(table):
        factors[k] = wide, rows
        wide, rows = wide + DEPTH * int(layer[OUTPUTS]), rows + DEPTH * int(layer[ROW])
    return NoisyRoom(factors, wide, rows, size + size % 2)


@inlined
def _flip_coins(seeded: bool, key: np.uint64, coins: Reals, first: int, samples: int, rate: float, order: Order) -> int:
    """Write the rows that coins ``first`` to ``first + samples`` choose, in order; return how many."""
    count = 0
    for i in range(samples):
        u = unit(mix(key + mix(np.uint64(first + i)))) if seeded else coins[first + i]
        order[count] = i
        count += 1 if u < rate else 0
    return count


@inlined
def _scale_rows(work: Floats, table: Ints, wide: Reals, count: int, clip: float, slack: float) -> None:
    """Write each sample's factor 1 / max(1, norm / clip): 0 where the norm is not finite."""
    for s in range(TILE):
        wide[NORMS + s] = 0.0
    for k in range(table.shape[0]):
        for s in range(TILE):
            wide[FACTORS + s] = 0.0
        for i in range(table[k, OUTPUTS]):
            at = table[k, OUTS] + i * TILE
            for s in range(TILE):
                d = np.float64(work[at + s])
                wide[FACTORS + s] += d * d
        for s in range(count):
            # The 1 that the bias is multiplied with is among the inputs.
            inputs = square_sum(work, table[k, ACTS] + s * table[k, ROW], table[k, PITCH])
            wide[NORMS + s] += wide[FACTORS + s] * inputs
    for s in range(count):
        norm = np.sqrt(wide[NORMS + s]) * slack
        wide[FACTORS + s] = 1.0 / max(1.0, norm / clip) if norm < np.inf else 0.0


@inlined
def _keep_factors(
    work: Floats, table: Ints, factors: Ints, wide: Reals, inputs: Floats, count: int, slot: int
) -> None:
    """Put scaled deltas and inputs of a tile behind those of the batch's earlier ones."""
    for k in range(table.shape[0]):
        for i in range(table[k, OUTPUTS]):
            source, to = table[k, OUTS] + i * TILE, factors[k, SCALED] + i * DEPTH + slot
            for s in range(count):
                scale = wide[FACTORS + s]
                wide[to + s] = scale * np.float64(work[source + s]) if scale > 0.0 else 0.0
        for s in range(count):
            source, to = table[k, ACTS] + s * table[k, ROW], factors[k, INPUT_ROWS] + (slot + s) * table[k, ROW]
            is_finite = wide[FACTORS + s] > 0.0
            for j in range(table[k, PITCH]):
                inputs[to + j] = work[source + j] if is_finite else _ZERO


@inlined
def _add_products(table: Ints, factors: Ints, wide: Reals, inputs: Floats, depth: int, adds: bool) -> None:
    for k in range(table.shape[0]):
        out, left, right = SUMS + table[k, WEIGHTS], factors[k, SCALED], factors[k, INPUT_ROWS]
        pitch, units = table[k, PITCH], table[k, OUTPUTS]
        wide_outers(wide, out, pitch, adds, wide, left, DEPTH, inputs, right, table[k, ROW], units, pitch, depth)


@inlined
def _finish(
    work: Floats, table: Ints, places: Ints, wide: Reals, noise: Reals, at: int, keep: float, step: float, share: float
) -> None:
    """MOVE <- keep MOVE + (sum on the grid + noise) share; a step of 0 is no grid and no noise."""
    # A power of two: the division is exact.
    per_step, share = (1.0 / step, share * step) if step > 0.0 else (1.0, share)
    for k in range(table.shape[0]):
        width = table[k, INPUTS]
        for i in range(table[k, OUTPUTS]):
            row = table[k, WEIGHTS] + i * table[k, PITCH]
            to, sums, flat = places[MOVE] + row, SUMS + row, at + table[k, FLAT_WEIGHT] + i * width
            if step > 0.0:
                for j in range(width):
                    g = np.float32((nearest(wide[sums + j] * per_step) + noise[flat + j]) * share)
                    work[to + j] = keep * work[to + j] + g
            else:
                for j in range(width):
                    work[to + j] = keep * work[to + j] + np.float32(wide[sums + j] * share)
            if table[k, BIAS]:
                total = wide[sums + width]
                if step > 0.0:
                    total = nearest(total * per_step) + noise[at + table[k, FLAT_BIAS] + i]
                work[to + width] = keep * work[to + width] + np.float32(total * share)


@kernel
def train_noisy(
    queue: Ints,
    lanes: Ints,
    x: Floats,
    y: Ints,
    offsets: Ints,
    rows: Ints,
    clients: Ints,
    gradients: Ints,
    begin: int,
    end: int,
    seeded: bool,
    keys: Ints,
    coins: Reals,
    given_noise: Reals,
    rates: Reals,
    steps: Reals,
    scales: Reals,
    clip: float,
    inner_steps: int,
    numbers: Floats,
    model: Floats,
    a: float,
    b: Floats,
    factors: Ints,
    table: Ints,
    places: Ints,
    work: Floats,
    order: Order,
    wide: Reals,
    inputs: Floats,
    own_noise: Reals,
    faults: Ints,
    out: Floats,
    private: Floats,
) -> None:
    """Take each lane's noisy gradients ``begin`` to ``end`` (all it has, if fewer); those before it left in ``work``.

    ``seeded``: coins and noise are those of the streams with these round keys; else they are given from ``begin`` on,
    for the one lane that there is. ``steps`` are the grids', ``scales`` the noise's in steps of them. ``inner_steps`` 0
    is SGD, ``numbers`` lr and momentum; else the Moreau envelope's, with lr lam, lam and inner_lr.
    """
    size = out.shape[1]
    pairs = size + size % 2
    noise = own_noise if seeded else given_noise
    corrected = a != _ZERO or b.shape[0] > 0
    if begin == 0:
        pad(work, table, model, places[START])
        clear(work, places[SIZE], places[LINEAR])
    while True:
        lane = next_lane(queue, lanes, y, offsets, rows, places, faults)
        if lane < 0:
            break
        first = offsets[rows[lane]]
        samples = offsets[rows[lane] + 1] - first
        if begin == 0:
            begin_lane(work, table, places, b, lane)
            copy_vector(work, places[SIZE], places[START], places[ANCHOR])
        coin_key, noise_key = client_key(keys[0], clients[lane]), client_key(keys[1], clients[lane])
        slack = 1.0 + (size + 8) * 2.0**-52 + (samples + 8.0) * (samples + 8.0) * 2.0**-51
        rate, step, scale = rates[lane], steps[lane], scales[lane]
        for taken in range(begin, min(end, gradients[lane])):
            here = taken if seeded else taken - begin
            count = _flip_coins(seeded, coin_key, coins, here * samples, samples, rate, order)
            kept, adds = 0, False
            for at in range(0, count, TILE):
                some = min(TILE, count - at)
                gather(work, table, places, x, y, first, order, at, some)
                forward(work, table, places[POINT], some)
                deltas(work, table, places, places[POINT], some, _ONE)
                _scale_rows(work, table, wide, some, clip, slack)
                _keep_factors(work, table, factors, wide, inputs, some, kept)
                kept += some
                if kept == DEPTH:
                    _add_products(table, factors, wide, inputs, kept, adds)
                    kept, adds = 0, True
            if kept > 0 or not adds:
                _add_products(table, factors, wide, inputs, kept, adds)
            where = 0
            if not seeded:
                where = here * pairs
            elif step > 0.0:
                write_normals(noise_key, taken * pairs, size, own_noise)
                for j in range(size):
                    own_noise[j] = nearest(scale * own_noise[j])
            share = 1.0 / (rate * samples)
            if inner_steps == 0:
                _finish(work, table, places, wide, noise, where, numbers[1], step, share)
                sgd_step(work, places, numbers[0], a, corrected)
            else:
                _finish(work, table, places, wide, noise, where, _ZERO, step, share)
                inner_step(work, places, 0, numbers[2], numbers[1], a, corrected)
                if (taken + 1) % inner_steps == 0:
                    outer_step(work, places, 0, numbers[0])
        if inner_steps == 0:
            unpad(work, table, places[POINT], out[lane])
        else:
            unpad(work, table, places[ANCHOR], out[lane])
            unpad(work, table, places[POINT], private[lane])
