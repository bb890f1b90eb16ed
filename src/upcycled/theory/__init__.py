"""The paper's convergence analysis as code: constants, condition, rate bound, and estimators of L and B."""

from __future__ import annotations

from upcycled.theory.bound import FORMS, Constants, Form, constants, lambda_schedule, rate_bound, smallest_mu
from upcycled.theory.estimators import estimate_dissimilarity, estimate_smoothness

__all__ = [
    "FORMS",
    "Constants",
    "Form",
    "constants",
    "estimate_dissimilarity",
    "estimate_smoothness",
    "lambda_schedule",
    "rate_bound",
    "smallest_mu",
]
