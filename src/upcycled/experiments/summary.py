"""``summary.json`` of a seed: which of its values other code relies on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict

from upcycled.support.files import check_format, read_json, reading

Number: TypeAlias = float | None
"""None where it was not measured, is not finite, or is the data holder's own."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Epsilon(_Part):
    max: Number
    median: Number


class _Repeats(_Part):
    charges: int
    epsilon_without: Number


class _Privacy(_Part):
    noise: str
    delta: float
    epsilon: _Epsilon
    repeats: _Repeats | None
    mechanism: str
    as_planned: bool
    scope: str


class _Summary(_Part):
    seed: int
    accuracy: Number
    loss: Number
    data_rounds: int
    iterations: int
    messages: Number
    bytes: Number
    gradient_steps: Number
    seconds: Number
    data: dict[str, Any]
    privacy: _Privacy | None
    error: str | None
    metrics: dict[str, Number]
    charged_scores: dict[str, Number] = {}
    baseline: dict[str, Number] | None
    notes: list[str]
    code: dict[str, str]


def read_summary(path: Path) -> dict[str, Any]:
    """Return a seed's summary, whose values have the types that other code relies on.

    Raises:
        DamagedError: if the file cannot be read, or is damaged.
        InputError: if another version wrote it.
    """
    expected = "the summary of a finished seed"
    summary = read_json(path, expected)
    check_format(summary, path)
    with reading(path, expected):
        _Summary.model_validate(summary)
    return summary
