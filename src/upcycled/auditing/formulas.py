"""Answers of ``upcycled privacy epsilon|noise|rounds``: each number with its meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from upcycled import privacy as dp

Question: TypeAlias = Literal["epsilon", "noise", "rounds"]
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


def _pick(values: Values, names: Iterable[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _gaussian_of(question: Question, values: Values, sensitivity: float, words: str) -> Number:
    """Answer with the exact Gaussian formula for a known sensitivity."""
    about = f"{words}; exact for Gaussian noise; {PROVEN}"
    given = _pick(values, ("rounds", "noise_std", "epsilon", "delta")) | {"sensitivity": sensitivity}
    if question == "noise":
        return Number("noise_std", float(dp.gaussian_noise_std(**given)), about)
    if question == "rounds":
        budget = (given.pop("epsilon"), given.pop("delta"))
        most = dp.rounds_within(budget=budget, **given)
        return Number("rounds", int(most), f"{about}; upcycled iterations come on top, free")
    if "epsilon" in given:
        return Number("delta", float(dp.gaussian_delta(**given)), about)
    return Number("epsilon", float(dp.gaussian_epsilon(**given)), about)


def gaussian(question: Question, values: Values) -> list[Number]:
    """Known sensitivity."""
    return [_gaussian_of(question, values, values["sensitivity"], "for the sensitivity given, the user's word")]


def paper_output(question: Question, values: Values) -> list[Number]:
    """The paper's first theorem, beside what clipping guarantees."""
    clip, n = values["clip_norm"], values["n"]
    words = f"{PAPER}: it assumes that one record moves the clipped model by clip_norm/n"
    if question == "noise":
        paper = Number("paper_noise_std", float(dp.paper_noise_std(**values)), words, False)
    elif question == "rounds":
        budget, given = (values["epsilon"], values["delta"]), _pick(values, ("clip_norm", "noise_std", "n"))
        paper = Number("paper_rounds", dp.paper_rounds_within(budget=budget, **given), words, False)
    elif "epsilon" in values:
        paper = Number("paper_delta", float(dp.paper_delta(**values)), words, False)
    else:
        paper = Number("paper_epsilon", float(dp.paper_epsilon(**values)), words, False)
    mean = _gaussian_of(question, values, 2 * clip / n, "what replace-one costs under the paper's own assumption")
    return [
        _gaussian_of(question, values, 2 * clip, "what clipping guarantees: sensitivity 2 clip_norm, whatever n is"),
        paper,
        Number(f"{mean.name}_if_assumed", mean.value, f"{mean.words}; the assumption is not proven", False),
    ]


def sampled(question: Question, values: Values) -> list[Number]:
    """DP-SGD."""
    is_replace = values.get("adjacency", "replace") == "replace"
    meaning = PROVEN if is_replace else "one record added or removed, NOT this package's epsilon"
    words = f"secret Poisson batches, an upper bound by privacy loss distributions; {meaning}"
    if question == "noise":
        multiplier = dp.sampled_gaussian_noise_multiplier(**values)
        return [Number("noise_multiplier", multiplier, f"noise std over clip norm; {words}")]
    if question == "rounds":
        budget, given = (values["epsilon"], values["delta"]), _pick(values, ("q", "noise_multiplier", "adjacency"))
        steps = dp.sampled_gaussian_steps_within(budget=budget, **given)
        return [Number("steps", steps, f"noisy steps, not rounds; {words}")]
    return [Number("epsilon", dp.sampled_gaussian_epsilon(**values), words)]


ANSWERS: dict[str, Callable[[Question, Values], list[Number]]] = {
    "gaussian": gaussian,
    "paper-output": paper_output,
    "sampled": sampled,
}
"""The answer of each formula that the command line knows; its numbers are checked by the accounting functions."""
