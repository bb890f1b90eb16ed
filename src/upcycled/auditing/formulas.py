"""The answers of the privacy calculators: numbers, and what each of them means in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from upcycled import privacy as dp
from upcycled.core.errors import InputError, check_number

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


Answer: TypeAlias = Callable[[Question, Values], list[Number]]


def _pick(values: Values, names: Iterable[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if values.get(name) is not None}


def _budget(values: Values) -> tuple[float, float]:
    return (values["epsilon"], values.get("delta") or 0.0)


def _gaussian_of(question: Question, values: Values, sensitivity: float, words: str) -> Number:
    """Answer with the exact Gaussian formula for a known sensitivity."""
    about = f"{words}; exact for Gaussian noise; {PROVEN}"
    if question == "noise":
        given = _pick(values, ("rounds", "epsilon", "delta"))
        return Number("noise_std", dp.gaussian_noise_std(sensitivity=sensitivity, **given), about)
    if question == "rounds":
        most = dp.rounds_within(budget=_budget(values), sensitivity=sensitivity, noise_std=values["noise_std"])
        return Number("rounds", most, f"{about}; upcycled iterations come on top, free")
    given = _pick(values, ("rounds", "noise_std"))
    if values.get("delta") is None:
        delta = dp.gaussian_delta(sensitivity=sensitivity, epsilon=values["epsilon"], **given)
        return Number("delta", delta, about)
    return Number("epsilon", dp.gaussian_epsilon(sensitivity=sensitivity, delta=values["delta"], **given), about)


def gaussian(question: Question, values: Values) -> list[Number]:
    """Known sensitivity."""
    return [_gaussian_of(question, values, values["sensitivity"], "for the sensitivity given, the user's word")]


def paper_output(question: Question, values: Values) -> list[Number]:
    """The paper's first theorem, beside what clipping guarantees."""
    clip, n = values["clip_norm"], values["n"]
    words = f"{PAPER}: it assumes that one record moves the clipped model by clip_norm/n"
    given = _pick(values, ("rounds", "clip_norm", "noise_std", "n"))
    if question == "noise":
        std = dp.paper_noise_std(**given, **_pick(values, ("epsilon", "delta")))
        paper = Number("paper_noise_std", std, words, False)
    elif question == "rounds":
        paper = Number("paper_rounds", dp.paper_rounds_within(budget=_budget(values), **given), words, False)
    elif values.get("delta") is None:
        paper = Number("paper_delta", dp.paper_delta(epsilon=values["epsilon"], **given), words, False)
    else:
        paper = Number("paper_epsilon", dp.paper_epsilon(delta=values["delta"], **given), words, False)
    mean = _gaussian_of(question, values, 2 * clip / n, "what replace-one costs under the paper's own assumption")
    return [
        _gaussian_of(question, values, 2 * clip, "what clipping guarantees: sensitivity 2 clip_norm, whatever n is"),
        paper,
        Number(f"{mean.name}_if_assumed", mean.value, f"{mean.words}; the assumption is not proven", False),
    ]


def paper_objective(question: Question, values: Values) -> list[Number]:
    """The paper's second theorem, beside what is proven."""
    bounds = _pick(values, ("u1", "u2", "n")) | {"mu": values["a"]}
    words = f"{PAPER} for its own u1 = 1, which is no bound for softmax regression with a bias; plain sum, delta = 0"
    # Beside it, what is proven for softmax regression, where the features' bound is known.
    found = [] if values.get("norm_bound") is None else objective(question, values)
    if question == "noise":
        alpha = dp.paper_objective_alpha(epsilon=values["epsilon"], rounds=values["rounds"], **bounds)
        return [*found, Number("paper_alpha", alpha, words, False)]
    if question == "rounds":
        each = dp.paper_objective_epsilon(alpha=values["alpha"], rounds=1, **bounds)
        most = dp.pure_rounds_within(budget=(values["epsilon"], 0), epsilon_each=each)
        return [*found, Number("paper_rounds", most, words, False)]
    ranked = dp.ranked_objective_epsilon(**_pick(values, ("alpha", "u1", "u2", "n", "a", "rounds")), rank=1)
    paper = dp.paper_objective_epsilon(alpha=values["alpha"], rounds=values["rounds"], **bounds)
    condition = "tighter, sound only if the u1 and u2 given bound the losses (the user's word), Hessians of rank 1"
    return [
        *found,
        Number("paper_epsilon", paper, words, False),
        Number("epsilon_if_bounded", ranked, f"{condition}; {PROVEN}", False),
    ]


def _radius_squared(values: Values) -> float:
    """R~^2: the bias counts as one more feature."""
    _, smoothness = dp.softmax_constants(
        classes=values["classes"] or 2, norm_bound=values["norm_bound"], bias=not values.get("no_bias")
    )
    return 2 * smoothness


def objective(question: Question, values: Values) -> list[Number]:
    """Objective perturbation of softmax regression; with delta > 0 both ways to compose are shown."""
    terms = _pick(values, ("n", "a", "gamma", "cover_alpha"))
    terms |= {"classes": values["classes"] or 2, "norm_bound_squared": _radius_squared(values)}
    delta = values.get("delta") or 0.0
    words = f"softmax regression, features projected, noise over all parameters; {PROVEN}"
    composed = "rounds add up" if delta == 0 else "rounds composed optimally"
    if question == "noise":
        alpha = dp.objective_alpha(epsilon=values["epsilon"], rounds=values["rounds"], delta=delta, **terms)
        return [Number("alpha", alpha, f"the largest rate, that is the least noise; {composed}; {words}")]
    if question == "rounds":
        each = dp.objective_round_epsilon(alpha=values["alpha"], **terms)
        most = dp.pure_rounds_within(budget=_budget(values), epsilon_each=each)
        return [Number("rounds", most, f"{composed}; {words}")]
    given = _pick(values, ("alpha", "rounds")) | terms
    plain = Number("epsilon_plain_sum", dp.objective_epsilon(**given), f"delta = 0, rounds add up; {words}")
    if delta == 0:
        return [Number("epsilon", plain.value, plain.words)]
    return [Number("epsilon", dp.objective_epsilon(**given, delta=delta), f"{composed}; {words}"), plain]


def sampled(question: Question, values: Values) -> list[Number]:
    """DP-SGD."""
    given = _pick(values, ("q", "noise_multiplier", "steps", "adjacency"))
    adjacency = values.get("adjacency") or "replace"
    meaning = PROVEN if adjacency == "replace" else "one record added or removed, NOT this package's epsilon"
    words = f"secret Poisson batches, an upper bound by privacy loss distributions; {meaning}"
    if question == "noise":
        found = dp.sampled_gaussian_noise_multiplier(**given, **_pick(values, ("epsilon", "delta")))
        return [Number("noise_multiplier", found, f"noise std over clip norm; {words}")]
    if question == "rounds":
        steps = dp.sampled_gaussian_steps_within(budget=_budget(values), **given)
        return [Number("steps", steps, f"noisy steps, not rounds; {words}")]
    return [Number("epsilon", dp.sampled_gaussian_epsilon(delta=values["delta"], **given), words)]


def pure(question: Question, values: Values) -> list[Number]:
    """Equal rounds of pure epsilon."""
    delta = values.get("delta") or 0.0
    words = "rounds add up (delta = 0)" if delta == 0 else "optimal composition, for a schedule fixed in advance"
    words += "; the adjacency is the one of a round's epsilon"
    if question == "noise":
        each = dp.pure_round_epsilon(epsilon=values["epsilon"], rounds=values["rounds"], delta=delta)
        return [Number("epsilon_each", each, f"the most a round may cost; {words}")]
    if question == "rounds":
        most = dp.pure_rounds_within(budget=_budget(values), epsilon_each=values["epsilon_each"])
        return [Number("rounds", most, words)]
    check_number("rounds", values["rounds"], at_least=0, at_most=10**6, integer=True)
    rounds = np.full(values["rounds"], values["epsilon_each"])
    return [Number("epsilon", dp.pure_composition_epsilon(epsilons=rounds, delta=delta), words)]


def _constants(values: Values) -> dict[str, float]:
    """L and S, as given or those of softmax regression."""
    if values.get("lipschitz") is None and values.get("norm_bound") is None:
        raise InputError(field="lipschitz", must="given, or --norm-bound for softmax regression")
    if values.get("lipschitz") is not None and values.get("norm_bound") is not None:
        raise InputError(field="lipschitz", value=values["lipschitz"], must="left out with --norm-bound")
    if values.get("norm_bound") is None:
        return _pick(values, ("lipschitz", "smoothness"))
    lipschitz, smoothness = dp.softmax_constants(
        classes=values["classes"] or 2, norm_bound=values["norm_bound"], bias=not values.get("no_bias")
    )
    return {"lipschitz": lipschitz, "smoothness": smoothness} | _pick(values, ("smoothness",))


def bounded(sensitivity_of: Callable[..., Any], names: tuple[str, ...], words: str) -> Answer:
    """Gaussian noise on something whose sensitivity is itself a formula."""

    def answer(question: Question, values: Values) -> list[Number]:
        constants = _constants(values)
        if sensitivity_of is dp.erm_sensitivity:
            constants.pop("smoothness", None)
        moves = float(sensitivity_of(**constants, **_pick(values, names)))
        about = Number("sensitivity", moves, f"the most one replaced record moves the release; {words}")
        return [_gaussian_of(question, values, moves, words), about]

    return answer
