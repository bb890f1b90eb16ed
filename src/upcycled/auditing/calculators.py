"""Calculators for every privacy formula: which numbers each of them needs, and how it is asked."""

from __future__ import annotations

from dataclasses import dataclass

from upcycled import privacy as dp
from upcycled.auditing import formulas as answers
from upcycled.auditing.formulas import Answer, Number, Question, Values
from upcycled.core.errors import InputError


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
    answer: Answer
    gives_delta: bool = False
    """Whether delta can be asked for."""


def calculate(question: Question, formula: str, values: Values) -> list[Number]:
    """Answer a question; an input error names the flag."""
    made = FORMULAS[formula]
    needed = _needed(question, made, values)
    for name, value in values.items():
        if value is not None and name not in (*needed, *made.takes):
            raise InputError(field=name, value=value, must=f"left out with {formula} here")
    for name in needed:
        if values.get(name) is None:
            raise InputError(field=name, but=f"{formula} needs it here ({', '.join(map(flag, needed))})")
    try:
        return made.answer(question, values)
    except InputError as error:
        # A budget is no pair here: what is wrong with it is wrong with a number of its own.
        raise error.renamed(error.field) from error


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


_RELEASE = ("rounds", "noise_std", "delta")
_LOSS = ("norm_bound", "classes", "no_bias", "lipschitz", "smoothness")

FORMULAS: dict[str, Formula] = {
    "gaussian": Formula(
        "Gaussian releases of a known sensitivity, exact",
        "noise_std", "rounds", ("rounds", "sensitivity", "noise_std", "delta"), (), answers.gaussian, True,
    ),
    "paper-output": Formula(
        "the paper's output perturbation, beside what clipping guarantees",
        "noise_std", "rounds", ("rounds", "clip_norm", "noise_std", "n", "delta"), (), answers.paper_output, True,
    ),
    "paper-objective": Formula(
        "the paper's objective perturbation, beside what is proven",
        "alpha", "rounds", ("alpha", "u1", "u2", "n", "a", "rounds"), ("norm_bound", "classes", "no_bias"),
        answers.paper_objective,
    ),
    "objective": Formula(
        "objective perturbation of softmax regression",
        "alpha", "rounds", ("alpha", "norm_bound", "n", "a", "rounds"),
        ("classes", "no_bias", "delta", "gamma", "cover_alpha"), answers.objective,
    ),
    "sampled": Formula(
        "noisy steps on secret Poisson batches (DP-SGD)",
        "noise_multiplier", "steps", ("q", "noise_multiplier", "steps", "delta"), ("adjacency",), answers.sampled,
    ),
    "pure": Formula(
        "equal rounds of pure epsilon", "epsilon_each", "rounds", ("epsilon_each", "rounds"), ("delta",), answers.pure
    ),
    "erm": Formula(
        "the minimiser of a strongly convex objective, with Gaussian noise",
        "noise_std", "rounds", ("n", "a", *_RELEASE), (*_LOSS, "gamma"),
        answers.bounded(dp.erm_sensitivity, ("n", "a", "gamma"), "a minimiser of a convex loss with a > 0"), True,
    ),
    "gd": Formula(
        "gradient descent with its steps fixed in advance, with Gaussian noise",
        "noise_std", "rounds", ("n", "a", "steps", *_RELEASE), (*_LOSS, "lr"),
        answers.bounded(
            lambda lr=None, **given: dp.gd_sensitivity(step_size=lr, **given),
            ("n", "a", "steps", "lr"), "full-batch gradient descent on a convex loss with a > 0",
        ), True,
    ),
    "sgd": Formula(
        "minibatch SGD on a convex loss, with Gaussian noise on its last iterate",
        "noise_std", "rounds", ("lr", "passes", "batch", *_RELEASE), (*_LOSS, "n", "a"),
        answers.bounded(
            dp.sgd_sensitivity, ("lr", "passes", "batch", "n", "a"), "SGD on a convex loss, no momentum, no dropout"
        ), True,
    ),
}  # fmt: skip
