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

from upcycled._utils.compilation import inlined, kernel
from upcycled._utils.compiled_randomness import mix, unit, write_normals
from upcycled.engines.fused.blocks import DEPTH, listed_outers, square_sum
from upcycled.engines.fused.network import deltas, forward, gather, pad, unpad
from upcycled.engines.fused.simd import nearest
from upcycled.engines.fused.training_kernels import (
    begin_lane,
    clear,
    copy_vector,
    inner_step,
    next_lane,
    outer_step,
    sgd_step,
)
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
    client_key,
)

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)

_LINE = 8
"""float64 numbers in a cache line."""
UNITS = 32
"""Units of a layer that are worked on at once, from products to new parameters."""
# Columns of the table of factors.
LISTED, INPUT_ROWS, COUNTS = 0, 1, 2
"""Where a layer's lists of scaled deltas start, one of DEPTH + 1 a unit; its inputs, a row a sample; lists' lengths."""
# Places in the float64 array.
NORMS, FACTORS = 0, TILE
"""Sums of squares, then factors, of a tile's samples; and one layer's part of them."""
SUMS = 2 * TILE
"""The sums of products, and after them the inputs."""


@dataclass(frozen=True)
class NoisyRoom:
    """What a thread needs beside its work array, for one stack of layers."""

    factors: Ints
    wide: int
    listed: int
    units: int
    numbers: int
    """Numbers of noise in a step: even, since they come in pairs."""

    def new(self) -> tuple[Reals, Reals, Ints, Ints, Reals]:
        """Return sums and inputs; lists of scaled deltas and of whose they are; the lists' lengths; noise."""
        listed, slots = np.zeros(self.listed), np.zeros(self.listed, dtype=np.int64)
        # From a line of the cache on: most numbers are read from it.
        raw = np.zeros(self.wide + _LINE)
        first = -raw.ctypes.data // raw.itemsize % _LINE
        wide = raw[first : first + self.wide]
        return wide, listed, slots, np.zeros(self.units, dtype=np.int64), np.zeros(self.numbers)


def noisy_room(table: Ints, places: Ints, size: int) -> NoisyRoom:
    """Lay out the factors of a stack's products; ``size`` is the number of parameters."""
    factors = np.zeros((len(table), 3), dtype=np.int64)
    wide, units = SUMS + int(places[SIZE]), 0
    for k, layer in enumerate(table):
        factors[k] = units * (DEPTH + 1), wide, units
        wide, units = wide + DEPTH * int(layer[PITCH]), units + int(layer[OUTPUTS])
    # One place a list is never read: what comes after the last number that counts.
    return NoisyRoom(factors, wide, units * (DEPTH + 1), units, size + size % 2)


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
def _list_factors(
    work: Floats,
    table: Ints,
    factors: Ints,
    wide: Reals,
    listed: Reals,
    slots: Ints,
    counts: Ints,
    count: int,
    slot: int,
) -> None:
    """Put a tile's scaled deltas, where they are not zero, and its inputs behind those of the batch's earlier ones."""
    for k in range(table.shape[0]):
        pitch = table[k, PITCH]
        for i in range(table[k, OUTPUTS]):
            unit_of, source = factors[k, COUNTS] + i, table[k, OUTS] + i * TILE
            length, to = counts[unit_of] if slot > 0 else 0, factors[k, LISTED] + i * (DEPTH + 1)
            for s in range(count):
                d, scale = np.float64(work[source + s]), wide[FACTORS + s]
                # No branch: every second one would be guessed wrong.
                listed[to + length] = scale * d
                slots[to + length] = (slot + s) * pitch
                length += 1 if (scale > 0.0) & (d != 0.0) else 0
            counts[unit_of] = length
        for s in range(count):
            source, to = table[k, ACTS] + s * table[k, ROW], factors[k, INPUT_ROWS] + (slot + s) * pitch
            # Zero where the sample's norm is not finite.
            given, kept = work[source : source + pitch], wide[to : to + pitch]
            if wide[FACTORS + s] > 0.0:
                for j in range(pitch):
                    kept[j] = np.float64(given[j])
            else:
                for j in range(pitch):
                    kept[j] = 0.0


@inlined
def _add_products(
    table: Ints, factors: Ints, wide: Reals, listed: Reals, slots: Ints, counts: Ints, adds: bool
) -> None:
    """Sum over a part of a batch that is larger than DEPTH, for all parameters."""
    for k in range(table.shape[0]):
        out, pitch = SUMS + table[k, WEIGHTS], table[k, PITCH]
        lengths = counts[factors[k, COUNTS] :]
        listed_outers(
            *(wide, out, pitch, adds, listed, slots, factors[k, LISTED], lengths, 0, table[k, OUTPUTS]),
            *(wide, factors[k, INPUT_ROWS], pitch),
        )


@inlined
def _finish(
    work: Floats,
    table: Ints,
    k: int,
    first: int,
    last: int,
    wide: Reals,
    sums: int,
    noise: Reals,
    at: int,
    to: int,
    keep: float,
    step: float,
    share: float,
) -> None:
    """v <- keep v + (sum on the grid + noise) share for units ``first`` to ``last`` of a layer; v lies from ``to`` on.

    A step of 0 is no grid and no noise.
    """
    width, pitch = table[k, INPUTS], table[k, PITCH]
    per_step, share = (1.0 / step, share * step) if step > 0.0 else (1.0, share)
    for i in range(first, last):
        v, total, flat = to + i * pitch, sums + (i - first) * pitch, at + table[k, FLAT_WEIGHT] + i * width
        # Parts of arrays, whose indices start at 0: for others the compiler leaves room to count from the end.
        velocity, sum_of = work[v : v + width], wide[total : total + width]
        if step > 0.0:
            drawn = noise[flat : flat + width]
            for j in range(width):
                # The step is a power of two: the division is exact.
                g = np.float32((nearest(sum_of[j] * per_step) + drawn[j]) * share)
                velocity[j] = keep * velocity[j] + g
        else:
            for j in range(width):
                velocity[j] = keep * velocity[j] + np.float32(sum_of[j] * share)
        if table[k, BIAS]:
            bias = wide[total + width]
            if step > 0.0:
                bias = nearest(bias * per_step) + noise[at + table[k, FLAT_BIAS] + i]
            work[v + width] = keep * work[v + width] + np.float32(bias * share)


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
    listed: Reals,
    slots: Ints,
    counts: Ints,
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
    keep = numbers[1] if inner_steps == 0 else _ZERO
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
        for taken in range(begin, min(end, int(gradients[lane]))):
            here = taken if seeded else taken - begin
            count = _flip_coins(seeded, coin_key, coins, here * samples, samples, rate, order)
            kept, is_split = 0, False
            if count == 0:
                counts[:] = 0
            for at in range(0, count, TILE):
                some = min(TILE, count - at)
                gather(work, table, places, x, y, first, order, at, some)
                forward(work, table, places[POINT], some)
                deltas(work, table, places, y, places[POINT], some, _ONE)
                _scale_rows(work, table, wide, some, clip, slack)
                _list_factors(work, table, factors, wide, listed, slots, counts, some, kept)
                kept += some
                if kept == DEPTH and at + TILE < count:
                    _add_products(table, factors, wide, listed, slots, counts, is_split)
                    kept, is_split = 0, True
            where = 0
            if not seeded:
                where = here * pairs
            elif step > 0.0:
                write_normals(noise_key, taken * pairs, size, own_noise)
                for j in range(size):
                    own_noise[j] = nearest(scale * own_noise[j])
            share = 1.0 / (rate * samples)
            # Some units at a time, from products to new parameters: what is summed is still in the cache.
            for k in range(table.shape[0]):
                pitch, units, lengths = table[k, PITCH], table[k, OUTPUTS], counts[factors[k, COUNTS] :]
                for i in range(0, units, UNITS):
                    last = min(units, i + UNITS)
                    begins, ends = table[k, WEIGHTS] + i * pitch, table[k, WEIGHTS] + last * pitch
                    sums = SUMS + (begins if is_split else 0)
                    listed_outers(
                        *(wide, sums, pitch, is_split, listed, slots, factors[k, LISTED], lengths, i, last),
                        *(wide, factors[k, INPUT_ROWS], pitch),
                    )
                    v = places[MOVE] + table[k, WEIGHTS]
                    _finish(work, table, k, i, last, wide, sums, noise, where, v, keep, step, share)
                    if inner_steps == 0:
                        sgd_step(work, places, begins, ends, numbers[0], a, corrected)
                    else:
                        inner_step(work, places, begins, ends, numbers[2], numbers[1], a, corrected)
            if inner_steps > 0 and (taken + 1) % inner_steps == 0:
                outer_step(work, places, 0, numbers[0])
        if inner_steps == 0:
            unpad(work, table, places[POINT], out[lane])
        else:
            unpad(work, table, places[ANCHOR], out[lane])
            unpad(work, table, places[POINT], private[lane])
