"""The round loop and what surrounds it."""

from __future__ import annotations

from upcycled.runtime.comparison import Comparison, compare
from upcycled.runtime.history import History, Record
from upcycled.runtime.many import Failed, train_many
from upcycled.runtime.observe import Observer
from upcycled.runtime.result import Result
from upcycled.runtime.train import train

__all__ = ["Comparison", "Failed", "History", "Observer", "Record", "Result", "compare", "train", "train_many"]
