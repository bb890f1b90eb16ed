"""What releases cost: epsilon, delta, noise and rounds, as pure functions.

``gaussian`` is exact; ``sampled`` and ``pure`` compose as tightly as is known; ``sensitivity`` and
``objective`` are the proofs' constants; ``paper`` is the paper's own claim, which is not sound.
"""

from __future__ import annotations

from upcycled.privacy.accounting.gaussian import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_noise_std,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
)
from upcycled.privacy.accounting.objective import (
    objective_alpha,
    objective_epsilon,
    objective_round_epsilon,
    ranked_objective_epsilon,
)
from upcycled.privacy.accounting.paper import (
    paper_delta,
    paper_epsilon,
    paper_noise_std,
    paper_objective_alpha,
    paper_objective_epsilon,
)
from upcycled.privacy.accounting.pure import pure_composition_epsilon, pure_round_epsilon
from upcycled.privacy.accounting.rounds import (
    paper_rounds_within,
    pure_rounds_within,
    rounds_within,
    sampled_gaussian_steps_within,
)
from upcycled.privacy.accounting.sampled import sampled_gaussian_epsilon, sampled_gaussian_noise_multiplier
from upcycled.privacy.accounting.sensitivity import (
    erm_sensitivity,
    gd_distance,
    gd_sensitivity,
    sgd_sensitivity,
    softmax_constants,
)

__all__ = [
    "erm_sensitivity",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_noise_std",
    "gd_distance",
    "gd_sensitivity",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "objective_alpha",
    "objective_epsilon",
    "objective_round_epsilon",
    "paper_delta",
    "paper_epsilon",
    "paper_noise_std",
    "paper_objective_alpha",
    "paper_objective_epsilon",
    "paper_rounds_within",
    "pure_composition_epsilon",
    "pure_round_epsilon",
    "pure_rounds_within",
    "ranked_objective_epsilon",
    "rounds_within",
    "sampled_gaussian_epsilon",
    "sampled_gaussian_noise_multiplier",
    "sampled_gaussian_steps_within",
    "sgd_sensitivity",
    "softmax_constants",
]
