"""The paper's convergence analysis as code: constants, conditions, the rate bound, estimators, and runs beside it."""

from __future__ import annotations

from upcycled.theory.assumptions import Assumption
from upcycled.theory.conditions import dissimilarity_bound, lambda_schedule, smallest_mu
from upcycled.theory.estimators import (
    client_smoothness,
    estimate_dissimilarity,
    estimate_smoothness,
    estimate_strong_convexity,
    lowest_curvature,
)
from upcycled.theory.lemma import FORMS, Constants, Form, constants
from upcycled.theory.theorem import inexactness, rate_bound
from upcycled.theory.verdict import Report, report

__all__ = [
    "FORMS",
    "Assumption",
    "Constants",
    "Form",
    "Report",
    "client_smoothness",
    "constants",
    "dissimilarity_bound",
    "estimate_dissimilarity",
    "estimate_smoothness",
    "estimate_strong_convexity",
    "inexactness",
    "lambda_schedule",
    "lowest_curvature",
    "rate_bound",
    "report",
    "smallest_mu",
]
