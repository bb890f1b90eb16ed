"""Losses against numbers: one a sample, or several, over which they are averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from upcycled.core.errors import POSITIVE, Limits, check_fields
from upcycled.core.objective import TargetKind, like_targets


def _differences(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    outputs = like_targets(outputs, targets)
    return outputs - targets.to(outputs.dtype)


def _mean(losses: torch.Tensor) -> torch.Tensor:
    """Average over the numbers of a sample."""
    return losses if losses.ndim == 1 else losses.flatten(1).mean(1)


def _no_answer(outputs: torch.Tensor, targets: torch.Tensor) -> None:
    return None


def _as_many(targets: int) -> int:
    return targets


@dataclass(frozen=True)
class SquaredError:
    """(z - y)^2, whose best constant answer is the mean.

    >>> SquaredError().per_sample(torch.tensor([[1.0]]), torch.tensor([3.0])).tolist()
    [4.0]
    """

    name: ClassVar[str] = "mse"
    targets: ClassVar[TargetKind] = "numbers"
    num_outputs = staticmethod(_as_many)
    is_right = staticmethod(_no_answer)

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return _mean(_differences(outputs, targets).square())


@dataclass(frozen=True)
class AbsoluteError:
    """|z - y|, whose best constant answer is the median.

    >>> AbsoluteError().per_sample(torch.tensor([[1.0]]), torch.tensor([3.0])).tolist()
    [2.0]
    """

    name: ClassVar[str] = "mae"
    targets: ClassVar[TargetKind] = "numbers"
    num_outputs = staticmethod(_as_many)
    is_right = staticmethod(_no_answer)

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return _mean(_differences(outputs, targets).abs())


@dataclass(frozen=True)
class Huber:
    """(z - y)^2 / 2 up to ``threshold`` away, and linear with slope ``threshold`` beyond.

    >>> Huber(threshold=1.0).per_sample(torch.tensor([[0.5], [3.0]]), torch.tensor([0.0, 0.0])).tolist()
    [0.125, 2.5]
    """

    threshold: Annotated[float, POSITIVE] = 1.0
    """How far away an answer may be before its loss grows linearly."""

    name: ClassVar[str] = "huber"
    targets: ClassVar[TargetKind] = "numbers"
    num_outputs = staticmethod(_as_many)
    is_right = staticmethod(_no_answer)

    def __post_init__(self) -> None:
        check_fields(self)

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        away = _differences(outputs, targets).abs()
        near = away.clamp(max=self.threshold)
        return _mean(near * (away - 0.5 * near))


@dataclass(frozen=True)
class Poisson:
    """exp(z) - y z: counts y >= 0 whose mean is exp(z).

    >>> Poisson().per_sample(torch.tensor([[0.0]]), torch.tensor([2.0])).tolist()
    [1.0]
    """

    name: ClassVar[str] = "poisson"
    targets: ClassVar[TargetKind] = "numbers"
    num_outputs = staticmethod(_as_many)
    is_right = staticmethod(_no_answer)

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        outputs = like_targets(outputs, targets)
        return _mean(outputs.exp() - targets.to(outputs.dtype) * outputs)


@dataclass(frozen=True)
class Quantile:
    """The pinball loss, whose best constant answer is the ``q``-quantile.

    >>> Quantile(q=0.9).per_sample(torch.tensor([[0.0], [0.0]]), torch.tensor([1.0, -1.0])).tolist()
    [0.8999999761581421, 0.10000000149011612]
    """

    q: Annotated[float, Limits(above=0, below=1)] = 0.5
    """Which quantile; 0.5 is the median."""

    name: ClassVar[str] = "quantile"
    targets: ClassVar[TargetKind] = "numbers"
    num_outputs = staticmethod(_as_many)
    is_right = staticmethod(_no_answer)

    def __post_init__(self) -> None:
        check_fields(self)

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        over = _differences(outputs, targets)
        return _mean(torch.maximum((1 - self.q) * over, -self.q * over))
