"""How a client minimises F_i(x) + a/2 ||x - w||^2 + <b, x>: descriptions that every engine carries out."""

from upcycled.core.solvers.certified import CertifiedGD, CertifiedMinimiser, NominalSGD, ShiftedMinimiser
from upcycled.core.solvers.contract import Problem, Solver
from upcycled.core.solvers.local import Local, LocalAdam, LocalAdamW, LocalOptimizer, LocalSGD, Schedule, rate_at
from upcycled.core.solvers.stochastic import MoreauSGD, NoisySGD

__all__ = [
    "CertifiedGD",
    "CertifiedMinimiser",
    "Local",
    "LocalAdam",
    "LocalAdamW",
    "LocalOptimizer",
    "LocalSGD",
    "MoreauSGD",
    "NoisySGD",
    "NominalSGD",
    "Problem",
    "Schedule",
    "ShiftedMinimiser",
    "Solver",
    "rate_at",
]
