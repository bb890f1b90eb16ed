"""Learning rates over data rounds: ``up.schedules``. A user's own is any function (m, M) -> rate, with m = 1 .. M."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from upcycled.core.errors import COUNT, NOT_NEGATIVE, POSITIVE, Limits, check_fields

__all__ = ["Cosine", "StepDecay", "Warmup"]

_FACTOR = Limits(above=0, at_most=1)


@dataclass(frozen=True)
class StepDecay:
    """Multiply the rate by ``factor`` after every ``every`` data rounds.

    Args:
        lr: the rate of the first data round.
        every: after how many data rounds it shrinks.
        factor: what it is multiplied by.

    >>> [StepDecay(0.4, every=2, factor=0.5)(m, 5) for m in (1, 2, 3, 5)]
    [0.4, 0.4, 0.2, 0.1]
    """

    lr: Annotated[float, POSITIVE]
    every: Annotated[int, COUNT]
    factor: Annotated[float, _FACTOR] = 0.1

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, round: int, rounds: int) -> float:
        return self.lr * self.factor ** ((round - 1) // self.every)


@dataclass(frozen=True)
class Cosine:
    """Rise to ``lr`` over the first ``warmup`` data rounds, then fall along a cosine to ``final`` in the last one.

    Args:
        lr: the largest rate.
        final: the rate of the last data round; 0 means that the round after the last would have none.
        warmup: data rounds before the first with the largest rate.

    >>> [round(Cosine(0.4, final=0.1, warmup=2)(m, 5), 4) for m in (1, 2, 3, 5)]
    [0.1333, 0.2667, 0.4, 0.1]
    """

    lr: Annotated[float, POSITIVE]
    final: Annotated[float, NOT_NEGATIVE] = 0.0
    warmup: Annotated[int, Limits(at_least=0, integer=True)] = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, round: int, rounds: int) -> float:
        if round <= self.warmup:
            return self.lr * round / (self.warmup + 1)
        # One more than the rounds that fall where it would end at zero, so that the last one still learns.
        length = rounds - self.warmup - 1 + (self.final == 0)
        part = (round - self.warmup - 1) / max(1, length)
        return self.final + (self.lr - self.final) * (1 + math.cos(math.pi * part)) / 2


@dataclass(frozen=True)
class Warmup:
    """Rise to ``lr`` over the first ``warmup`` data rounds and stay there.

    Args:
        lr: the rate in the end.
        warmup: data rounds before the first with that rate.

    >>> [round(Warmup(0.4, warmup=3)(m, 9), 4) for m in (1, 3, 4, 9)]
    [0.1, 0.3, 0.4, 0.4]
    """

    lr: Annotated[float, POSITIVE]
    warmup: Annotated[int, COUNT]

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, round: int, rounds: int) -> float:
        return self.lr * min(1.0, round / (self.warmup + 1))


SCHEDULES: dict[str, type[StepDecay | Cosine | Warmup]] = {"cosine": Cosine, "step": StepDecay, "warmup": Warmup}
"""By the names that files have for them."""
