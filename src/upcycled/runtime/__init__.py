"""The round loop and what surrounds it."""

from __future__ import annotations

from upcycled.runtime.callbacks import STOP, Callback, Probe, Step
from upcycled.runtime.comparison import Comparison, compare
from upcycled.runtime.executor import Failed, train_many
from upcycled.runtime.history import History, Record
from upcycled.runtime.plan import Plan
from upcycled.runtime.result import Result
from upcycled.runtime.spec import RunSpec
from upcycled.runtime.state import Run
from upcycled.runtime.train import train

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
