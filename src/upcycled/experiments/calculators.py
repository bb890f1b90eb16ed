"""Calculators for every privacy formula: which numbers each of them needs, and what its answer means in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from upcycled import privacy as dp
from upcycled.core.errors import InputError

Question: TypeAlias = Literal["epsilon", "noise", "rounds"]
Values: TypeAlias = Mapping[str, Any]

OPTIONS: dict[str, tuple[str, type]] = {
    "rounds": ("data rounds", int),
    "sensitivity": ("how far one record moves the release (L2)", float),
    "noise_std": ("noise std per coordinate", float),
    "epsilon": ("the epsilon to reach; with the question epsilon: asks for delta instead", float),
    "delta": ("the delta of (epsilon, delta)", float),
    "clip_norm": ("clip norm tau", float),
    "n": ("records of the client", int),
    "alpha": ("rate of the noise in the objective", float),
    "u1": ("bound on per-sample gradients", float),
    "u2": ("bound on per-sample Hessians", float),
    "a": ("coefficient of the quadratic term (the paper's mu)", float),
    "classes": ("classes of softmax regression (default: 2)", int),
    "norm_bound": ("R, to which features are projected", float),
    "lipschitz": ("L of a record's loss, in place of --norm-bound", float),
    "smoothness": ("S of a record's loss", float),
    "gamma": ("gradient norm that the solver leaves (default: 0)", float),
    "cover_alpha": ("rate of the noise that covers gamma", float),
    "steps": ("gradient descent: steps a round; sampled: all noisy steps", int),
    "lr": ("learning rate", float),
    "passes": ("passes over the data a round", int),
    "batch": ("batch size", int),
    "q": ("sampling rate of a record", float),
    "noise_multiplier": ("noise std over clip norm", float),
    "epsilon_each": ("pure epsilon of a round", float),
}
"""Every number a calculator may need: what it is, and its type. Flags are the names with dashes."""

PROVEN = "one record replaced (replace-one), against whoever sees every release; fixed schedule"
PAPER = "the paper's formula, not proven"


@dataclass(frozen=True)
class Number:
    """One number of an answer, and what it is."""

    name: str
    value: float
    words: str
    is_proven: bool = True


@dataclass(frozen=True)
class Formula:
    """A calculator: what it needs beside the number asked for, what it may take, and how it answers."""

    about: str
    noise: str
    """The number that the question ``noise`` asks for."""
    count: str
    """The number that the question ``rounds`` asks for."""
    needs: tuple[str, ...]
    takes: tuple[str, ...]
    answer: Callable[[Question, Values], list[Number]]
    gives_delta: bool = False
    """Whether delta can be asked for."""


def calculate(question: Question, formula: str, values: Values) -> list[Number]:
    """Answer a question; an input error names the flag."""
    made = FORMULAS[formula]
    needed = _needed(question, made, values)
    for name, value in values.items():
        if value is not None and name not in (*needed, *made.takes):
            raise InputError(f"{name} is {value}, but it must be left out with {formula} here")
    for name in needed:
        if values.get(name) is None:
            raise InputError(f"{name} is missing, but {formula} needs it here ({', '.join(map(flag, needed))})")
    return made.answer(question, values)


def flag(name: str) -> str:
    """Return the flag of a number.

    >>> flag("noise_std")
    '--noise-std'
    """
    return f"--{name.replace('_', '-')}"


def _needed(question: Question, made: Formula, values: Values) -> list[str]:
    asked = {"noise": made.noise, "rounds": made.count}.get(question)
    needed = [name for name in made.needs if name != asked]
    if question != "epsilon":
        return [*needed, "epsilon"]
    if made.gives_delta and values.get("epsilon") is not None and values.get("delta") is None:
        return [name for name in needed if name != "delta"] + ["epsilon"]
    return needed


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


def _gaussian(question: Question, values: Values) -> list[Number]:
    return [_gaussian_of(question, values, values["sensitivity"], "for the sensitivity given, the user's word")]


def _paper_output(question: Question, values: Values) -> list[Number]:
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


def _paper_objective(question: Question, values: Values) -> list[Number]:
    bounds = _pick(values, ("u1", "u2", "n")) | {"mu": values["a"]}
    words = f"{PAPER} for its own u1 = 1, which is no bound for softmax regression with a bias; plain sum, delta = 0"
    tight = f"for the u1 and u2 given, which must bound the losses (the user's word), Hessians of rank 1; {PROVEN}"
    if question == "noise":
        alpha = dp.paper_objective_alpha(epsilon=values["epsilon"], rounds=values["rounds"], **bounds)
        return [Number("paper_alpha", alpha, words, False)]
    if question == "rounds":
        each = dp.paper_objective_epsilon(alpha=values["alpha"], rounds=1, **bounds)
        most = dp.pure_rounds_within(budget=(values["epsilon"], 0), epsilon_each=each)
        return [Number("paper_rounds", most, words, False)]
    given = _pick(values, ("alpha", "u1", "u2", "n", "a", "rounds"))
    found = [
        Number("epsilon", dp.ranked_objective_epsilon(**given, rank=1), tight),
        Number("paper_epsilon", dp.paper_objective_epsilon(alpha=values["alpha"], rounds=values["rounds"], **bounds),
               words, False),
    ]  # fmt: skip
    if values.get("norm_bound") is None:
        return found
    soft = _pick(values, ("alpha", "n", "a", "rounds"))
    value = dp.objective_epsilon(**soft, classes=values["classes"] or 2, norm_bound_squared=_radius_squared(values))
    return [Number("epsilon_softmax", value, f"softmax regression with its own constants; {PROVEN}"), *found]


def _radius_squared(values: Values) -> float:
    """R~^2: the bias counts as one more feature."""
    _, smoothness = dp.softmax_constants(
        classes=values["classes"] or 2, norm_bound=values["norm_bound"], bias=not values.get("no_bias")
    )
    return 2 * smoothness


def _objective(question: Question, values: Values) -> list[Number]:
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


def _sampled(question: Question, values: Values) -> list[Number]:
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


def _pure(question: Question, values: Values) -> list[Number]:
    delta = values.get("delta") or 0.0
    words = "rounds add up (delta = 0)" if delta == 0 else "optimal composition, for a schedule fixed in advance"
    words += "; the adjacency is the one of a round's epsilon"
    if question == "noise":
        each = dp.pure_round_epsilon(epsilon=values["epsilon"], rounds=values["rounds"], delta=delta)
        return [Number("epsilon_each", each, f"the most a round may cost; {words}")]
    if question == "rounds":
        most = dp.pure_rounds_within(budget=_budget(values), epsilon_each=values["epsilon_each"])
        return [Number("rounds", most, words)]
    each = values["epsilon_each"]
    parts = [each] * values["rounds"] if values["rounds"] <= 10**6 else None
    if parts is None:
        raise InputError(f"rounds is {values['rounds']}, but it must be at most 1000000 here")
    return [Number("epsilon", dp.pure_composition_epsilon(epsilons=parts, delta=delta), words)]


def _constants(values: Values) -> dict[str, float]:
    """L and S, as given or those of softmax regression."""
    if (values.get("lipschitz") is None) == (values.get("norm_bound") is None):
        raise InputError("lipschitz or norm_bound is needed, one of them (norm_bound means softmax regression)")
    if values.get("norm_bound") is None:
        return _pick(values, ("lipschitz", "smoothness"))
    lipschitz, smoothness = dp.softmax_constants(
        classes=values["classes"] or 2, norm_bound=values["norm_bound"], bias=not values.get("no_bias")
    )
    return {"lipschitz": lipschitz, "smoothness": smoothness} | _pick(values, ("smoothness",))


def _bounded(sensitivity_of: Callable[..., Any], names: tuple[str, ...], words: str) -> Any:
    def answer(question: Question, values: Values) -> list[Number]:
        constants = _constants(values)
        if sensitivity_of is dp.erm_sensitivity:
            constants.pop("smoothness", None)
        moves = float(sensitivity_of(**constants, **_pick(values, names)))
        about = Number("sensitivity", moves, f"the most one replaced record moves the release; {words}")
        return [_gaussian_of(question, values, moves, words), about]

    return answer


_RELEASE = ("rounds", "noise_std", "delta")
_LOSS = ("norm_bound", "classes", "no_bias", "lipschitz", "smoothness")

FORMULAS: dict[str, Formula] = {
    "gaussian": Formula(
        "Gaussian releases of a known sensitivity, exact",
        "noise_std", "rounds", ("rounds", "sensitivity", "noise_std", "delta"), (), _gaussian, True,
    ),
    "paper-output": Formula(
        "the paper's output perturbation, beside what clipping guarantees",
        "noise_std", "rounds", ("rounds", "clip_norm", "noise_std", "n", "delta"), (), _paper_output, True,
    ),
    "paper-objective": Formula(
        "the paper's objective perturbation, beside what is proven",
        "alpha", "rounds", ("alpha", "u1", "u2", "n", "a", "rounds"), ("norm_bound", "classes", "no_bias"),
        _paper_objective,
    ),
    "objective": Formula(
        "objective perturbation of softmax regression",
        "alpha", "rounds", ("alpha", "norm_bound", "n", "a", "rounds"),
        ("classes", "no_bias", "delta", "gamma", "cover_alpha"), _objective,
    ),
    "sampled": Formula(
        "noisy steps on secret Poisson batches (DP-SGD)",
        "noise_multiplier", "steps", ("q", "noise_multiplier", "steps", "delta"), ("adjacency",), _sampled,
    ),
    "pure": Formula(
        "equal rounds of pure epsilon", "epsilon_each", "rounds", ("epsilon_each", "rounds"), ("delta",), _pure
    ),
    "erm": Formula(
        "the minimiser of a strongly convex objective, with Gaussian noise",
        "noise_std", "rounds", ("n", "a", *_RELEASE), (*_LOSS, "gamma"),
        _bounded(dp.erm_sensitivity, ("n", "a", "gamma"), "a minimiser of a convex loss with a > 0"), True,
    ),
    "gd": Formula(
        "gradient descent with its steps fixed in advance, with Gaussian noise",
        "noise_std", "rounds", ("n", "a", "steps", *_RELEASE), (*_LOSS, "lr"),
        _bounded(
            lambda lr=None, **given: dp.gd_sensitivity(step_size=lr, **given),
            ("n", "a", "steps", "lr"), "full-batch gradient descent on a convex loss with a > 0",
        ), True,
    ),
    "sgd": Formula(
        "minibatch SGD on a convex loss, with Gaussian noise on its last iterate",
        "noise_std", "rounds", ("lr", "passes", "batch", *_RELEASE), (*_LOSS, "n", "a"),
        _bounded(
            dp.sgd_sensitivity, ("lr", "passes", "batch", "n", "a"), "SGD on a convex loss, no momentum, no dropout"
        ), True,
    ),
}  # fmt: skip
