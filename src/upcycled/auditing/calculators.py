"""Calculators for every privacy formula: a question, the numbers given, and what answers it."""

from __future__ import annotations

from upcycled import privacy as dp
from upcycled.auditing import formulas as answers
from upcycled.auditing.formula_table import FORMULAS
from upcycled.auditing.formulas import Answer, Number, Question, Values
from upcycled.core.errors import InputError

ANSWERS: dict[str, Answer] = {
    "gaussian": answers.gaussian,
    "paper-output": answers.paper_output,
    "paper-objective": answers.paper_objective,
    "objective": answers.objective,
    "sampled": answers.sampled,
    "pure": answers.pure,
    "erm": answers.bounded(dp.erm_sensitivity, ("n", "a", "gamma"), "a minimiser of a convex loss with a > 0"),
    "gd": answers.bounded(
        lambda lr=None, **given: dp.gd_sensitivity(step_size=lr, **given),
        ("n", "a", "steps", "lr"),
        "full-batch gradient descent on a convex loss with a > 0",
    ),
    "sgd": answers.bounded(
        dp.sgd_sensitivity, ("lr", "passes", "batch", "n", "a"), "SGD on a convex loss, no momentum, no dropout"
    ),
}
"""Of every formula of the table."""


def calculate(question: Question, formula: str, values: Values) -> list[Number]:
    """Answer a question; an input error names the flag."""
    made = FORMULAS[formula]
    asks_delta = made.gives_delta and values.get("epsilon") is not None and values.get("delta") is None
    needed = made.needed(question, asks_delta and question == "epsilon")
    for name, value in values.items():
        if value is not None and name not in (*needed, *made.takes):
            raise InputError(field=name, value=value, must=f"left out with {formula} here")
    for name in needed:
        if values.get(name) is None:
            raise InputError(field=name, but=f"{formula} needs it here ({', '.join(map(flag, needed))})")
    try:
        return ANSWERS[formula](question, values)
    except InputError as error:
        # A budget is no pair here: what is wrong with it is wrong with a number of its own.
        raise error.renamed(error.field) from error


def flag(name: str) -> str:
    """Return the flag of a number.

    >>> flag("noise_std")
    '--noise-std'
    """
    return f"--{name.replace('_', '-')}"
