"""The samplers' inner loops. Imported where noise is drawn for the first time: Numba takes a while."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from upcycled._utils.compilation import inlined, kernel, prepare
from upcycled._utils.compiled_randomness import write_normals
from upcycled.core.randomness import Words
from upcycled.core.vectors import Real

# Numba turns uint64 with int64 into float64, so every number that meets a word is unsigned.
_ZERO, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)
_48, _56, _63 = np.uint64(48), np.uint64(56), np.uint64(63)
_IN_COLUMN = np.uint64((1 << 56) - 1)
_OFFSET = np.uint64((1 << 15) - 1)
_BELOW = np.uint64((1 << 48) - 1)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@kernel
def gaussian_row(
    out: Real,
    done: int,
    words: Words,
    position: int,
    thresholds: Words,
    outcomes: NDArray[np.int16],
    narrow: float,
    wide: float,
) -> tuple[int, int]:
    """Write discrete Gaussian integers to out[done:]; return how many are there, and how many words were used.

    A trial takes a word for each table that it passes and one more. It only begins where there are words enough for the
    longest: a trial given up for want of words would make what takes many of them rarer.
    """
    last = words.size - thresholds.shape[0] - 1
    while done < out.size and position <= last:
        block, table = np.int64(-1), 0
        while block < 0:
            word = words[position]
            position += 1
            column = np.int64(word >> _56)
            side = 0 if (word & _IN_COLUMN) < thresholds[table, column] else 1
            block = np.int64(outcomes[table, column, side])
            table += 1
        word = words[position]
        position += 1
        offset = np.int64((word >> _48) & _OFFSET)
        uniform = (np.float64(word & _BELOW) + 0.5) * 2.0**-48
        start = block << 15
        x = np.float64(offset * (2 * start + offset)) * narrow + np.float64(start * start) * wide
        if uniform >= 1.0 - x and uniform >= np.exp(-x):
            continue
        value = np.float64(start + offset)
        if word >> _63 == _ONE:
            if value == 0.0:
                continue
            value = -value
        out[done] = value
        done += 1
    return done, position


@inlined
def _below(words: Words, position: int, bound: np.uint64) -> tuple[np.uint64, int]:
    """Return an integer below a bound, each as likely, and the next position; past the end of the words: -1."""
    least = (_ALL - bound + _ONE) % bound  # 2^64 mod bound: so many words are one too many
    value = _ZERO
    while True:
        if position < 0 or position >= words.size:
            position = -1
            break
        word = words[position]
        position += 1
        if word >= least:
            value = word % bound
            break
    return value, position


@inlined
def _survives(words: Words, position: int, part: np.uint64, whole: np.uint64) -> tuple[bool, int]:
    """Flip a coin of probability exp(-part/whole), part <= whole, exactly: the first k that fails at part/(whole k)."""
    k = _ONE
    while True:
        value, position = _below(words, position, whole * k)
        if position < 0 or value >= part:
            break
        k += _ONE
    return k % _TWO == _ONE, position


@kernel
def laplace_row(out: Real, done: int, words: Words, position: int, scale: np.uint64) -> tuple[int, int]:
    """Write discrete Laplace integers to out[done:]; return how many are there, and where the next trial begins.

    A trial that meets the end of the words is to be tried again with the same words and more behind them.
    """
    while done < out.size:
        offset, now = _below(words, position, scale)
        kept, now = _survives(words, now, offset, scale)
        if now >= 0 and not kept:
            position = now
            continue
        turns = _ZERO
        again = True
        while again and now >= 0:
            again, now = _survives(words, now, scale, scale)
            if again:
                turns += _ONE
        sign, now = _below(words, now, _TWO)
        if now < 0:
            break
        position = now
        value = np.float64(offset + scale * turns)
        if sign == _ONE:
            if value == 0.0:
                continue
            value = -value
        out[done] = value
        done += 1
    return done, position


@kernel
def normal_rows(keys: Words, start: int, out: Real) -> None:
    """Write core.randomness.normals(keys, count, start) into rows of an even length."""
    for i in range(keys.size):
        write_normals(keys[i], start, out.shape[1], out[i])


def _warm() -> None:
    nothing, words = np.zeros(0), np.zeros(1, dtype=np.uint64)
    gaussian_row(nothing, 0, words, 0, words[None, :], np.zeros((1, 1, 2), dtype=np.int16), 1.0, 1.0)
    laplace_row(nothing, 0, words, 0, np.uint64(1))
    normal_rows(words, 0, np.zeros((1, 2)))


prepare(_warm, "the noise samplers")
