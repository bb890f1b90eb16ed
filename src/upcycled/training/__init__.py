"""The round loop and what surrounds it."""

from __future__ import annotations

from upcycled.training.callbacks import STOP, Callback, Probe, Step
from upcycled.training.comparison import Comparison, compare
from upcycled.training.executor import Failed, train_many
from upcycled.training.history import History, Record
from upcycled.training.plan import Plan
from upcycled.training.result import Result
from upcycled.training.spec import RunSpec
from upcycled.training.state import Run
from upcycled.training.train import train

__all__ = [
    "STOP",
    "Callback",
    "Comparison",
    "Failed",
    "History",
    "Plan",
    "Probe",
    "Record",
    "Result",
    "Run",
    "RunSpec",
    "Step",
    "compare",
    "train",
    "train_many",
]
