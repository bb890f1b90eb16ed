"""Answers of ``upcycled privacy epsilon``: each number with its meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from upcycled import privacy as dp

Values: TypeAlias = Mapping[str, Any]

PROVEN = "one record replaced (replace-one), against whoever sees every release; fixed schedule"
PAPER = "the paper's formula, not proven"


@dataclass(frozen=True)
class Number:
    """One number of an answer, and what it is."""

    name: str
    value: float
    words: str
    is_proven: bool = True


def _gaussian_of(values: Values, sensitivity: float, words: str) -> Number:
    """Answer with the exact Gaussian formula for a known sensitivity."""
    about = f"{words}; exact for Gaussian noise; {PROVEN}"
    given = {name: values[name] for name in ("rounds", "noise_std", "epsilon", "delta") if name in values}
    if "epsilon" in given:
        return Number("delta", float(dp.gaussian_delta(sensitivity=sensitivity, **given)), about)
    return Number("epsilon", float(dp.gaussian_epsilon(sensitivity=sensitivity, **given)), about)


def gaussian(values: Values) -> list[Number]:
    """Known sensitivity."""
    return [_gaussian_of(values, values["sensitivity"], "for the sensitivity given, the user's word")]


def paper_output(values: Values) -> list[Number]:
    """The paper's first theorem, beside what clipping guarantees."""
    clip, n = values["clip_norm"], values["n"]
    words = f"{PAPER}: it assumes that one record moves the clipped model by clip_norm/n"
    if "epsilon" in values:
        paper = Number("paper_delta", float(dp.paper_delta(**values)), words, False)
    else:
        paper = Number("paper_epsilon", float(dp.paper_epsilon(**values)), words, False)
    mean = _gaussian_of(values, 2 * clip / n, "what replace-one costs under the paper's own assumption")
    return [
        _gaussian_of(values, 2 * clip, "what clipping guarantees: sensitivity 2 clip_norm, whatever n is"),
        paper,
        Number(f"{mean.name}_if_assumed", mean.value, f"{mean.words}; the assumption is not proven", False),
    ]


def sampled(values: Values) -> list[Number]:
    """DP-SGD."""
    is_replace = values.get("adjacency", "replace") == "replace"
    meaning = PROVEN if is_replace else "one record added or removed, NOT this package's epsilon"
    words = f"secret Poisson batches, an upper bound by privacy loss distributions; {meaning}"
    return [Number("epsilon", dp.sampled_gaussian_epsilon(**values), words)]


ANSWERS: dict[str, Callable[[Values], list[Number]]] = {
    "gaussian": gaussian,
    "paper-output": paper_output,
    "sampled": sampled,
}
"""The answer of each formula that the command line knows; its numbers are checked by the accounting functions."""
